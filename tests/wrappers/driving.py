"""Drives environments on fixed actions and writes down, bit for bit, all that they show."""

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

BEFORE, AFTER = 37, 200


def bits(value: Any) -> Any:
    """A value as plain Python that is equal only where all bits and types are."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return ("array", value.shape, [bits(item) for item in value.ravel()])
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ("array", value.dtype.str, value.shape, digest)
    if isinstance(value, np.generic):
        return (type(value).__name__, value.tobytes())
    if isinstance(value, Mapping):
        # The seconds of an episode on the clock are the one thing that no copy can repeat.
        return {k: bits(v) for k, v in value.items() if k not in ("t", "_t")}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(bits, value)]
    if type(value).__module__.startswith("torch"):
        return ("tensor", bits(value.numpy()))
    return (type(value).__name__, repr(value))


def luck(env: Any) -> Any:
    inner = env.unwrapped
    sources = [inner] if not hasattr(inner, "envs") else [inner, *(e.unwrapped for e in inner.envs)]
    return [
        bits(s._np_random.bit_generator.state) if s._np_random is not None else None
        for s in sources
    ]


def follow(env: Any, actions: list[Any], render: bool = False) -> list[Any]:
    """Steps with resets that are not seeded; returns all that was seen, luck included."""
    seen = []
    single = not isinstance(env, VectorEnv)
    for action in actions:
        result = env.step(action)
        seen.append([*map(bits, result), luck(env), bits(env.action_space.sample())])
        if render:
            seen[-1].append(bits(env.render()))
        if single and (result[2] or result[3]):
            seen.append([*map(bits, env.reset()), luck(env)])
    return seen


def begin(env: Any, seed: int = 123, steps: int = BEFORE) -> list[Any]:
    """Resets and steps; returns the actions for what follows, the same for each environment."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    actions = actions_of(env, steps + AFTER)
    follow(env, actions[:steps])
    return actions[steps:]


def actions_of(env: Any, count: int, seed: int = 9) -> list[Any]:
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def check_exact(
    make: Callable[[], Any],
    branching: Callable[[Any], Any],
    provider: str,
    *,
    steps: int = BEFORE,
    after: int = AFTER,
    render: bool = False,
) -> None:
    """Fork, snapshot and restore against an environment that no one touched."""
    untouched, subject = make(), branching(make())
    actions = begin(subject, steps=steps)[:after]
    begin(untouched, steps=steps)
    if render:
        subject.render(), untouched.render()
    truth = follow(untouched, actions, render)

    snapshot = subject.snapshot()
    shared, again = subject.fork(2, rng="shared")
    assert subject.snapshot_provider == provider
    split = subject.fork(1)[0]
    for twin in (shared, again, split):
        assert bits(twin.observation) == bits(subject.observation)
        assert type(twin.unwrapped) is type(subject.unwrapped)
        assert twin.unwrapped is not subject.unwrapped
    first = bits(subject.observation)
    follow(split, actions[:20])
    assert follow(shared, actions, render) == truth, "a copy differs"
    assert follow(subject, actions, render) == truth, "the original differs"
    for _ in range(2):
        assert bits(subject.restore(snapshot)) == first
        assert follow(subject, actions, render) == truth, "a restored environment differs"
    assert follow(again, actions, render) == truth, "a copy changed while others were stepped"
    other = branching(make())
    begin(other, seed=5, steps=3)
    other.restore(snapshot)
    assert follow(other, actions, render) == truth, "another environment cannot be restored"
    for env in (subject, shared, again, split, other, untouched):
        env.close()


def needs(package: str) -> None:
    pytest.importorskip(package, reason=f"`{package}` is not installed")
