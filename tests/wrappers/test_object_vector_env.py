"""Populations of ordinary environments: against SyncVectorEnv, the checker, and plain branches."""

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from branchrt_gym import Beam, Verdicts, make_branching, save
from branchrt_gym.testing import check_branching_env
from branchrt_gym.wrappers import BranchWrapper, RecordBranchStatistics
from branchrt_gym.wrappers.infos import batch_infos

MODES = list(AutoresetMode)


def needs(module: str) -> Any:
    return pytest.importorskip(module, reason=f"needs the package {module}")


def same(one: Any, two: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            same(one[key], two[key])
        return
    one, two = np.asarray(one), np.asarray(two)
    assert one.dtype == two.dtype and np.array_equal(one, two)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Taxi-v4"])
def test_without_forks_it_is_sync_vector_env(env_id: str, mode: AutoresetMode) -> None:
    ours = make_branching(env_id, 4, autoreset_mode=mode, max_episode_steps=40)
    theirs = SyncVectorEnv(
        [lambda: gymnasium.make(env_id, max_episode_steps=40)] * 4, autoreset_mode=mode
    )
    ours.action_space.seed(5)
    same(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    ended = 0
    for _ in range(150):
        actions = ours.action_space.sample()
        (*one, info), (*two, _) = ours.step(actions), theirs.step(actions)
        for mine, other in zip(one, two, strict=True):
            same(mine, other)
        over = one[2] | one[3]
        ended += over.sum()
        if mode == AutoresetMode.DISABLED and over.any():
            same(*(e.reset(options={"reset_mask": over.copy()})[0] for e in (ours, theirs)))
        assert info["live"].shape == (4,)
    assert ended > 4
    same(ours.reset()[0], theirs.reset()[0])


def image_grid() -> gymnasium.Env[Any, Any]:
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"))


CHECKED: list[Any] = [
    pytest.param("FrozenLake-v1", {"chance": True}, None, id="FrozenLake"),
    pytest.param("CartPole-v1", {"chance": False}, None, id="CartPole"),
    pytest.param("MountainCarContinuous-v0", {"chance": False}, None, id="MountainCar"),
    pytest.param("Blackjack-v1", {"chance": True}, None, id="Blackjack"),
    pytest.param("Hopper-v5", {"chance": False}, "mujoco", id="Hopper"),
    pytest.param("LunarLander-v3", {}, "Box2D", id="LunarLander"),
    pytest.param(image_grid, {}, "minigrid", id="MiniGrid"),
]


@pytest.mark.parametrize(("env", "options", "module"), CHECKED)
def test_the_checker_passes(env: Any, options: dict[str, Any], module: str | None) -> None:
    if module:
        needs(module)
    check_branching_env(make_branching(env, 6, num_roots=3), **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_the_checker_passes_in_every_mode(mode: AutoresetMode, output: str) -> None:
    envs = make_branching("FrozenLake-v1", 5, num_roots=2, autoreset_mode=mode, output=output)
    check_branching_env(envs, chance=True)


def twins(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Returns a list to which every copy of an object adds its key."""
    seen: list[int | None] = []
    plain = BranchWrapper.twin

    def twin(self: Any, key: int | None = None) -> Any:
        seen.append(key)
        return plain(self, key)

    monkeypatch.setattr(BranchWrapper, "twin", twin)
    return seen


def test_a_fork_copies_when_it_steps_and_a_pruned_child_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envs = make_branching("CartPole-v1", 8, num_roots=1)
    envs.reset(seed=1)
    seen = twins(monkeypatch)
    children = envs.fork([0], counts=6)
    assert len(envs.rules.objects) == 1 and not seen
    envs.prune(children[2:])
    envs.step(np.ones(8, int))
    assert len(seen) == 2  # the parent steps the original
    assert len(envs.rules.objects) == 3
    envs.step(np.ones(8, int))
    assert len(seen) == 2
    envs.prune([0])
    assert len(envs.rules.objects) == 2


@pytest.mark.parametrize("rng", ["split", "shared"])
def test_branches_are_those_of_single_environments(rng: Any) -> None:
    """A twin made by hand, with the key that the frontier says, lives the same life."""
    envs = make_branching("FrozenLake-v1", 4, num_roots=1)
    envs.reset(seed=7)
    alone = BranchWrapper(gymnasium.make("FrozenLake-v1"))
    alone.reset(seed=7)
    for action in (1, 2):
        envs.step(np.full(4, action))
        alone.step(action)
    slots = envs.fork([0], counts=3, rng=rng)
    keys = envs.frontier.key[slots].tolist()
    twins = [alone.twin(key & (2**64 - 1) if rng == "split" else None) for key in keys]
    running = np.ones(4, bool)
    for turn in range(12):
        actions = np.array([turn % 4, (turn + 1) % 4, (turn + 2) % 4, turn % 4])
        seen, rewards, terminated, truncated, infos = envs.step(actions)
        for slot, env in enumerate([alone, *twins]):
            if running[slot]:
                observation, reward, over, cut, info = env.step(int(actions[slot]))
                assert (observation, reward, over, cut) == (
                    seen[slot],
                    rewards[slot],
                    terminated[slot],
                    truncated[slot],
                )
                assert info["prob"] == infos["prob"][slot]
        running &= ~(terminated | truncated)


def test_returns_and_score_follow_the_branch() -> None:
    envs = make_branching("Pendulum-v1", 3, num_roots=1)
    envs.reset(seed=0)
    total = envs.step(np.zeros((3, 1), np.float32))[1][0]
    child = envs.fork([0])[0]
    rewards = envs.step(np.ones((3, 1), np.float32) * [[0], [2], [0]])[1]
    state = envs.frontier.state
    assert state["returns"][child] == total + rewards[child]
    assert state["returns"][0] == total + rewards[0]
    assert state["score"][child] == round((total + rewards[child]) * 65536)


def test_a_snapshot_is_left_alone_and_restored_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envs = make_branching("FrozenLake-v1", 6, num_roots=2, record_lineage=True)
    envs.reset(seed=3)
    envs.fork([0, 1])
    envs.step(np.arange(6) % 4)
    seen = twins(monkeypatch)
    snapshot = envs.snapshot()
    assert not seen

    def future() -> list[Any]:
        return [envs.step((np.arange(6) + t) % 4)[:4] for t in range(20)]

    first = future()
    for _ in range(2):
        envs.restore(snapshot)
        for one, two in zip(first, future(), strict=True):
            same(list(one[:1]), list(two[:1]))
            same(one[1], two[1])
    other = make_branching("FrozenLake-v1", 6, num_roots=2, record_lineage=True)
    other.restore(pickle.loads(pickle.dumps(snapshot)))
    envs = other
    for one, two in zip(first, future(), strict=True):
        same(one[0], two[0])


def test_copies_and_pickles_go_on_as_the_original() -> None:
    envs = make_branching("CartPole-v1", 5, num_roots=2)
    envs.reset(seed=3)
    envs.fork([0, 1])
    envs.step(np.ones(5, int))
    others = [copy.deepcopy(envs), pickle.loads(pickle.dumps(envs))]
    for turn in range(60):
        actions = np.arange(5) // (1 + turn % 3) % 2
        result = envs.step(actions)[0]
        for other in others:
            same(result, other.step(actions)[0])


def walk_to_goal(batch: Any, envs: Any) -> Verdicts:
    found = [env.observation == 15 for env in envs.environments(batch.state["place"])]
    depth = [
        env.observation // 4 + env.observation % 4
        for env in envs.environments(batch.state["place"])
    ]
    return Verdicts(found, depth)


def test_a_beam_by_branch_step_finds_the_goal() -> None:
    envs = make_branching(
        "FrozenLake-v1", 32, num_roots=2, is_slippery=False, autoreset_mode="Disabled"
    )
    envs.reset(seed=0)
    for _ in range(6):
        envs.branch_step(partial(walk_to_goal, envs=envs), Beam(8), rng="shared")
    assert envs.frontier.solved.all()
    ids = envs.frontier.branch_id[envs.frontier.verdict_score == 6]
    for path in envs.trajectories(ids).action:
        env = gymnasium.make("FrozenLake-v1", is_slippery=False)
        env.reset(seed=0)
        assert [env.step(int(action)) for action in path][-1][1] == 1.0


def test_expansion_leaves_parents_alone_if_it_is_refused() -> None:
    envs = make_branching("CartPole-v1", 3, num_roots=1)
    envs.reset(seed=0)
    envs.branch_step()
    before = envs.observe()
    with pytest.raises(ValueError, match="keeps 4 children"):
        envs.branch_step()
    same(envs.observe(), before)
    twin = make_branching("CartPole-v1", 3, num_roots=1)
    twin.reset(seed=0)
    twin.branch_step()
    for turn in range(10):
        same(envs.step(np.full(3, turn % 2))[0], twin.step(np.full(3, turn % 2))[0])


class Fragile(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        if action == 1 and self.unwrapped.state[0] > 0.02:  # type: ignore[attr-defined]
            raise RuntimeError("broken")
        return self.env.step(action)


def test_with_debug_a_step_that_raises_changes_nothing() -> None:
    envs = make_branching(Fragile, 4, num_roots=4, debug=True)
    envs.reset(seed=3)
    for _ in range(30):
        before = envs.observe(), envs.frontier.state["place"].clone()
        try:
            envs.step(np.ones(4, int))
        except RuntimeError:
            break
    else:
        pytest.fail("nothing broke")
    same(envs.observe(), before[0])
    assert torch.equal(envs.frontier.state["place"], before[1])
    envs.step(np.zeros(4, int))


def test_attributes_and_methods_of_each_environment() -> None:
    envs = make_branching("CartPole-v1", 4, num_roots=2)
    assert envs.get_attr("gravity") == (9.8,) * 4
    envs.reset(seed=0)
    child = envs.fork([0])[0]
    assert envs.get_attr("gravity") == (9.8, 9.8, 9.8, None)
    envs.set_attr("gravity", [1.0, 2.0, 3.0, 4.0])
    assert envs.get_attr("gravity") == (1.0, 2.0, 3.0, None)
    assert child == 2
    assert envs.call("get_wrapper_attr", "gravity") == (1.0, 2.0, 3.0, None)
    snapshot = envs.snapshot()
    envs.set_attr("gravity", 5.0)
    envs.restore(snapshot)
    assert envs.get_attr("gravity") == (1.0, 2.0, 3.0, None)
    with pytest.raises(ValueError, match="one for each slot"):
        envs.set_attr("gravity", [1.0])


def test_pictures_of_slots() -> None:
    needs("pygame")
    envs = make_branching("CartPole-v1", 3, num_roots=1, render_mode="rgb_array")
    envs.reset(seed=0)
    child = envs.fork([0])[0]
    frames = envs.render()
    assert frames is not None and [frame.shape for frame in frames] == [frames[0].shape] * 3
    assert frames[0].any() and not frames[2].any()
    same(frames[child], frames[0])


def test_statistics_follow_forks() -> None:
    envs = RecordBranchStatistics(make_branching("CartPole-v1", 4, num_roots=1))
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(np.ones(4, int))
    envs.unwrapped.fork([0], counts=3)  # type: ignore[attr-defined]
    snapshot = envs.unwrapped.snapshot()  # type: ignore[attr-defined]
    lengths = []
    for turn in range(40):
        info = envs.step(np.array([0, 1, turn % 2, 1]))[-1]
        lengths += info["episode"]["l"][info["_episode"]].tolist() if "episode" in info else []
    assert len(lengths) >= 3 and min(lengths) > 5
    envs.unwrapped.restore(snapshot)  # type: ignore[attr-defined]
    assert envs.episode_lengths.tolist() == [5, 5, 5, 5]


def test_infos_of_rows_keep_their_numbers() -> None:
    rows = {0: {"prob": 1, "deep": {"a": np.arange(2)}}, 2: {"prob": 1 / 3, "text": "x"}}
    batch = batch_infos(rows, 3)
    assert batch["prob"].tolist() == [1, 0, 1 / 3] and batch["_prob"].tolist() == [
        True,
        False,
        True,
    ]
    assert batch["deep"]["a"].tolist() == [[0, 1], [0, 0], [0, 0]]
    assert batch["text"].tolist() == [None, None, "x"]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='expected "cpu"'):
        make_branching("CartPole-v1", vector_kwargs={"device": "cuda"})
    with pytest.raises(TypeError, match="beside a callable"):
        make_branching(Fragile, gravity=3)
    with pytest.raises(TypeError, match="expected an id"):
        make_branching(3)  # type: ignore[arg-type]
    envs = make_branching("CartPole-v1", 2, num_roots=1)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="environment objects, which cannot be saved"):
        save(envs.frontier, tmp_path / "population")
    with pytest.raises(TypeError, match="ObjectSnapshot"):
        envs.restore(object())  # type: ignore[arg-type]
    continuous = make_branching("Pendulum-v1", 2, num_roots=1)
    continuous.reset(seed=0)
    with pytest.raises(ValueError, match="Discrete"):
        continuous.branch_step()
