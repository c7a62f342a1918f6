"""DeepTree's oracle against its rules, written out here a second time as plain formulas."""

import copy
import pickle
import warnings

import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym.envs.deep_tree_oracle import DeepTreeContext, DeepTreeOracle, mix32
from branchrt_gym.envs.deep_tree_render import FRAME_SHAPE, draw, text
from branchrt_gym.errors import NotResetError

M32, M64 = 2**32, 2**64
SMALL = dict(width=11, fanout=3, depth=4, value_range=5, starts=2, window=3)


def mix(x):
    x = (x ^ (x // 2**16)) * 0x7FEB352D % M32
    x = (x ^ (x // 2**15)) * 0x846CA68B % M32
    return x ^ (x // 2**16)


def fold(key, word):
    x = (key + (word + 1) * 0x9E3779B97F4A7C15) % M64
    x = (x ^ (x // 2**30)) * 0xBF58476D1CE4E5B9 % M64
    x = (x ^ (x // 2**27)) * 0x94D049BB133111EB % M64
    return x ^ (x // 2**31)


def bounded(x, n):
    return (x // M32) * n // M32


def keys_of(seed, episode=0):
    root = fold(0x6272616E63687274, seed)
    return fold(root, 2**40), fold(root, 2 * 2**40 + episode)


def child(position, action, depth, width):
    x = (position * 31 + action * 0x9E3779B1 + depth * 0x85EBCA6B) % M32
    return mix(x) * width // M32


def expected_context(key, *, width, fanout, depth, value_range, starts, **_):
    """Returns entries, start positions, target and planted actions, straight from the rules."""
    lo, hi = key % M32, key // M32
    bits = [mix((mix((i + lo) % M32) + hi) % M32) // 2**16 for i in range(width)]
    entries = [b * (2 * value_range + 1) // 2**16 - value_range for b in bits]
    first = [fold(key, s) % M32 * width // M32 for s in range(starts)]
    poor = 1 + bounded(fold(key, starts), min(6, depth))
    plans = [
        [bounded(fold(fold(key, starts + 1 + s), t), fanout) for t in range(depth)]
        for s in range(starts)
    ]
    landed = {}
    for s in range(starts):
        q = first[s]
        for t in range(depth):
            q = landed[s, t] = child(q, plans[s][t], t, width)
    for (_s, t), q in landed.items():
        if t >= poor:
            entries[q] = value_range
    for (_s, t), q in landed.items():
        if t < poor:
            entries[q] = -value_range
    target = min(sum(entries[landed[s, t]] for t in range(depth)) for s in range(starts))
    return entries, first, target, plans


def expected_observation(entries, position, score, depth, parameters):
    v, window = parameters["value_range"], parameters["window"]
    f = np.float32
    seen = [
        f(entries[min(max(position + j - window // 2, 0), len(entries) - 1)]) / f(v)
        for j in range(window)
    ]
    head = [f(depth) / f(parameters["depth"]), f(score) / f(v * parameters["depth"])]
    return np.array(head + seen, np.float32)


def assert_episode_follows_the_rules(seed, parameters, actions):
    env = DeepTreeOracle(**parameters)
    observation, info = env.reset(seed=seed)
    context_key, episode_key = keys_of(seed)
    entries, starts, target, _ = expected_context(context_key, **parameters)
    assert env.context.entries.tolist() == entries
    assert env.context.starts == tuple(starts)
    assert env.context.target == target

    position = starts[bounded(fold(episode_key, 0), len(starts))]
    score = 0
    assert info == {"solved": False}
    for t in range(parameters["depth"]):
        assert env.position == position
        expected = expected_observation(entries, position, score, t, parameters)
        np.testing.assert_array_equal(observation, expected, strict=True)
        position = child(position, actions[t], t, len(entries))
        score += entries[position]
        observation, reward, terminated, truncated, info = env.step(actions[t])
        ended = t + 1 == parameters["depth"]
        assert (reward, terminated, truncated) == (entries[position], ended, False)
        assert info == {"solved": ended and score >= target}
        assert type(info["solved"]) is bool
    expected = expected_observation(entries, position, score, t + 1, parameters)
    np.testing.assert_array_equal(observation, expected, strict=True)
    assert observation in env.observation_space


# Rules


def test_mix32_is_lowbias32():
    def inverse(x):  # as published beside it
        x ^= x >> 16
        x = x * 0x43021123 % M32
        x ^= x >> 15 ^ x >> 30
        x = x * 0x1D69E2A5 % M32
        return x ^ x >> 16

    for x in (0, 1, 2, 0xFFFF, 0x10000, 0x80000000, 0xDEADBEEF, M32 - 1):
        assert inverse(mix32(x)) == x
        assert mix32(x) == mix(x)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    parameters=st.fixed_dictionaries(
        {
            "width": st.integers(1, 300),
            "fanout": st.integers(1, 7),
            "depth": st.integers(1, 12),
            "value_range": st.sampled_from([1, 2, 1000, 16383]),
            "starts": st.integers(1, 5),
            "window": st.sampled_from([1, 3, 9, 25]),
        }
    ),
    data=st.data(),
)
def test_random_episodes(seed, parameters, data):
    actions = st.lists(
        st.integers(0, parameters["fanout"] - 1),
        min_size=parameters["depth"],
        max_size=parameters["depth"],
    )
    assert_episode_follows_the_rules(seed, parameters, data.draw(actions))


@pytest.mark.parametrize(
    "change",
    [
        {"width": 1},
        {"width": 1000},
        {"fanout": 1},
        {"depth": 1},
        {"starts": 1},
        {"window": 1},
        {"window": 101},
        {"value_range": 16383},
        {"width": 1, "fanout": 1, "depth": 1, "starts": 1, "window": 1, "value_range": 1},
    ],
    ids=str,
)
def test_edges(change):
    parameters = SMALL | change
    assert_episode_follows_the_rules(2**63 - 1, parameters, [0] * parameters["depth"])
    assert_episode_follows_the_rules(0, parameters, [parameters["fanout"] - 1] * 100)


def test_full_size():
    parameters = dict(width=262_144, fanout=4, depth=64, value_range=1000, starts=8, window=9)
    assert_episode_follows_the_rules(123, parameters, [t * t % 4 for t in range(64)])
    defaults = DeepTreeOracle()
    defaults.reset(seed=123)
    assert len(defaults.context.entries) == 262_144
    assert len(defaults.context.starts) == 8
    assert (defaults.depth_limit, defaults.action_space.n, defaults.window) == (64, 4, 9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("width", [50, 5000])
def test_planted_actions_solve(seed, width):
    parameters = SMALL | {"width": width, "depth": 20}
    _, _, target, plans = expected_context(keys_of(seed)[0], **parameters)
    env = DeepTreeOracle(**parameters)
    reached = set()
    for episode in range(12):
        env.reset(seed=seed, options={"episode": episode})
        s = bounded(fold(keys_of(seed, episode)[1], 0), 2)
        for action in plans[s]:
            *_, terminated, _, info = env.step(action)
        assert terminated
        assert info["solved"]
        assert env.score >= target
        reached.add((s, env.score))
    assert {s for s, _ in reached} == {0, 1}
    assert min(score for _, score in reached) == target


def test_the_solution_hides_behind_the_worst_first_steps():
    env = DeepTreeOracle(width=100_000)
    for seed in range(20):
        env.reset(seed=seed)
        _, _, _, plans = expected_context(
            keys_of(seed)[0], width=1, fanout=4, depth=64, value_range=1, starts=8
        )
        s = bounded(fold(keys_of(seed)[1], 0), 8)
        rewards = [env.step(action)[1] for action in plans[s]]
        poor = rewards.index(1000)
        assert 1 <= poor <= 6
        assert rewards[:poor] == [-1000] * poor
        assert set(rewards[poor:]) <= {1000, -1000}


def test_window_repeats_the_last_entry_beyond_both_ends():
    env = DeepTreeOracle(**SMALL | {"window": 7})
    env.reset(seed=1)
    entries = env.context.entries / np.float32(5)
    env.position = 0
    first = [entries[0]] * 3 + entries[:4].tolist()
    np.testing.assert_array_equal(env.observe()[2:], np.array(first, np.float32))
    env.position = 10
    last = entries[-4:].tolist() + [entries[-1]] * 3
    np.testing.assert_array_equal(env.observe()[2:], np.array(last, np.float32))
    for position in range(11):
        env.position = position
        expected = entries[np.clip(np.arange(position - 3, position + 4), 0, 10)]
        np.testing.assert_array_equal(env.observe()[2:], expected)


def test_observations_are_the_callers():
    env = DeepTreeOracle(**SMALL)
    observation, _ = env.reset(seed=1)
    assert observation.base is None
    kept = observation.copy()
    env.step(0)
    np.testing.assert_array_equal(observation, kept)
    observation[:] = 9
    assert abs(env.observe()).max() <= 1
    assert abs(env.context.entries).max() <= 5


# Contexts


def test_context_is_immutable():
    env = DeepTreeOracle(**SMALL)
    env.reset(seed=1)
    context = env.context
    for kept in (context, pickle.loads(pickle.dumps(context)), copy.deepcopy(context)):
        assert (kept.starts, kept.target) == (context.starts, context.target)
        np.testing.assert_array_equal(kept.entries, context.entries)
        with pytest.raises(ValueError, match="read-only"):
            kept.entries[0] = 0
        with pytest.raises(AttributeError):
            kept.target = 0


def test_context_from_a_writeable_array_is_a_copy():
    row = np.arange(11, dtype=np.int16)
    context = DeepTreeContext(row, (0, 1), 3)
    row[0] = 99
    assert context.entries[0] == 0
    assert row.flags.writeable
    with pytest.raises(ValueError, match="int64 of shape"):
        DeepTreeContext(np.arange(11), (0,), 3)
    with pytest.raises(ValueError, match=r"shape \(1, 11\)"):
        DeepTreeContext(row[None], (0,), 3)


def test_context_can_be_given():
    env = DeepTreeOracle(**SMALL)
    context = DeepTreeContext(np.full(11, 5, np.int16), (4, 4), 20)
    env.reset(seed=1, options={"context": context})
    assert env.context is context
    assert env.position == 4
    for _ in range(4):
        *_, info = env.step(0)
    assert info == {"solved": True}
    with pytest.raises(ValueError, match="expected a DeepTreeContext"):
        env.reset(options={"context": context.entries})
    with pytest.raises(ValueError, match="11 entries and 2 starts; expected 12 and 2"):
        DeepTreeOracle(**SMALL | {"width": 12}).reset(options={"context": context})


# Copies


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env)), lambda env: env.fork()[0]],
    ids=["deepcopy", "pickle", "fork"],
)
def test_copies_go_on_alike_and_apart(copied):
    env = DeepTreeOracle(**SMALL)
    env.reset(seed=5)
    env.step(2)
    twin = copied(env)
    here = [env.step(1)[:4] for _ in range(3)]
    there = [twin.step(1)[:4] for _ in range(3)]
    for (a, *rest_a), (b, *rest_b) in zip(here, there, strict=True):
        np.testing.assert_array_equal(a, b)
        assert rest_a == rest_b


# Parameters


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"width": 0}, "`width` is 0; expected an int in 1 .. 2147483647"),
        ({"width": 2**31}, "`width` is 2147483648"),
        ({"width": 2.0}, "`width` is 2.0"),
        ({"fanout": 0}, "`fanout` is 0"),
        ({"depth": 0}, "`depth` is 0"),
        ({"value_range": 16384}, "`value_range` is 16384; expected an int in 1 .. 16383"),
        ({"depth": 131_081, "value_range": 16383}, "`depth` is 131081; .* 1 .. 131080"),
        ({"starts": 0}, "`starts` is 0"),
        ({"window": 4}, "`window` is 4; expected an odd number"),
        ({"window": -1}, "`window` is -1"),
        ({"render_mode": "human"}, "`render_mode` is 'human'"),
    ],
    ids=str,
)
def test_parameters_are_checked(change, text):
    with pytest.raises(ValueError, match=text):
        DeepTreeOracle(**SMALL | change)


# Gymnasium


@pytest.mark.parametrize("render_mode", [None, "rgb_array", "ansi"])
def test_check_env(render_mode):
    env = DeepTreeOracle(width=1000, depth=8, render_mode=render_mode)
    env.spec = EnvSpec(
        "branchrt/DeepTreeChecked-v0",
        entry_point="branchrt_gym.envs.deep_tree_oracle:DeepTreeOracle",
        kwargs={"width": 1000, "depth": 8},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=False)


def test_check_env_at_the_smallest_size():
    env = DeepTreeOracle(width=1, fanout=1, depth=1, value_range=1, starts=1, window=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


# Pictures


def test_no_picture_without_a_mode_or_before_a_reset():
    env = DeepTreeOracle(**SMALL)
    env.reset(seed=1)
    assert env.render() is None
    for mode in ("rgb_array", "ansi"):
        with pytest.raises(NotResetError, match="reset"):
            DeepTreeOracle(**SMALL, render_mode=mode).render()


def test_pictures_follow_the_branch():
    env = DeepTreeOracle(**SMALL, render_mode="rgb_array")
    env.reset(seed=1)
    frames = [env.render()]
    for _ in range(4):
        env.step(1)
        frames.append(env.render())
    for frame in frames:
        assert (frame.shape, frame.dtype) == (FRAME_SHAPE, np.uint8)
        assert frame.flags.owndata
    assert len({frame.tobytes() for frame in frames}) == 5
    np.testing.assert_array_equal(env.render(), frames[-1])


@pytest.mark.parametrize("width", [1, 2, 57, 58, 1000])
@pytest.mark.parametrize("value_range", [1, 16383])
def test_pictures_at_the_edges(width, value_range):
    row = np.full(width, -value_range, np.int16)
    row[::2] = value_range
    extreme = 3 * value_range
    for position in {0, width // 2, width - 1}:
        for score in (-extreme, 0, extreme):
            for target in (-extreme, 0, extreme):
                kwargs = dict(depth_limit=3, value_range=value_range, target=target)
                assert draw(row, position, score, 3, **kwargs).shape == FRAME_SHAPE
                assert f"[{row[position]}]" in text(row, position, score, 3, **kwargs)
    np.testing.assert_array_equal(np.abs(row), value_range)


def test_largest_numbers_fit_the_picture():
    row = np.zeros(3, np.int16)
    huge = 2**31 - 1
    kwargs = dict(depth_limit=huge, value_range=1, target=-huge)
    assert draw(row, 1, -huge, huge, **kwargs).shape == FRAME_SHAPE


def test_text():
    row = np.arange(-3, 8, dtype=np.int16)
    kwargs = dict(depth_limit=8, value_range=9, target=-2)
    assert text(row, 2, -3, 2, **kwargs).splitlines() == [
        "depth 2/8 |########........................|",
        "score -3, target -2",
        "at 2:     -3      -2     [-1]      0       1       2       3 ",
    ]
    assert text(row, 10, -2, 8, **kwargs).splitlines() == [
        "depth 8/8 |################################|",
        "score -2, target -2, reached",
        "at 10:      3       4       5       6      [7]",
    ]
