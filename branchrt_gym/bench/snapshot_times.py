"""What a fork of a Gymnasium environment takes, in time and in memory.

The last copies are kept while the next are made, as a search keeps its branches, so that none is
made in memory that is still in the cache. Times are those that the thread spends on a core, so that
other processes do not count.
"""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from branchrt_gym.bench.measure import PeakMemory
from branchrt_gym.bench.snapshot_cases import Case

__all__ = ["branch_bytes", "call_times"]

DRIVEN = 37  # steps before the environment that is copied
KEPT = 16  # copies that live while others are made
BATCH_SECONDS = 1e-2  # long enough that what the other calls left in the caches is of no account


def call_times(case: Case, seed: int, repetitions: int, deepcopied: bool) -> dict[str, list[float]]:
    """Times forks and deep copies in batches, by turns; returns the seconds of one of each batch.

    Args:
        case: The environment.
        seed: Of the episode that is copied.
        repetitions: Batches of each call.
        deepcopied: Whether there is a deep copy to time.
    """
    from branchrt_gym.wrappers import BranchWrapper

    env: Any = BranchWrapper(case.make())
    plain = _driven(case.make(), seed)
    _driven(env, seed)
    snapshot = env.snapshot()
    calls: dict[str, Callable[[], object]] = {
        "fork": lambda: env.fork(1),
        "snapshot": env.snapshot,
        "restore": lambda: env.restore(snapshot),
    }
    if deepcopied:
        calls["deepcopy"] = lambda: copy.deepcopy(plain)
    if env.snapshot_provider == "mujoco":
        calls["mj_copyData"] = _data_copies(plain.unwrapped)
    counts = {}
    for name, call in calls.items():
        for _ in range(KEPT + 1):  # fills what is kept
            call()
        once = min(_spent(call) for _ in range(3))
        counts[name] = max(1, min(1000, int(BATCH_SECONDS / once)))
    times: dict[str, list[float]] = {name: [] for name in [*calls, "step"]}
    for _ in range(repetitions):
        for name, call in calls.items():
            times[name].append(_spent(partial(_batch, call, counts[name])) / counts[name])
        env.restore(snapshot)
        times["step"].append(_spent(partial(_steps, env, KEPT)) / KEPT)
    env.close()
    plain.close()
    return times


def _spent(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def _batch(call: Callable[[], object], count: int) -> None:
    held: list[object] = [None] * KEPT
    for number in range(count):
        held[number % KEPT] = call()


def _data_copies(env: Any) -> Callable[[], object]:
    """Copies an `MjData` into kept ones, by turns."""
    mujoco: Any = importlib.import_module("mujoco")
    slots = [mujoco.MjData(env.model) for _ in range(KEPT)]
    turn = 0

    def copied() -> None:
        nonlocal turn
        turn = (turn + 1) % KEPT
        mujoco.mj_copyData(slots[turn], env.model, env.data)

    return copied


def _driven(env: Any, seed: int) -> Any:
    env.reset(seed=seed)
    env.action_space.seed(seed)
    _steps(env, DRIVEN)
    return env


def _steps(env: Any, count: int) -> None:
    """Takes steps with actions of its own."""
    for _ in range(count):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


def branch_bytes(case: Case, branches: int) -> float | None:
    """Returns by how much each of so many living branches makes a fresh process grow."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(_grown, case, branches).result()


def _grown(case: Case, branches: int) -> float | None:
    from branchrt_gym.wrappers import BranchWrapper

    env: Any = _driven(BranchWrapper(case.make()), 0)
    first = env.fork(2)  # whatever is made once
    with PeakMemory("cpu") as memory:
        held = env.fork(branches)
        for child in held:
            _steps(child, 4)
    del first
    return None if memory.bytes is None else memory.bytes / branches
