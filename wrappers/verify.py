"""Verification: whether snapshots of an environment are exact, at many points of its episodes.

Three environments are made. One is driven alone, and all that it shows is written down: that is the
truth. A second one must show the same, else the environment does not repeat at all. The third is
branched: at each point a copy, and an environment restored from a snapshot, are led on, then the
original goes on; all are compared with the truth, bit for bit.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from branchrt_gym.errors import SnapshotUnsupportedError
from branchrt_gym.wrappers.branch_wrapper import BranchWrapper
from branchrt_gym.wrappers.snapshots import SnapshotProvider

__all__ = ["Verification", "verify"]

SHOWN = ("observation", "reward", "terminated", "truncated", "info", "np_random")


@dataclass
class Verification:
    """What was found.

    Attributes:
        environment: The stack, as text.
        provider: Who takes its snapshots.
        points: Steps after which copies were made.
        steps: Steps that each was followed.
        differences: The first difference of each point that has one; empty if all is exact.
        fork_us: Time of a fork with luck of its own, in µs; the least of several.
        snapshot_us: Time of a snapshot.
        restore_us: Time of a restore.
        step_us: Time of a step, the mean.
        deepcopy_us: Time of `copy.deepcopy`, None where it fails.
        deepcopy: `"exact"`, or what is wrong with it.
        snapshot_bytes: Length of a snapshot's pickle; None where it cannot be pickled.
    """

    environment: str
    provider: str
    points: list[int]
    steps: int
    differences: list[str] = field(default_factory=list)
    fork_us: float = 0.0
    snapshot_us: float = 0.0
    restore_us: float = 0.0
    step_us: float = 0.0
    deepcopy_us: float | None = None
    deepcopy: str = ""
    snapshot_bytes: int | None = None

    @property
    def exact(self) -> bool:
        """Whether no point has a difference."""
        return not self.differences


def verify(
    make: Callable[[], gymnasium.Env[Any, Any]],
    *,
    points: int = 10,
    steps: int = 200,
    seed: int = 0,
    provider: str | SnapshotProvider | None = None,
    share: Sequence[object] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Compares copies and restored snapshots with environments that nobody touched.

    Args:
        make: Makes the environment, anew at each call.
        points: How many points of its episodes to copy it at; a fault at one point in 60 is found
            by 300 with 99 %.
        steps: How far to follow each, resets included.
        seed: Of the environment and of the actions.
        provider: See `BranchWrapper`.
        share: See `BranchWrapper`.
        progress: Called with the points done, and all.

    Raises:
        SnapshotUnsupportedError: If no provider fits.
        ValueError: If two environments from `make` already differ on the same seed and actions.
    """
    if points < 1 or steps < 1:
        raise ValueError(f"`points` is {points}, `steps` is {steps}; expected at least 1 of each")
    places = [37 + i * 7 for i in range(points)]
    branched = BranchWrapper(make(), provider=provider, share=share)
    restored = BranchWrapper(make(), provider=provider, share=share)
    alone, control = make(), make()
    drivers = [_Driver(env, seed) for env in (alone, control, branched, restored)]
    space = copy.deepcopy(alone.action_space)
    space.seed(seed)
    actions = [space.sample() for _ in range(places[-1] + steps)]

    start = time.perf_counter()
    truth = [drivers[0].step(action) for action in actions]
    step_us = (time.perf_counter() - start) / len(actions) * 1e6
    for i, action in enumerate(actions):
        if (found := _difference(drivers[1].step(action), truth[i])) is not None:
            raise ValueError(
                f"{alone} does not repeat itself: two of them with seed {seed} and the same "
                f"actions differ at step {i}, {found}. Nothing can be said of its snapshots"
            )

    result = Verification(str(alone), branched.snapshot_provider, places, steps, step_us=step_us)
    done = 0
    for number, place in enumerate(places):
        found = _follow(drivers[2], actions[done:place], truth[done:place])
        done = place
        if found is None:
            found = _at(drivers[2], drivers[3], actions, truth, place, steps)
        else:
            found = f"the original, after it was copied: {found}"
        if found is not None:
            result.differences.append(f"copied after {place} steps: {found}")
            if found.startswith("the original"):
                break  # every later point would differ too
        if progress is not None:
            progress(number + 1, points)
    _measure(result, branched, alone, actions)
    for env in (branched, restored, alone, control):
        env.close()
    return result


def _at(
    original: _Driver,
    other: _Driver,
    actions: list[Any],
    truth: list[Any],
    place: int,
    steps: int,
) -> str | None:
    ahead, expected = actions[place : place + steps], truth[place : place + steps]
    try:
        snapshot = original.env.snapshot()
        child = original.env.fork(1, rng="shared")[0]
        other.env.restore(snapshot)
    except SnapshotUnsupportedError as error:
        return f"refused: {error}"
    if (found := _follow(_Driver(child, None, original.ended), ahead, expected)) is not None:
        return f"the copy, {found}"
    other.ended = original.ended
    if (found := _follow(other, ahead, expected)) is not None:
        return f"the restored environment, {found}"
    child.close()
    return None


class _Driver:
    """Steps an environment, resets it without a seed where an episode ends, shows everything."""

    def __init__(self, env: Any, seed: int | None, ended: bool = False) -> None:
        self.env = env
        self.ended = ended
        if seed is not None:
            env.reset(seed=seed)
            env.action_space.seed(seed)

    def step(self, action: Any) -> list[Any]:
        if self.ended:
            observation, info = self.env.reset()
            shown = [observation, 0.0, False, False, info]
            self.ended = False
        else:
            shown = list(self.env.step(action))
            self.ended = bool(shown[2] or shown[3])
        return [copy.deepcopy(part) for part in shown] + [_luck(self.env)]


def _luck(env: Any) -> Any:
    generator = env.unwrapped._np_random
    return None if generator is None else generator.bit_generator.state


def _follow(driver: _Driver, actions: list[Any], truth: list[Any]) -> str | None:
    for i, (action, expected) in enumerate(zip(actions, truth, strict=True)):
        if (found := _difference(driver.step(action), expected)) is not None:
            return f"at step {i + 1}: {found}"
    return None


def _difference(shown: list[Any], expected: list[Any]) -> str | None:
    for name, left, right in zip(SHOWN, shown, expected, strict=True):
        if not equal(left, right):
            place, a, b = _place(left, right)
            return f"`{name}{place}` is {_brief(a)}, the untouched one's {_brief(b)}"
    return None


def _place(left: Any, right: Any) -> tuple[str, Any, Any]:
    """Goes down to the first part that differs: its place, and both values."""
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(left, np.ndarray) and np.shape(left) == np.shape(right) and left.ndim:
        parts = [(f"[{i}]", left[i], right[i]) for i in range(len(left))]
    elif isinstance(left, Mapping) and isinstance(right, Mapping) and left.keys() == right.keys():
        parts = [(f"[{key!r}]", left[key], right[key]) for key in left if key != "t"]
    elif isinstance(left, list | tuple) and type(left) is type(right) and len(left) == len(right):
        parts = [(f"[{i}]", a, b) for i, (a, b) in enumerate(zip(left, right, strict=True))]
    for name, a, b in parts:
        if not equal(a, b):
            place, a, b = _place(a, b)
            return name + place, a, b
    return "", left, right


def _brief(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


def equal(left: Any, right: Any) -> bool:
    """Whether two values are equal bit for bit, types included; NaN equals itself.

    The seconds that `RecordEpisodeStatistics` puts into `info` (`t`) are left out.
    """
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray | np.generic):
        left, right = np.asarray(left), np.asarray(right)
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if left.dtype.hasobject:
            return all(map(equal, left.ravel().tolist(), right.ravel().tolist()))
        return bool(left.tobytes() == right.tobytes())
    if isinstance(left, Mapping):
        return bool(left.keys() == right.keys()) and all(
            name == "t" or equal(value, right[name]) for name, value in left.items()
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    if type(left).__module__ == "torch":
        return equal(left.numpy(force=True), right.numpy(force=True))
    if isinstance(left, float):
        return float.hex(left) == float.hex(right)
    return bool(left is right or left == right or repr(left) == repr(right))


def _measure(result: Verification, env: Any, plain: Any, actions: list[Any]) -> None:
    if any("refused" in found for found in result.differences):
        return
    snapshot = env.snapshot()
    result.fork_us = _least(lambda: env.fork(1))
    result.snapshot_us = _least(env.snapshot)
    result.restore_us = _least(lambda: env.restore(snapshot))
    try:
        result.snapshot_bytes = len(pickle.dumps(snapshot))
    except Exception:  # whatever is in it says no in its own way
        result.snapshot_bytes = None
    plain.reset(seed=1)
    driver = _Driver(plain, None)
    for action in actions[:37]:
        driver.step(action)
    try:
        twin = _Driver(copy.deepcopy(plain), None, driver.ended)
        result.deepcopy_us = _least(lambda: copy.deepcopy(plain), 0.05)
        right = [driver.step(action) for action in actions[:37]]
        found = _follow(twin, actions[:37], right)
    except Exception as error:  # as above
        result.deepcopy_us = None
        result.deepcopy = f"{type(error).__name__}: {error}"
    else:
        result.deepcopy = "exact" if found is None else f"wrong {found}"


def _least(call: Callable[[], Any], seconds: float = 0.2) -> float:
    """Times a call again and again for a while; the least is what it takes on a quiet machine."""
    least, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        kept = call()
        now = time.perf_counter()
        least = min(least, now - start)
        del kept
        if now > end:
            return least * 1e6
