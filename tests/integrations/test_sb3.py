"""`BranchingVecEnv` beside Stable-Baselines3's own `DummyVecEnv`, and under its algorithms."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tally import tallies

import branchrt_gym

pytest.importorskip("stable_baselines3", reason="needs the extra `sb3`")

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecCheckNan, VecMonitor, VecNormalize

from branchrt_gym.integrations.sb3 import BranchingVecEnv

ROWS = 3
SAME, OFF = AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def vector(name, mode=SAME, kind="sync", wrappers=(), rows=ROWS, **options):
    return gymnasium.make_vec(
        name, rows, kind, {"autoreset_mode": mode}, wrappers=wrappers, **options
    )


def dummy(name, wrap=lambda env: env, **options):
    return DummyVecEnv([lambda: wrap(gymnasium.make(name, **options))] * ROWS)


def assert_same(given, expected):
    """Equal in value and dtype, whether in arrays or in infos."""
    if isinstance(expected, dict):
        assert set(given) == set(expected)
        for key in expected:
            assert_same(given[key], expected[key])
    elif isinstance(expected, list):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            assert_same(one, other)
    else:
        given, expected = np.asarray(given), np.asarray(expected)
        assert given.dtype == expected.dtype
        assert np.array_equal(given, expected)


def run_beside(ours, theirs, steps=260):
    """Steps both alike, and returns how many episodes ended and how many were truncated."""
    ours.seed(11), theirs.seed(11)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert_same(ours.reset(), theirs.reset())
    assert_same(ours.reset_infos, theirs.reset_infos)
    theirs.action_space.seed(2)
    ended = cut = 0
    kept = []
    for _ in range(steps):
        actions = np.array([theirs.action_space.sample() for _ in range(ROWS)])
        given, expected = ours.step(actions), theirs.step(actions)
        for one, other in zip(given, expected, strict=True):
            assert_same(one, other)
        assert_same(ours.reset_infos, theirs.reset_infos)
        kept.append((given[0], np.copy(given[0])))
        ended += given[2].sum()
        cut += sum(info["TimeLimit.truncated"] for info in given[3])
    for seen, then in kept:
        assert np.array_equal(seen, then), "an observation was written to by a later step"
    ours.close(), theirs.close()
    return ended, cut


@pytest.mark.parametrize("mode", [SAME, OFF], ids=str)
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_bit_equal_to_dummy_vec_env(name, mode):
    ended, cut = run_beside(BranchingVecEnv(vector(name, mode)), dummy(name))
    assert ended >= ROWS
    if name == "Pendulum-v1":
        assert cut == ROWS  # at step 200


@pytest.mark.parametrize("mode", [SAME, OFF], ids=str)
def test_bit_equal_over_worker_processes_and_short_episodes(mode):
    options = {"max_episode_steps": 7}
    ours = BranchingVecEnv(vector("FrozenLake-v1", mode, "async", **options))
    ended, cut = run_beside(ours, dummy("FrozenLake-v1", **options), steps=60)
    assert 0 < cut < ended


def test_bit_equal_where_the_vector_environment_does_not_copy():
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * ROWS, copy=False, autoreset_mode=SAME
    )
    run_beside(BranchingVecEnv(envs), dummy("CartPole-v1"), steps=60)


def test_gymnasium_rounds_batched_infos_and_we_do_not():
    # Remove `RowInfos` when this fails: the batch is right then.
    envs = vector("FrozenLake-v1")
    envs.reset(seed=0)
    batches = [envs.step(np.full(ROWS, 2))[4]["prob"] for _ in range(60)]
    assert any((batch == 0).any() for batch in batches)
    ours = BranchingVecEnv(vector("FrozenLake-v1"))
    ours.seed(0), ours.reset()
    probs = [info["prob"] for _ in range(60) for info in ours.step(np.full(ROWS, 2))[3]]
    assert min(probs) > 0.3


@pytest.mark.parametrize("mode", [SAME, OFF], ids=str)
def test_tuples_are_flattened(mode):
    flat = gymnasium.wrappers.FlattenObservation
    ours = BranchingVecEnv(vector("Blackjack-v1", mode))
    ended, _ = run_beside(ours, dummy("Blackjack-v1", flat), steps=100)
    assert ended > 50


def test_dicts_are_left_as_they_are():
    def as_dict(env):
        space = spaces.Dict({"all": env.observation_space, "two": spaces.Discrete(2)})
        return gymnasium.wrappers.TransformObservation(
            env, lambda seen: {"all": seen, "two": int(seen[0] > 0)}, space
        )

    ours = BranchingVecEnv(vector("CartPole-v1", OFF, wrappers=[as_dict]))
    theirs = dummy("CartPole-v1", as_dict)
    ours.seed(4), theirs.seed(4)
    assert_same(ours.reset(), dict(theirs.reset()))
    for _ in range(40):
        given, expected = ours.step(np.ones(ROWS, int)), theirs.step(np.ones(ROWS, int))
        assert_same(given[0], dict(expected[0]))
        assert_same(given[3], expected[3])


@pytest.mark.parametrize("mode", [SAME, OFF], ids=str)
def test_a_branching_population_ends_and_restarts_as_others_do(mode):
    ours = BranchingVecEnv(tallies(4, autoreset_mode=mode))
    ours.seed(3)
    seen = ours.reset()
    ended = 0
    for step in range(120):
        actions = np.arange(4) * (step + 1) % 3
        expected = (seen[:, 2] * 3 + actions) % 1009
        new, rewards, dones, infos = ours.step(actions)
        last = np.array([i.get("terminal_observation", n) for i, n in zip(infos, new, strict=True)])
        assert np.array_equal(last[:, 2], expected)
        assert np.array_equal(last[:, :2], seen[:, :2] + [0, 1])
        assert np.array_equal(rewards, actions.astype(np.float32)) and rewards.dtype == np.float32
        assert np.array_equal(dones, (last[:, 3] % 8 == 0) | (last[:, 1] == 20))
        cut = [info["TimeLimit.truncated"] for info in infos]
        assert np.array_equal(cut, dones & (last[:, 3] % 8 != 0))
        assert (new[dones, 1:] == 0).all() and (new[dones, 0] != last[dones, 0]).all()
        ended, seen = ended + dones.sum(), new
    assert ended > 20


def test_options_and_seeds_reach_the_next_reset_only():
    ours, theirs = BranchingVecEnv(vector("CartPole-v1")), dummy("CartPole-v1")
    for env in (ours, theirs):
        assert env.seed(5) == [5, 6, 7]
        env.set_options({"low": -0.01, "high": 0.0})
    first = ours.reset()
    assert_same(first, theirs.reset())
    assert (np.abs(first) <= 0.01).all()
    assert_same(ours.reset(), theirs.reset())
    ours.set_options([{"low": 0.0}, {}, {}])
    with pytest.raises(ValueError, match="same for all rows"):
        ours.reset()


# Refusals -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"NEXT_STEP.*expected SAME_STEP or DISABLED"):
        BranchingVecEnv(gymnasium.make_vec("CartPole-v1", 2))
    with pytest.raises(TypeError, match="`envs` is TimeLimit"):
        BranchingVecEnv(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match='expected "numpy"'):
        BranchingVecEnv(tallies(2, output="torch"))
    shifted = [
        lambda env: gymnasium.wrappers.TransformAction(
            env, lambda action: action - 3, spaces.Discrete(2, start=3)
        )
    ]
    with pytest.raises(ValueError, match="actions from 3"):
        BranchingVecEnv(vector("CartPole-v1", wrappers=shifted))


def test_a_slot_that_is_not_live_is_an_error():
    free = BranchingVecEnv(tallies(2, spare=1))
    with pytest.raises(branchrt_gym.errors.SlotError, match="no live branch in slot 2, row 2"):
        free.reset()
    pruned = BranchingVecEnv(tallies(3))
    pruned.reset()
    pruned.population.prune([1])
    with pytest.raises(branchrt_gym.errors.SlotError, match="slot 1, row 1"):
        pruned.step(np.zeros(3, dtype=np.int64))
    pruned.reset()
    pruned.step(np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError, match="`branch` needs slots for branches"):
        pruned.branch(None, [0], np.random.default_rng(0))


# Attributes, methods, pictures --------------------------------------------------------------


def test_attributes_and_methods_of_environment_objects():
    ours, theirs = BranchingVecEnv(vector("CartPole-v1")), dummy("CartPole-v1")
    for env in (ours, theirs):
        env.seed(1), env.reset()
        assert env.get_attr("gravity", [0, 2]) == [9.8, 9.8]
        env.env_method("set_wrapper_attr", "gravity", 5.0, indices=1)
        assert env.get_attr("gravity") == [9.8, 5.0, 9.8]
        assert env.has_attr("gravity") and not env.has_attr("levity")
        assert len(env.env_method("has_wrapper_attr", "gravity", indices=[2, 0])) == 2
    assert_same(ours.get_attr("state"), theirs.get_attr("state"))
    ours.set_attr("gravity", [1, 2], indices=2)
    ours.set_attr("length", 0.25)
    assert ours.get_attr("gravity") == [9.8, 5.0, [1, 2]]
    assert [env.unwrapped.length for env in ours.envs.envs] == [0.25] * 3


def test_attributes_of_other_processes():
    ours = BranchingVecEnv(vector("CartPole-v1", kind="async"))
    ours.set_attr("gravity", 2.0, indices=[0])
    assert ours.get_attr("gravity") == [2.0, 9.8, 9.8]
    assert ours.env_method("has_wrapper_attr", "gravity") == [True] * 3
    assert ours.env_is_wrapped(Monitor) == [False] * 3
    with pytest.raises(ValueError, match="all its environments or of none"):
        ours.env_method("has_wrapper_attr", "gravity", indices=1)
    ours.close()


def test_attributes_of_a_population():
    ours = BranchingVecEnv(RecordEpisodeStatistics(tallies(3)))
    assert ours.get_attr("num_roots", [1, 2]) == [3, 3]
    assert ours.get_attr("episode_count") == [0, 0, 0]
    ours.set_attr("when_full", 7)
    assert ours.population.when_full == 7
    with pytest.raises(ValueError, match="one object for all rows"):
        ours.set_attr("when_full", 8, indices=0)
    with pytest.raises(AttributeError, match="`levity` is asked of each row"):
        ours.get_attr("levity")
    with pytest.raises(AttributeError, match="`prune` is asked"):
        ours.env_method("prune", [0])


def test_wrappers_are_found():
    ours = BranchingVecEnv(RecordEpisodeStatistics(vector("CartPole-v1", wrappers=[Monitor])))
    assert ours.env_is_wrapped(Monitor) == [True] * 3
    assert ours.env_is_wrapped(gymnasium.wrappers.FlattenObservation, [0]) == [False]
    assert ours.env_is_wrapped(RecordEpisodeStatistics, [0]) == [True]
    assert BranchingVecEnv(tallies(2)).env_is_wrapped(Monitor) == [False, False]


def test_pictures():
    options = {"render_mode": "rgb_array"}
    pair = BranchingVecEnv(vector("FrozenLake-v1", **options)), dummy("FrozenLake-v1", **options)
    for env in pair:
        env.seed(0), env.reset(), env.step(np.array([1, 2, 1]))
    assert pair[0].render_mode == "rgb_array" and pair[0].metadata["render_fps"] == 4
    assert_same(pair[0].render(), pair[1].render())
    assert_same(list(pair[0].get_images()), list(pair[1].get_images()))
    blackjack = {"render_mode": "rgb_array", "autoreset_mode": OFF, "num_roots": 2}
    ours = BranchingVecEnv(
        gymnasium.make_vec("branchrt/Blackjack-v0", 4, **blackjack), spare_slots=2
    )
    ours.reset()
    assert len(ours.get_images()) == len(ours.env_method("render")) == 2
    assert_same(ours.get_images()[1], ours.envs.render()[1])
    plain = BranchingVecEnv(vector("CartPole-v1"))
    plain.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert plain.render() is None
    assert plain.get_images() == [None] * 3


# Algorithms ---------------------------------------------------------------------------------


def weights(model):
    return torch.cat([value.flatten() for value in model.policy.state_dict().values()])


@pytest.mark.parametrize("mode", [SAME, OFF], ids=str)
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (PPO, {"n_steps": 32, "batch_size": 48, "n_epochs": 2}),
        (A2C, {"n_steps": 8}),
        (DQN, {"learning_starts": 50, "buffer_size": 500, "train_freq": 4}),
    ],
)
def test_learns_the_same_weights_as_over_dummy_vec_env(algorithm, options, mode):
    short = {"max_episode_steps": 30}
    learned = []
    for env in (
        BranchingVecEnv(vector("CartPole-v1", mode, **short)),
        dummy("CartPole-v1", **short),
    ):
        model = algorithm("MlpPolicy", VecMonitor(env), seed=4, device="cpu", **options)
        before = weights(model)
        model.learn(250)
        learned.append((weights(model), [one["r"] for one in model.ep_info_buffer]))
        assert not torch.equal(before, learned[-1][0])
    assert torch.equal(learned[0][0], learned[1][0])
    assert len(learned[0][1]) > 5 and learned[0][1] == learned[1][1]


@pytest.mark.parametrize("name", ["branchrt/Blackjack-v0", "branchrt/DeepTree-v0"])
def test_learns_on_our_environments(name):
    options = {"width": 97} if "Tree" in name else {}
    envs = gymnasium.make_vec(name, 8, autoreset_mode=SAME, **options)
    env = VecNormalize(VecCheckNan(VecMonitor(BranchingVecEnv(envs)), raise_exception=True))
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=2, seed=0, device="cpu")
    model.learn(512)
    assert len(model.ep_info_buffer) > 5
    mean, _ = evaluate_policy(model, VecMonitor(env.venv), n_eval_episodes=8)
    assert np.isfinite(mean)


@pytest.mark.parametrize("name", ["branchrt/Blackjack-v0", "branchrt/DeepTree-v0"])
def test_the_scalar_forms_pass_check_env(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(normalize|symmetric|dtype).*")
        check_env(gymnasium.wrappers.FlattenObservation(gymnasium.make(name)))


def test_statistics_of_a_vector_wrapper_reach_the_library():
    envs = BranchingVecEnv(RecordEpisodeStatistics(tallies(3, autoreset_mode=SAME)))
    model = A2C("MlpPolicy", envs, seed=0, device="cpu").learn(200)
    assert model.ep_info_buffer
    assert all(1 <= one["l"] <= 20 and one["r"] <= 2 * one["l"] for one in model.ep_info_buffer)
