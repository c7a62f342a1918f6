"""TorchRL's `GymWrapper` over our vector environments, with nothing of ours in between."""

import importlib.util
import multiprocessing

import gymnasium
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import FlattenObservation
from tally import TURN, tallies

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchrl") is None, reason="TorchRL is not installed"
)

ROWS = 4


@pytest.fixture(scope="module")
def wrap():
    """TorchRL's wrapper, without TorchRL's change of how processes start."""
    before = multiprocessing.get_start_method(allow_none=True)
    from torchrl.envs import GymWrapper

    multiprocessing.set_start_method(before, force=True)
    return lambda envs: GymWrapper(envs, categorical_action_encoding=True)


@pytest.fixture(params=["SameStep", "Disabled"])
def envs(request):
    return tallies(ROWS, autoreset_mode=request.param)


def test_specs_and_shapes(envs, wrap):
    from torchrl.envs.utils import check_env_specs

    wrapped = wrap(envs)
    check_env_specs(wrapped)
    assert wrapped.batch_size == (ROWS,)
    assert wrapped.observation_spec["observation"].shape == (ROWS, 4)


def test_a_rollout_is_what_the_environment_did(envs, wrap):
    wrapped = wrap(envs)
    torch.manual_seed(0)
    wrapped.set_seed(3)
    path = wrapped.rollout(120, break_when_any_done=False)
    seen, after = path["observation"], path["next", "observation"]
    reward, done = path["next", "reward"][..., 0], path["next", "done"][..., 0]
    action = path["action"]
    assert seen.shape == (ROWS, 120, 4)
    assert torch.equal(reward, action.to(reward.dtype))
    assert torch.equal(after[..., 0], seen[..., 0])
    assert torch.equal(after[..., 1], seen[..., 1] + 1)
    assert torch.equal(after[..., 2], (seen[..., 2] * 3 + action) % TURN)
    ends = (after[..., 3] % 8 == 0) | (after[..., 1] == 20)
    assert torch.equal(done, ends) and done.sum() > 20
    begins = seen[:, 1:][done[:, :-1]]
    assert bool((begins[:, 1:] == 0).all())
    assert torch.equal(seen[:, 1:][~done[:, :-1]], after[:, :-1][~done[:, :-1]])
    cut = path["next", "truncated"][..., 0]
    assert torch.equal(cut, ends & (after[..., 3] % 8 != 0))


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_same_seed_same_rollout(mode, wrap):
    # Of fresh environments: after a rollout whose last step ended an episode, TorchRL 0.14 begins
    # the next one with an old observation in SAME_STEP mode, over Gymnasium's own too.
    ways = []
    for _ in range(2):
        wrapped = wrap(tallies(ROWS, autoreset_mode=mode))
        torch.manual_seed(1)
        wrapped.set_seed(5)
        ways.append(wrapped.rollout(30, break_when_any_done=False)["observation"])
    assert torch.equal(*ways)


@pytest.mark.parametrize("name", ["DeepTree", "SharedCounter"])
def test_our_environments(name, wrap, envs):
    mode = envs.autoreset_mode
    ours = gymnasium.make_vec(
        f"branchrt_gym:branchrt/{name}-v0", ROWS, width=64, depth=5, autoreset_mode=mode
    )
    path = wrap(ours).rollout(12, break_when_any_done=False)
    assert path["next", "done"][:, [4, 9]].all() and path["next", "done"].sum() == 2 * ROWS


def test_a_population_of_ordinary_environments_is_what_gymnasium_makes(wrap, envs):
    from branchrt_gym import make_branching

    mode, ways = envs.autoreset_mode, []
    for make in (
        lambda: make_branching("CartPole-v1", ROWS, autoreset_mode=mode),
        lambda: SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * ROWS, autoreset_mode=mode),
    ):
        wrapped = wrap(make())
        torch.manual_seed(2)
        wrapped.set_seed(4)
        ways.append(wrapped.rollout(80, break_when_any_done=False))
    assert ways[1]["next", "done"].sum() > ROWS
    for key in ("observation", "action", ("next", "reward"), ("next", "done")):
        assert torch.equal(ways[0][key].double(), ways[1][key].double())


def test_a_tuple_of_observations_needs_to_be_flattened(wrap):
    def blackjack():
        return gymnasium.make_vec(
            "branchrt_gym:branchrt/Blackjack-v0", ROWS, autoreset_mode="Disabled"
        )

    path = wrap(FlattenObservation(blackjack())).rollout(30, break_when_any_done=False)
    assert (path["observation"].sum(-1) == 3).all()
    assert path["next", "done"].any() and path["next", "reward"].abs().max() == 1
    with pytest.raises(ValueError):  # as of Gymnasium's own Blackjack
        wrap(blackjack())


def test_next_step_mode_is_refused_by_torchrl(wrap):
    with pytest.raises(RuntimeError):
        wrap(tallies(ROWS, autoreset_mode="NextStep"))
