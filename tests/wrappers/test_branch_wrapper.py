"""BranchWrapper: luck, restores, refusals, and what it is as a Gymnasium wrapper."""

import os
import pickle
import random
import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from driving import begin, bits, follow, needs
from gymnasium import wrappers as W
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils import EzPickle
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from branchrt_gym.envs.deep_tree_oracle import DeepTreeOracle
from branchrt_gym.errors import SnapshotUnsupportedError
from branchrt_gym.oracle import child_key, episode_key
from branchrt_gym.wrappers.branch_wrapper import BranchVectorWrapper, BranchWrapper
from branchrt_gym.wrappers.snapshots import choose


class Lucky(gymnasium.Env[np.ndarray, int]):
    """Draws from every kind of random source; `part` is whatever a test puts in."""

    def __init__(self, part: Any = None) -> None:
        self.observation_space = Box(0, 1, (6,), np.float64)
        self.action_space = Discrete(3)
        self.part = part
        self.own = random.Random(1)
        self.legacy = np.random.RandomState(2)
        self.torch = torch.Generator().manual_seed(3)
        self.philox = np.random.Generator(np.random.Philox(4))
        self.draw = np.random.default_rng(5).random  # a method of a C object

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: int) -> Any:
        return self._draw(), float(action), False, False, {}

    def _draw(self) -> np.ndarray:
        return np.array(
            [
                self.np_random.random(),
                self.own.random(),
                self.legacy.standard_normal(),
                torch.rand((), generator=self.torch).item(),
                self.philox.random(),
                self.draw(),
            ]
        )


def lucky(part: Any = None) -> BranchWrapper[Any, Any]:
    env = BranchWrapper(Lucky(part))
    env.reset(seed=7)
    env.action_space.seed(7)
    return env


def futures(envs: list[Any], steps: int = 5) -> list[Any]:
    return [follow(env, [0] * steps) for env in envs]


def test_shared_luck_is_the_same_in_every_source() -> None:
    env = lucky()
    env.step(0)
    left, right = env.fork(2, rng="shared")
    assert futures([left]) == futures([right]) == futures([env])


def test_split_luck_differs_in_every_source() -> None:
    env = lucky()
    envs = [env, *env.fork(4)]
    drawn = np.stack([e.step(0)[0] for e in envs])
    assert all(len(set(drawn[:, i])) == 5 for i in range(6))
    assert len({e.action_space.sample() * 9 + e.action_space.sample() for e in envs}) > 1


def test_generators_that_spawn_others() -> None:
    """How often a generator spawned is part of its state."""

    def spawned(env: Any) -> list[Any]:
        sources = (env.unwrapped.np_random, env.unwrapped.philox)
        return [bits(child.random(3)) for source in sources for child in source.spawn(2)]

    env = lucky()
    child = env.fork(1)[0]
    for each in (env, child):
        spawned(each)
        twin = each.fork(1, rng="shared")[0]
        before = spawned(twin)
        assert before == spawned(each) != spawned(each)
    assert spawned(child) != spawned(env)
    assert bits(pickle.loads(pickle.dumps(child.unwrapped.np_random)).random(9)) == bits(
        child.unwrapped.np_random.random(9)
    )


def test_split_leaves_the_parent_its_luck() -> None:
    env, untouched = lucky(), lucky()
    env.fork(3)
    assert futures([env]) == futures([untouched])


def test_split_luck_comes_from_the_ancestry_alone() -> None:
    def family() -> list[Any]:
        env = lucky()
        first = env.fork(2)
        env.step(1)
        second = env.fork(1)
        return [*first, *second, *first[1].fork(2)]

    one, other = family(), family()
    assert [e.key for e in one] == [e.key for e in other]
    assert len({e.key for e in one}) == 5
    assert one[1].key == child_key(episode_key(7, 0), 0, 1)
    assert one[2].key == child_key(episode_key(7, 0), 1, 0)
    reverse = futures(list(reversed(other)))  # the order of stepping does not matter
    assert futures(one) == list(reversed(reverse))


def test_shared_children_fork_as_their_parent() -> None:
    env = lucky()
    child = env.fork(1, rng="shared")[0]
    assert child.fork(1)[0].key == env.fork(1)[0].key
    assert child.fork(1)[0].key != env.key


def test_an_episode_that_no_seed_starts_has_a_key_of_its_own() -> None:
    env = lucky()
    keys = [env.key]
    for _ in range(2):
        env.reset()
        keys.append(env.key)
    assert keys == [episode_key(7, episode) for episode in range(3)]
    left, right = env.fork(2)
    left.reset(), right.reset()
    assert len({left.key, right.key, *keys}) == 5


def test_snapshot_is_independent_and_restores_any_number_of_times() -> None:
    env = lucky()
    snapshot = env.snapshot()
    key = env.fork(1)[0].key
    truth = futures([env])
    for _ in range(3):
        env.restore(snapshot)
        assert env.fork(1)[0].key == key
        assert futures([env]) == truth


def test_restored_observation_is_its_own() -> None:
    env = lucky()
    snapshot = env.snapshot()
    env.restore(snapshot)[:] = 5
    snapshot.observation[:] = 5
    assert env.restore(snapshot).max() < 5


def test_an_observation_that_is_the_state_itself_stays_it() -> None:
    class Buffer(gymnasium.Env[Any, Any]):
        def __init__(self) -> None:
            self.observation_space = Box(0, 9, (2,), np.float64)
            self.action_space = Discrete(2)
            self.both = np.zeros(4)
            self.seen = self.both[1:3]  # a view

        def reset(self, **_: Any) -> Any:
            self.both[:] = 0
            return self.seen, {}

        def step(self, action: Any) -> Any:
            self.both += action
            return self.seen, 0.0, False, False, {}

    env = BranchWrapper(Buffer())
    env.reset()
    snapshot = env.snapshot()
    child = env.fork(1)[0]
    child.step(1)
    assert child.observation.tolist() == child.unwrapped.seen.tolist() == [1, 1]
    assert np.shares_memory(child.unwrapped.both, child.unwrapped.seen)
    assert env.observation.tolist() == [0, 0]
    env.step(1)
    assert env.restore(snapshot).tolist() == [0, 0]


def test_layers_stay_the_objects_they_are() -> None:
    env = BranchWrapper(W.TimeAwareObservation(gymnasium.make("CartPole-v1")))
    env.reset(seed=1)
    inner, outer = env.unwrapped, env.env
    snapshot = env.snapshot()
    env.step(0)
    env.restore(snapshot)
    assert env.unwrapped is inner
    assert env.env is outer


def test_what_does_not_change_is_shared() -> None:
    env = BranchWrapper(gymnasium.make("FrozenLake-v1"))
    env.reset(seed=1)
    child = env.fork(1)[0].unwrapped
    assert child.P is env.unwrapped.P
    assert child.spec is env.unwrapped.spec


def test_share_by_name_and_by_object() -> None:
    table, other = {"a": [1]}, [2]
    env = BranchWrapper(Lucky((table, other)), share=[table])
    child = env.fork(1)[0].unwrapped
    assert child.part[0] is table
    assert child.part[1] is not other
    env = BranchWrapper(Lucky(table), share=["part"])
    assert env.fork(1)[0].unwrapped.part is table


@dataclass(slots=True)
class Slots:
    held: list[int]


Pair = namedtuple("Pair", "left right")

ALIASES = {
    "list": lambda: [[1]] * 2,
    "dict": lambda: (lambda x: {"a": x, "b": x})([1]),
    "tuple": lambda: ([1],) * 2,
    "deque": lambda: deque([[1]] * 2, maxlen=3),
    "objects": lambda: np.array([[1], [2], None], dtype=object),
    "proxy": lambda: MappingProxyType({"a": [1]}),
    "slots": lambda: Slots([1]),
    "named tuple": lambda: Pair([1], 2),
    "ordered": lambda: OrderedDict(a=[1]),
    "default": lambda: defaultdict(list, {1: [2]}),
    "partial": lambda: partial(np.add, np.zeros(2)),
    "tensors": lambda: (lambda t: (t, t[1:3]))(torch.zeros(4)),
    "masked": lambda: np.ma.masked_array([1, 2], [0, 1]),
    "record": lambda: np.zeros(2, "i4,f4")[0],
    "set": lambda: {(1, 2), 3},
    "dict of spaces": lambda: Dict(a=Box(0, 1, (2,))),
}


@pytest.mark.parametrize("kind", ALIASES)
def test_containers_are_copied_and_stay_what_they_are(kind: str) -> None:
    part = ALIASES[kind]()
    twin = lucky(part).fork(1)[0].unwrapped.part
    assert type(twin) is type(part)
    assert str(twin) == str(part)
    assert twin is not part
    if kind in ("list", "tuple", "deque"):
        assert twin[0] is twin[1]
        assert twin[0] is not part[0]


def test_the_order_of_a_set_is_state() -> None:
    many = set(range(0, 9000, 7))
    assert list(lucky(many).fork(1)[0].unwrapped.part) == list(many)
    few = set(range(0, 9000, 7))
    few -= set(range(90, 9000))
    few |= {4096, 64}
    env = lucky()
    env.unwrapped.part = few
    try:
        twin = env.fork(1)[0].unwrapped.part
    except SnapshotUnsupportedError as error:
        assert "order of iteration" in str(error)
    else:
        assert list(twin) == list(few)


def test_things_that_hold_themselves() -> None:
    part: list[Any] = [[]]
    part[0].append(part)
    part.append((part,))
    twin = lucky(part).fork(1)[0].unwrapped.part
    assert twin is not part
    assert twin[0][0] is twin
    assert twin[1][0] is twin


def test_methods_and_references_lead_to_the_copy() -> None:
    class Part:
        def ask(self) -> Any:
            return self

    part = Part()
    env = lucky([part, part.ask, weakref.ref(part)])
    twin = env.fork(1)[0].unwrapped.part
    assert twin[0] is not part
    assert twin[1]() is twin[0]
    assert twin[2]() is twin[0]


def reading_a_global() -> Any:
    return THE_ENV.unwrapped.np_random.bit_generator.state["state"]["state"] % 1000


THE_ENV: Any = None


@pytest.mark.parametrize("through", ["itself", "another function", "a default"])
def test_functions_that_read_a_global_environment(through: str) -> None:
    """As in a script: `env = TransformObservation(env, lambda o: f(env.state), None)`."""
    global THE_ENV
    inner = Lucky()
    if through == "a default":
        function = lambda o, env=inner: o + env.own.getstate()[1][5]  # noqa: E731
    elif through == "itself":
        function = lambda o: o + THE_ENV.unwrapped.own.getstate()[1][5]  # noqa: E731
    else:
        function = lambda o: o + reading_a_global()  # noqa: E731
    env = BranchWrapper(W.TransformObservation(inner, function, None))
    THE_ENV = env
    env.reset(seed=3)
    env.action_space.seed(3)
    child = env.fork(1, rng="shared")[0]
    futures([env], 700)  # far on, so that a child that reads the original's state differs
    one = child.fork(1, rng="shared")[0]
    future = futures([child])
    futures([env], 3)
    assert futures([one]) == future
    assert THE_ENV is env


def test_forks_of_an_environment_that_was_never_seeded() -> None:
    env = BranchWrapper(Lucky())
    child = env.fork(1, rng="shared")[0]
    assert bits(child.reset()[0]) == bits(env.reset()[0])


def test_an_oracle_is_forked_as_it_forks_itself() -> None:
    env = BranchWrapper(DeepTreeOracle(width=97, fanout=3, depth=5))
    alone = DeepTreeOracle(width=97, fanout=3, depth=5)
    env.reset(seed=4), alone.reset(seed=4)
    child, theirs = env.fork(1)[0], alone.fork(1)[0]
    assert child.unwrapped.key == theirs.key
    assert child.unwrapped.context is env.unwrapped.context
    for action in (0, 1, 2):
        assert bits(child.step(action)) == bits(theirs.step(action))


class Kept(gymnasium.Env[Any, Any]):
    """State beyond Python, in a table by number; with the calls to save it."""

    states: dict[int, int] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = Box(0, 999, (1,), np.int64)
        self.action_space = Discrete(2)
        self.number = len(self.states)
        self.states[self.number] = 0
        self.lock = threading.Lock()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.states[self.number] = 0
        return np.array([0]), {}

    def step(self, action: Any) -> Any:
        self.states[self.number] += int(action) + int(self.np_random.integers(5))
        return np.array([self.states[self.number]]), 0.0, False, False, {}

    def get_branch_state(self) -> Any:
        return self.states[self.number], self.np_random.bit_generator.state

    def set_branch_state(self, state: Any) -> None:
        self.states[self.number] = state[0]
        self.np_random.bit_generator.state = state[1]


gymnasium.register("branchrt-test/Kept-v0", Kept)


def test_an_environments_own_protocol() -> None:
    from driving import check_exact

    check_exact(lambda: gymnasium.make("branchrt-test/Kept-v0"), BranchWrapper, "own")
    env = BranchWrapper(gymnasium.make("branchrt-test/Kept-v0"))
    begin(env)
    one, two = env.fork(2)
    assert follow(one, [0] * 20) != follow(two, [0] * 20)


REFUSED = {
    "a lock": lambda: threading.Lock(),
    "a thread": lambda: threading.Thread(target=print),
    "a generator": lambda: (i for i in range(3)),
    "a file": lambda: open(os.devnull),
    "a socket": lambda: socket.socket(),
    "a process": lambda: subprocess.Popen([sys.executable, "-c", ""]),
    "a finaliser": lambda: Owner(),
}


class Owner:
    def __del__(self) -> None:
        pass


@pytest.mark.parametrize("kind", REFUSED)
def test_refusals_name_the_attribute(kind: str) -> None:
    part = REFUSED[kind]()
    with pytest.raises(SnapshotUnsupportedError, match=r"`Lucky\.part\['x'\]\[1\]` (is a|runs)"):
        BranchWrapper(Lucky({"x": [0, part]}))
    assert BranchWrapper(Lucky(part), share=[part]).snapshot_provider == "structural"
    if kind == "a process":
        part.wait()
    elif hasattr(part, "close"):
        part.close()


class Slotted(Lucky):
    __slots__ = ("hidden",)

    def step(self, action: int) -> Any:
        self.hidden = getattr(self, "hidden", 0) + 1
        return np.full(6, self.hidden / 99), 0.0, False, False, {}


def test_slots_are_state_too() -> None:
    env = BranchWrapper(Slotted())
    env.reset(seed=1)
    env.action_space.seed(1)
    env.step(0)
    child = env.fork(1, rng="shared")[0]
    assert futures([child]) == futures([env])


def test_an_ez_pickle_is_never_made_again_in_place_of_a_copy() -> None:
    class Part(EzPickle):
        __slots__ = ("count",)

    part = Part()
    part.count = 3
    with pytest.raises(SnapshotUnsupportedError, match="pickles without its state"):
        BranchWrapper(Lucky(part))


def test_refusal_at_a_fork_changes_nothing() -> None:
    env = lucky()
    untouched = lucky()
    env.unwrapped.part = threading.Lock()
    with pytest.raises(SnapshotUnsupportedError, match=r"`Lucky\.part` is a lock"):
        env.fork(1)
    with pytest.raises(SnapshotUnsupportedError, match="lock"):
        env.snapshot()
    env.unwrapped.part = None
    assert env.fork(1)[0].key == untouched.fork(1)[0].key
    assert futures([env]) == futures([untouched])


def test_what_comes_with_the_first_reset_is_seen_then() -> None:
    class Late(Lucky):
        def reset(self, **kwargs: Any) -> Any:
            self.part = threading.Lock()
            return super().reset(**kwargs)

    env = BranchWrapper(Late())
    with pytest.raises(SnapshotUnsupportedError, match=r"`Late\.part` is a lock"):
        env.reset(seed=1)


def test_async_vector_environments_are_refused() -> None:
    envs = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    try:
        with pytest.raises(SnapshotUnsupportedError, match=r"`AsyncVectorEnv` .* processes"):
            BranchVectorWrapper(envs)
        with pytest.raises(SnapshotUnsupportedError, match=r"`AsyncVectorEnv` .* processes"):
            BranchVectorWrapper(W.vector.RecordEpisodeStatistics(envs))
    finally:
        envs.close()


def test_atari_vector_environments_are_refused() -> None:
    needs("ale_py")
    from ale_py.vector_env import AtariVectorEnv

    envs = AtariVectorEnv("pong", num_envs=1)
    with pytest.raises(SnapshotUnsupportedError, match=r"`AtariVectorEnv` .* C\+\+ threads"):
        BranchVectorWrapper(envs)


def test_a_vector_environment_has_a_wrapper_of_its_own() -> None:
    with pytest.raises(TypeError, match="BranchVectorWrapper"):
        BranchWrapper(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]))  # type: ignore[arg-type]


def test_a_provider_by_name() -> None:
    env = gymnasium.make("CartPole-v1")
    assert BranchWrapper(env, provider="structural").snapshot_provider == "structural"
    with pytest.raises(ValueError, match="`provider` is 'magic'; expected one of own, mujoco"):
        BranchWrapper(env, provider="magic")
    with pytest.raises(SnapshotUnsupportedError, match="it is no environment of"):
        BranchWrapper(env, provider="atari")
    assert choose(env).name == "structural"


@pytest.mark.parametrize(("n", "rng"), [(0, "split"), (-1, "shared"), (1, "both")])
def test_fork_refuses(n: int, rng: Any) -> None:
    env = lucky()
    with pytest.raises(ValueError, match=r"`n`|`rng`"):
        env.fork(n, rng=rng)


def test_restore_refuses_what_is_of_another_environment() -> None:
    cart, lake = (BranchWrapper(gymnasium.make(i)) for i in ("CartPole-v1", "FrozenLake-v1"))
    cart.reset(seed=1), lake.reset(seed=1)
    state = bits(cart.unwrapped.state)
    with pytest.raises(ValueError, match="of the same layers"):
        cart.restore(lake.snapshot())
    with pytest.raises(TypeError, match="`snapshot` is int"):
        cart.restore(3)  # type: ignore[arg-type]
    replay = BranchWrapper(gymnasium.make("CartPole-v1"), provider="replay")
    with pytest.raises(ValueError, match="'replay'"):
        cart.restore(replay.snapshot())
    assert bits(cart.unwrapped.state) == state


def test_snapshots_pickle_with_their_state() -> None:
    def make() -> Any:
        env = gymnasium.make("CartPole-v1")
        return BranchWrapper(W.TransformObservation(env, lambda o: o + env.unwrapped.state, None))

    env, other = make(), make()
    actions = begin(env)
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    truth = follow(env, actions)
    other.reset(seed=1)
    other.restore(snapshot)
    assert follow(other, actions) == truth


def test_it_is_a_gymnasium_wrapper() -> None:
    from gymnasium.utils.env_checker import check_env

    env = BranchWrapper(gymnasium.make("CartPole-v1"))
    assert gymnasium.make(env.spec).snapshot_provider == "structural"
    check_env(env.fork(1)[0], skip_render_check=True)
    env.close()


def test_no_memory_is_left_behind() -> None:
    import gc

    env = BranchWrapper(gymnasium.make("CartPole-v1"))
    env.reset(seed=1)
    children = [weakref.ref(child.unwrapped) for child in env.fork(5)]
    gc.collect()
    assert not any(ref() for ref in children)
