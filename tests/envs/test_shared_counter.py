"""SharedCounter: the oracle against its rules written out again, batched = scalar, the contract."""

import copy
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym import Beam, BranchingVectorEnv, make_roots, registry, search
from branchrt_gym.certify import certify, rows
from branchrt_gym.envs.shared_counter import SharedCounter
from branchrt_gym.envs.shared_counter_oracle import SharedCounterContext, SharedCounterOracle
from branchrt_gym.errors import NotResetError
from branchrt_gym.oracle import context_key, episode_key, fold

M32 = 2**32
SMALL = dict(width=13, actions=3, depth=9, target=3)


@pytest.fixture(autouse=True)
def one_thread():
    """These tensors are small: threads do not help, and wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def mix(x):
    x = (x ^ (x // 2**16)) * 0x7FEB352D % M32
    x = (x ^ (x // 2**15)) * 0x846CA68B % M32
    return x ^ (x // 2**16)


def signed(x):
    return x - M32 if x >= M32 // 2 else x


def entry(key, place):
    return mix((mix((place + key % M32) % M32) + key // M32) % M32)


def goal(key):
    return (fold(key, 0) // M32) * 8 // M32


def assert_episode_follows_the_rules(seed, parameters, actions):
    width, depth, target = (parameters[name] for name in ("width", "depth", "target"))
    run = -(-width * parameters.get("mutation", 0) // 100)
    key = context_key(seed)
    env = SharedCounterOracle(**parameters)
    observation, info = env.reset(seed=seed)
    assert env.context.goal == goal(key)
    counter, score = fold(episode_key(seed, 0), 0) % M32, 0
    own = {}  # what the branch has written
    assert info == {"solved": False}
    for t in range(depth):
        place = counter * width // M32
        here = own.get(place, entry(key, place))
        seen = np.array([goal(key), signed(counter), signed(here), score, t], np.int32)
        np.testing.assert_array_equal(observation, seen, strict=True)
        counter = ((counter + actions[t]) * 0x9E3779B1 + here) % M32
        gain = int(counter // 2**29 == goal(key))
        score += gain
        first = mix(counter) * (width - run + 1) // M32
        own |= {i: mix((i * 0x9E3779B1 + counter) % M32) for i in range(first, first + run)}
        observation, reward, terminated, truncated, info = env.step(actions[t])
        solved = score == target
        assert (reward, terminated, truncated) == (gain, solved, t + 1 == depth and not solved)
        assert info == {"solved": solved}
        assert observation in env.observation_space
        if solved:
            break


# The oracle's rules


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    parameters=st.fixed_dictionaries(
        {
            "width": st.integers(1, 300),
            "actions": st.sampled_from([1, 2, 4, 2**31 - 1]),
            "depth": st.integers(1, 20),
            "target": st.integers(1, 5),
            "mutation": st.sampled_from([0, 0, 1, 5, 30, 99, 100]),
        }
    ),
    data=st.data(),
)
def test_random_episodes(seed, parameters, data):
    action = st.integers(0, parameters["actions"] - 1)
    depth = parameters["depth"]
    actions = data.draw(st.lists(action, min_size=depth, max_size=depth))
    assert_episode_follows_the_rules(seed, parameters, actions)


def test_full_size():
    parameters = dict(width=65_536, actions=4, depth=32, target=20)
    assert_episode_follows_the_rules(11, parameters, [t * t % 4 for t in range(32)])
    env = SharedCounterOracle()
    env.reset(seed=11)
    assert len(env.context.table) == 65_536
    assert (env.actions, env.depth_limit, env.target) == (4, 32, 20)


def test_the_table_is_hashed():
    for seed in (0, 5, 2**63 - 1):
        env = SharedCounterOracle(width=1000)
        env.reset(seed=seed)
        assert env.context.table.tolist() == [
            signed(entry(context_key(seed), i)) for i in range(1000)
        ]


def test_scores_by_luck_and_by_search():
    """What the docstring says of the difficulty."""
    env = SharedCounter(target=99)
    roots = make_roots(env, range(300), num_contexts=1)
    scores = {
        width: search(env, roots, Beam(width), depth=32).score.view(300, -1).amax(1).double()
        for width in (1, 4)
    }
    assert 15 < scores[1].mean() < 17
    assert 21 < scores[4].mean() < 24
    oracle, chance, total = SharedCounterOracle(), np.random.default_rng(0), 0
    oracle.reset(seed=1)
    for _ in range(300):
        oracle.reset()
        total += sum(oracle.step(int(action))[1] for action in chance.integers(0, 4, 32))
    assert 3.5 < total / 300 < 4.5


# Contexts and the rest of the scalar contract


def test_contexts_are_shared_and_checked():
    env = SharedCounterOracle(**SMALL)
    env.reset(seed=1)
    context = env.context
    assert not context.table.flags.writeable
    env.reset()
    assert env.context is context
    child, other = env.fork(2)
    assert child.context is other.context is context
    twin = copy.deepcopy(env)
    assert twin.context is context
    again = pickle.loads(pickle.dumps(env))
    assert again.context.goal == context.goal
    assert np.array_equal(again.context.table, context.table)
    assert not again.context.table.flags.writeable
    given = SharedCounterContext(np.arange(13, dtype=np.int32), 2)
    env.reset(seed=4, options={"context": given})
    assert env.context is given
    with pytest.raises(ValueError, match="`context` is a dict"):
        env.reset(options={"context": {}})
    with pytest.raises(ValueError, match="`context` has 5 entries; expected 13"):
        env.reset(options={"context": SharedCounterContext(np.zeros(5, np.int32), 0)})
    with pytest.raises(ValueError, match="`table` is int64"):
        SharedCounterContext(np.arange(13), 2)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("value", [0, -1, 2**31])
@pytest.mark.parametrize("made", [SharedCounter, SharedCounterOracle])
def test_parameters_out_of_range(made, name, value):
    with pytest.raises(ValueError, match=f"`{name}` is {value}; expected"):
        made(**{name: value})


@pytest.mark.parametrize("value", [-1, 101])
@pytest.mark.parametrize("made", [SharedCounter, SharedCounterOracle])
def test_mutation_out_of_range(made, value):
    with pytest.raises(ValueError, match=f"`mutation` is {value}; expected"):
        made(mutation=value)


def test_render_is_refused():
    with pytest.raises(ValueError, match="`render_mode` is 'human'"):
        SharedCounterOracle(render_mode="human")
    with pytest.raises(NotResetError):
        SharedCounterOracle(render_mode="ansi").render()
    env = SharedCounterOracle(**SMALL)
    env.reset(seed=1)
    assert env.render() is None


@pytest.mark.parametrize("parameters", [SMALL, {}], ids=["small", "full"])
def test_gymnasiums_checker(parameters):
    env = SharedCounterOracle(**parameters, render_mode="rgb_array")
    env.spec = EnvSpec("Checked-v0", entry_point=SharedCounterOracle, kwargs=parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


# The batched rules


@pytest.mark.parametrize("width", [1, 13, 20_000])
def test_shared_fields_are_the_oracles_contexts(width):
    env = SharedCounter(width=width)
    keys = [context_key(seed) for seed in (0, 7, 2**63 - 1)]
    words = torch.from_numpy(np.array(keys, np.uint64).view(np.int64))
    shared = env.initial_shared(words)
    for row, key in enumerate(keys):
        context = SharedCounterOracle(width=width).make_context(key)
        assert np.array_equal(shared["table"][row].numpy(), context.table)
        assert shared["goal"][row] == context.goal


@pytest.mark.parametrize(
    "parameters",
    [
        SMALL,
        {},
        dict(width=1, actions=1, depth=1, target=1),
        dict(actions=2**31 - 1, depth=4),
        SMALL | {"mutation": 20},
        dict(width=1000, mutation=5),
    ],
    ids=str,
)
def test_a_vector_env_equals_oracles_through_restarts(parameters):
    slots, contexts = 24, 24
    envs = BranchingVectorEnv(SharedCounter(**parameters), slots, num_contexts=contexts)
    models = [SharedCounterOracle(**parameters) for _ in range(slots)]
    most = parameters.get("actions", 4)
    actions = np.random.default_rng(1).integers(0, most, (80, slots))
    seen, _ = envs.reset(seed=40)
    wanted = np.stack([model.reset(seed=40 + i)[0] for i, model in enumerate(models)])
    made = [model.context for model in models]
    np.testing.assert_array_equal(seen, wanted, strict=True)
    for row in actions:
        seen, reward, terminated, truncated, info = envs.step(row)
        for slot, model in enumerate(models):
            outcome = reward[slot], terminated[slot], truncated[slot], info["solved"][slot]
            if model.live:
                wanted[slot], *rest, more = model.step(int(row[slot]))
                assert outcome == (*rest, more["solved"])
            else:
                context = made[int(envs.frontier.context_index[slot])]
                wanted[slot], _ = model.reset(options={"context": context})
                assert outcome == (0, False, False, False)
        np.testing.assert_array_equal(seen, wanted, strict=True)


def test_without_mutation_nothing_is_paged():
    rules = SharedCounter()
    assert rules.contract.hash == "66cc1b144d029247"  # as in 0.1.0, so that its files load
    assert not rules.contract.of("paged")
    hooks = ("transition_kernel", "initial_kernel", "observation_kernel")
    for hook in hooks:
        assert getattr(SharedCounter(mutation=1), hook)(torch.device("cpu")) is None
    assert list(SharedCounter(mutation=1).contract.of("paged")) == ["own"]


@pytest.mark.parametrize("mutation", [1, 5, 100])
def test_forked_tables_equal_the_oracles(mutation):
    """Siblings write to tables of their own, through pages; all of each is compared."""
    parameters = dict(width=1000, depth=12, target=13, mutation=mutation)
    chance, slots = np.random.default_rng(3), 16
    envs = BranchingVectorEnv(
        SharedCounter(**parameters), slots, num_roots=2, autoreset_mode=AutoresetMode.DISABLED
    )
    envs.reset(seed=9)
    models = [SharedCounterOracle(**parameters) for _ in range(2)]
    for root, model in enumerate(models):
        model.reset(seed=9 + root)
    own, everything = None, torch.arange(1000).expand(slots, -1)
    for step in range(12):
        if step in (0, 2, 5):
            count = len(models)
            envs.fork(np.arange(count))
            models += [model.fork()[0] for model in models]
        envs.step(actions := chance.integers(0, 4, slots))
        own = envs.frontier.branches().pages["own"].read(everything).numpy()
        for slot, model in enumerate(models):
            model.step(int(actions[slot]))
            np.testing.assert_array_equal(own[slot], model.own, strict=True)
    assert len(models) == slots
    assert len(np.unique(own, axis=0)) == slots


def test_forks_share_a_table_that_they_did_not_write():
    env = SharedCounterOracle(**SMALL, mutation=20)
    env.reset(seed=1)
    env.step(1)
    before = env.own.copy()
    child, other = env.fork(2)
    assert child.own is other.own is env.own
    child.step(2)
    assert not np.array_equal(child.own, before)
    assert np.array_equal(env.own, before)
    twin = copy.deepcopy(env)
    assert np.array_equal(pickle.loads(pickle.dumps(env)).own, before)
    assert np.array_equal(twin.own, before)


@pytest.mark.parametrize("mode", ["rgb_array", "ansi"])
def test_both_draw_the_same(mode):
    parameters = SMALL | {"actions": 4}
    envs = BranchingVectorEnv(
        SharedCounter(**parameters),
        12,
        num_contexts=12,
        autoreset_mode=AutoresetMode.DISABLED,
        render_mode=mode,
    )
    models = [SharedCounterOracle(**parameters, render_mode=mode) for _ in range(12)]
    envs.reset(seed=50)
    for slot, model in enumerate(models):
        model.reset(seed=50 + slot)
    drawn = set()
    for step in range(9):
        for frame, model in zip(envs.render(), models, strict=True):
            assert np.array_equal(frame, model.render())
            drawn.add(frame.tobytes() if mode == "rgb_array" else frame)
        envs.step(np.full(12, step % 4))
        for model in models:
            if model.live:
                model.step(step % 4)
    assert len(drawn) > 60


def test_what_a_text_says():
    env = SharedCounterOracle(**SMALL, render_mode="ansi")
    env.reset(seed=1)
    env.counter, env.score, env.depth = 0xA0000001, 3, 9
    lines = env.render().splitlines()
    assert lines[0] == f"depth 9/9 |{'#' * 32}|"
    assert lines[1].startswith("counter a0000001 [")
    assert lines[1][18 + 5] in "x#"
    assert lines[2] == "score 3, target 3, reached"


def test_certified(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRATIONS", {})
    name = "test/SharedCounter-v0"
    try:
        registry.register(
            name,
            SharedCounter,
            SharedCounterOracle,
            matrix={
                "width": (1, 97, 4096),
                "actions": (1, 2, 4),
                "depth": (1, 5, 32),
                "target": (1, 3, 20),
                "mutation": (0, 5, 100),
            },
        )
        chosen = rows(registry.registrations()[name])[::10]
        certificate = certify(name, rows=chosen)
    finally:
        gymnasium.registry.pop(name, None)
    assert certificate.first_difference is None
    assert certificate.ok
    assert len(certificate.rows) >= 12
