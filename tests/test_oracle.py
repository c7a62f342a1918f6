import copy
import doctest
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from branchrt_gym import errors, oracle
from branchrt_gym.oracle import Oracle, bounded, fold

M64 = 2**64


class Walk(Oracle):
    """A walk with chance, a context, a plain field and a field that is a list."""

    branch_fields = ("place", "trail")

    def __init__(self, action_space=None, solve_at=None):
        self.observation_space = Box(-100, 100, (2,), np.int64)
        self.action_space = action_space or Discrete(3, start=-1)
        self.solve_at = solve_at
        self.made = 0

    def make_context(self, key):
        self.made += 1
        return ("context of", key)

    def check_context(self, context):
        if context[0] != "context of":
            raise ValueError("`context` is not a context")

    def start(self):
        self.place = 0
        self.trail = []

    def advance(self, action, key):
        assert not isinstance(self.action_space, Discrete) or type(action) is int
        move = int(np.sum(action)) + bounded(fold(key, 0), 1000)
        self.place += move
        self.trail.append(move)
        return move, self.depth + 1 == 5, self.place == 10**9, self.depth == self.solve_at

    def observe(self):
        return np.array([self.place % 100, len(self.trail)])


def future(branch):
    return [branch.step(0)[1] for _ in range(5 - branch.depth)]


# Keys


def test_fold_is_splitmix64():
    # The first outputs of SplitMix64 from 1234567, as published for many implementations.
    assert [fold(1234567, i) for i in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(0, M64 - 1), st.integers(0, 2**42))
def test_fold_written_out(key, word):
    x = (key + (word + 1) * 0x9E3779B97F4A7C15) % M64
    x = (x ^ (x // 2**30)) * 0xBF58476D1CE4E5B9 % M64
    x = (x ^ (x // 2**27)) * 0x94D049BB133111EB % M64
    assert fold(key, word) == x ^ (x // 2**31)


@given(st.integers(0, M64 - 1), st.integers(1, 2**31 - 1))
def test_bounded_stays_inside_and_uses_the_upper_half(x, n):
    assert 0 <= bounded(x, n) < n
    assert bounded(x, n) == bounded(x - x % 2**32, n)


def test_bounded_edges():
    assert bounded(0, 1) == bounded(M64 - 1, 1) == 0
    assert bounded(M64 - 1, 7) == 6
    assert bounded(2**63, 7) == 3


def test_keys_written_out():
    root = fold(0x6272616E63687274, 42)
    assert bytes.fromhex("6272616E63687274") == b"branchrt"
    assert oracle.root_key(42) == root
    assert oracle.context_key(42) == fold(root, 2**40)
    assert oracle.episode_key(42, 0) == fold(root, 2 * 2**40)
    assert oracle.episode_key(42, 9) == fold(root, 2 * 2**40 + 9)
    assert oracle.child_key(root, 5, 2) == fold(fold(root, 3 * 2**40 + 5), 2)


# Reset


def test_seeded_reset():
    env = Walk()
    observation, info = env.reset(seed=42)
    assert observation in env.observation_space
    assert info == {"solved": False}
    assert (env.seed, env.episode, env.depth, env.forks, env.live) == (42, 0, 0, 0, True)
    assert env.key == oracle.episode_key(42, 0)
    assert env.context == ("context of", oracle.context_key(42))
    assert env.np_random_seed == 42


def test_reset_without_a_seed_is_the_next_episode_in_the_same_context():
    env = Walk()
    env.reset(seed=42)
    context = env.context
    env.step(1)
    env.fork()
    env.reset()
    assert (env.seed, env.episode, env.depth, env.forks) == (42, 1, 0, 0)
    assert env.key == oracle.episode_key(42, 1)
    assert env.context is context
    assert env.made == 1
    env.reset(seed=42)
    assert env.episode == 0


def test_first_reset_without_a_seed_draws_one():
    first, second = Walk(), Walk()
    for env in (first, second):
        env.np_random = np.random.default_rng(5)
        env.reset()
    assert 0 <= first.seed < 2**63
    assert first.episode == 0
    assert first.seed == second.seed
    assert first.context == ("context of", oracle.context_key(first.seed))
    drawn = first.seed
    first.reset()
    assert (first.seed, first.episode) == (drawn, 1)


def test_numpy_seed():
    env = Walk()
    env.reset(seed=np.int64(3))
    assert type(env.seed) is int
    assert env.seed == 3


def test_options_are_honoured_and_not_changed():
    env = Walk()
    options = {"context": ("context of", "mine"), "episode": 7}
    before = dict(options)
    env.reset(seed=3, options=options)
    assert options == before
    assert env.context is options["context"]
    assert env.made == 0
    assert env.key == oracle.episode_key(3, 7)
    env.reset()
    assert (env.seed, env.episode) == (3, 8)
    assert env.context is options["context"]
    env.reset(options={"episode": np.int32(2)})
    assert (env.seed, env.episode) == (3, 2)
    assert type(env.episode) is int


@pytest.mark.parametrize(
    ("seed", "options", "text"),
    [
        (1, {"context": ("context of", 0), "reset_mask": 1}, "'reset_mask'"),
        (1, {"episode": -1}, r"options\['episode'\]` is -1"),
        (1, {"episode": 2**40}, "1099511627775"),
        (1, {"episode": "2"}, "is '2'"),
        (-1, None, "`seed` is -1"),
        (2**63, None, "9223372036854775807"),
        (1.5, None, "`seed` is 1.5"),
    ],
)
def test_refused_reset_changes_nothing(seed, options, text):
    env = Walk()
    env.reset(seed=9)
    env.step(1)
    random_state = env.np_random.bit_generator.state
    before = {name: value for name, value in vars(env).items() if name != "_np_random"}
    with pytest.raises(errors.OptionsError, match=text):
        env.reset(seed=seed, options=options)
    after = {name: value for name, value in vars(env).items() if name != "_np_random"}
    assert before == after
    assert env.np_random.bit_generator.state == random_state


def test_a_context_that_does_not_fit_is_refused():
    env = Walk()
    with pytest.raises(ValueError, match="`context` is not"):
        env.reset(seed=1, options={"context": ("else", 0)})
    assert not env.live


# Step


def test_step():
    env = Walk(solve_at=4)
    env.reset(seed=1)
    for depth in range(5):
        key = fold(oracle.episode_key(1, 0), depth)
        observation, reward, terminated, truncated, info = env.step(-1)
        assert reward == bounded(fold(key, 0), 1000) - 1
        assert type(reward) is float
        assert env.depth == depth + 1 == observation[1]
        assert (terminated, truncated) == (depth == 4, False)
        assert info == {"solved": depth == 4}
    assert not env.live


def test_step_needs_a_running_episode():
    env = Walk()
    for call in (lambda: env.step(0), env.fork):
        with pytest.raises(errors.NotResetError, match="no reset yet"):
            call()
    env.reset(seed=1)
    future(env)
    for call in (lambda: env.step(0), env.fork):
        with pytest.raises(gymnasium.error.ResetNeeded, match="episode has ended"):
            call()
    assert env.forks == 0
    env.reset()
    env.step(0)


@pytest.mark.parametrize("action", [-2, 2, 10**30, 0.0, "0", None, np.array([0]), np.float32(1)])
def test_action_outside_a_discrete_space(action):
    env = Walk()
    env.reset(seed=1)
    with pytest.raises(ValueError, match="`action` is"):
        env.step(action)
    assert (env.depth, env.trail) == (0, [])


@pytest.mark.parametrize("action", [1, np.int64(1), np.uint8(1), np.array(1)])
def test_action_of_any_integer_type(action):
    env = Walk()
    env.reset(seed=1)
    env.step(action)


def test_action_in_another_space():
    env = Walk(Box(0, 1, (2,), np.float32))
    env.reset(seed=1)
    env.step(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="expected a member of Box"):
        env.step(np.full(2, 2, np.float32))


# Fork


def test_split_children_have_futures_of_their_own():
    env = Walk()
    env.reset(seed=1)
    env.step(0)
    children = env.fork(3)
    assert [child.key for child in children] == [oracle.child_key(env.key, 0, j) for j in range(3)]
    assert [child.forks for child in children] == [0, 0, 0]
    assert env.forks == 1
    later = env.fork()[0]
    assert later.key == oracle.child_key(env.key, 1, 0)
    grandchild = children[0].fork()[0]
    assert grandchild.key == oracle.child_key(children[0].key, 0, 0)
    assert len({tuple(future(b)) for b in (env, *children, later, grandchild)}) == 6


def test_shared_children_have_the_parents_future():
    env = Walk()
    env.reset(seed=1)
    env.step(0)
    env.fork()
    children = env.fork(2, rng="shared")
    assert [(child.key, child.forks) for child in children] == [(env.key, 2)] * 2
    expected = future(copy.deepcopy(env))
    assert future(children[0]) == future(children[1]) == expected == future(env)


def test_a_fork_is_the_branch_as_it_was():
    env = Walk()
    env.reset(seed=1)
    env.step(1)
    (child,) = env.fork()
    assert type(child) is Walk
    assert (child.seed, child.episode, child.depth, child.live) == (1, 0, 1, True)
    assert (child.place, child.trail) == (env.place, env.trail)
    assert child.context is env.context
    assert child.action_space is env.action_space
    assert child.observation_space is env.observation_space


@pytest.mark.parametrize("rng", ["split", "shared"])
def test_family_members_do_not_disturb_each_other(rng):
    def grow():
        env = Walk()
        env.reset(seed=1)
        env.step(0)
        return env, *env.fork(2, rng=rng)

    expected = [future(branch) for branch in grow()]
    family = grow()
    assert [future(branch) for branch in reversed(family)] == expected[::-1]
    assert [len(branch.trail) for branch in family] == [5, 5, 5]
    family[1].reset(seed=77)
    family[2].reset()
    assert (family[0].seed, family[0].episode, family[0].depth) == (1, 0, 5)
    assert family[0].context == ("context of", oracle.context_key(1))
    assert family[2].key == oracle.episode_key(1, 1)


def test_a_child_is_a_gymnasium_env():
    env = Walk()
    env.reset(seed=1)
    state = env.np_random.bit_generator.state
    (child,) = env.fork()
    assert isinstance(child, gymnasium.Env)
    assert child._np_random is None
    child.np_random.random()
    assert child.np_random_seed >= 0
    assert env.np_random.bit_generator.state == state
    child.reset(seed=3)
    assert child.np_random_seed == 3
    assert env.np_random_seed == 1
    child.close()


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"n": 0}, ValueError, "`n` is 0"),
        ({"n": -3}, ValueError, "`n` is -3"),
        ({"n": 1.5}, TypeError, "float"),
        ({"rng": "same"}, ValueError, "'split' or 'shared'"),
    ],
)
def test_refused_fork_changes_nothing(kwargs, error, text):
    env = Walk()
    env.reset(seed=1)
    with pytest.raises(error, match=text):
        env.fork(**kwargs)
    assert env.forks == 0


# Copies


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))],
    ids=["deepcopy", "pickle"],
)
def test_copies_keep_the_state(copied):
    env = Walk()
    env.reset(seed=1)
    env.step(1)
    env.fork()
    draws = env.np_random.random(3).tolist()
    twin = copied(env)
    assert twin.trail == env.trail
    assert twin.trail is not env.trail
    assert (twin.key, twin.depth, twin.forks, twin.context) == (
        env.key,
        env.depth,
        env.forks,
        env.context,
    )
    assert twin.np_random.random(3).tolist() == env.np_random.random(3).tolist() != draws
    expected = future(twin)
    assert future(env) == expected
    twin.reset()
    env.reset()
    assert twin.key == env.key


def test_deepcopy_shares_the_context_and_handles_families():
    env = Walk()
    env.reset(seed=1)
    twins = copy.deepcopy([env, *env.fork(2), env])
    assert twins[0] is twins[3]
    assert {id(twin.context) for twin in twins} == {id(env.context)}
    assert copy.deepcopy(Walk()).context is None


# The class


def test_missing_hooks_are_named():
    with pytest.raises(TypeError, match=r"advance.*observe.*start"):
        type("Empty", (Oracle,), {})()


def test_an_environment_without_a_context():
    class Plain(Walk):
        make_context = Oracle.make_context

    env = Plain()
    env.reset(seed=1)
    assert env.context is None


def test_the_example_in_the_text_runs():
    result = doctest.testmod(oracle)
    assert result.attempted > 0
    assert result.failed == 0


# Errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_ours(name):
    assert issubclass(getattr(errors, name), errors.BranchRTError)


def test_missing_extra_names_the_extra_and_pickles():
    error = errors.MissingExtraError("sb3", "stable_baselines3")
    assert isinstance(error, ImportError)
    assert 'pip install "branchrt-gym[sb3]"' in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.extra, again.name) == (str(error), "sb3", "stable_baselines3")
