"""Checks of what must not be lost: the state behind an error, and the paths of the branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from branchrt_gym.slots import NO_BRANCH, NO_ROOT
from branchrt_gym.testing.comparison import (
    as_numpy,
    compared_runs,
    difference,
    pick,
    picture,
    tensors,
)
from branchrt_gym.testing.subject import LIMIT, Subject, given
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["CHECKS"]

Call = Callable[[BranchingVectorEnv], object]


def errors_change_nothing(subject: Subject) -> Iterator[str]:
    """A caller's mistake raises a ValueError or TypeError, and everything stays as it was."""
    # On a GPU errors wait for the next look at the population, and are raised at once with debug.
    late: dict[str, Any] = {"debug": True} if subject.envs.device.type != "cpu" else {}

    def middle() -> BranchingVectorEnv:
        envs = subject.forked(record_lineage=True, **late)
        envs.fork([0, 1], [2, 1])
        envs.prune([3])  # slots 0 1 2 4 are live, 3 5 6 7 free
        return envs

    twin = middle()
    start = tensors(twin)
    expected = subject.run(twin, 5)
    for what, call in _mistakes(subject).items():
        envs = middle()
        try:
            call(envs)
            _ = envs.live
        except (ValueError, TypeError):
            pass
        except Exception as error:
            yield f"{what} raised {type(error).__name__}: {error}"
        else:
            yield f"{what} raised nothing"
        if found := difference(tensors(envs), start):
            yield f"{what}: {found} before, in the snapshot"
        yield from compared_runs(subject.run(envs, 5), expected, f"after {what}, or not")


def trajectories(subject: Subject) -> Iterator[str]:
    """A trajectory is all the steps from its root's first branch on: its ancestors' first."""
    envs = subject.forked(record_lineage=True)
    paths: dict[int, list[tuple[Any, float]]] = {}
    ends: dict[int, tuple[bool, bool, bool]] = {}
    episode: dict[int, list[int]] = {}  # the branches of each root's current episode

    def births() -> None:
        now = picture(envs)
        for slot in np.flatnonzero(now["live"]):
            branch, parent = int(now["branch_id"][slot]), int(now["parent_id"][slot])
            if branch in paths:
                continue
            root = int(now["roots"][slot])
            if parent == NO_BRANCH:
                episode[root] = []
            episode[root].append(branch)
            paths[branch] = [] if parent == NO_BRANCH else list(paths[parent])
            ends[branch] = (False, False, False)

    births()
    for turn in range(LIMIT + 3):
        now = picture(envs)
        live = np.flatnonzero(now["live"])
        free = int((now["roots"] == NO_ROOT).sum())
        if turn == 3 and len(live) > 2:
            ends[int(now["branch_id"][live[-1]])] = (False, True, True)
            envs.prune(live[-1:].tolist())
        elif live.size:
            envs.fork(live[: min(2, free)].tolist())
        births()
        now = picture(envs)
        actions = subject.actions(5 * turn + 3 * np.arange(8))
        seen = subject.step(envs, 5 * turn + 3 * np.arange(8))
        for slot in np.flatnonzero(now["live"]):
            branch = int(now["branch_id"][slot])
            paths[branch].append((pick(actions, slot), seen["reward"][slot]))
            ends[branch] = (bool(seen["terminated"][slot]), bool(seen["truncated"][slot]), False)
        births()
        for root, branches in episode.items():
            told = envs.trajectories(branches)
            action, reward, mask = (
                as_numpy(part) for part in (told.action, told.reward, told.mask)
            )
            flags = [as_numpy(part) for part in (told.terminated, told.truncated, told.pruned)]
            for row, branch in enumerate(branches):
                where = f"after {turn + 1} steps, branch {branch} of root {root}"
                length, steps = int(told.length[row]), paths[branch]
                right = np.arange(mask.shape[1]) < len(steps)
                if length != len(steps) or (mask[row] != right).any():
                    yield f"{where}, of {len(steps)} steps: length {length}, mask {mask[row]}"
                    return
                if int(told.root[row]) != root:
                    yield f"{where}: root is {int(told.root[row])}"
                for place, (taken, earned) in enumerate(steps):
                    act = pick(pick(action, row), place)
                    at = f"{where}, step {place + 1} of {length}"
                    if found := difference(act, taken, name="action", slots=False):
                        yield f"{at}: {found} as taken"
                    if not np.array_equal(float(reward[row, place]), earned, equal_nan=True):
                        yield f"{at}: reward is {reward[row, place]}, against {earned} as earned"
                ended = tuple(bool(flag[row]) for flag in flags)
                if ended != ends[branch]:
                    yield f"{where}: (terminated, truncated, pruned) {ended}, not {ends[branch]}"


CHECKS = (errors_change_nothing, trajectories)


def _mistakes(subject: Subject) -> dict[str, Call]:
    """Calls that cannot be, on eight slots of two roots of which 0 1 2 4 are live."""
    yes = np.ones(8, bool)
    actions = subject.actions(range(8))

    def masked(mask: Any) -> Call:
        return lambda envs: envs.reset(options={"reset_mask": mask})

    calls: dict[str, Call] = {
        "a fork of slot 3, which is free": lambda envs: envs.fork([0, 3]),
        "a fork of slot 8 of 8": lambda envs: envs.fork([8]),
        "a fork into 5 slots where 4 are free": lambda envs: envs.fork([0, 1], [3, 2]),
        "a fork with a negative count": lambda envs: envs.fork([0], -1),
        'a fork with rng="same"': lambda envs: envs.fork([0], rng="same"),  # type: ignore[arg-type]
        "a prune of slot 3, which is free": lambda envs: envs.prune([0, 3]),
        "a prune by a mask of 7": lambda envs: envs.prune(yes[:7]),
        "a reset_mask of 7": masked(yes[:7]),
        "a reset_mask of ints": masked(yes.astype(int)),
        "a reset_mask without a True": masked(~yes),
        "a reset_mask that leaves out slot 4, live in its root": masked(np.arange(8) < 2),
        "an unknown option": lambda envs: envs.reset(options={"mask": yes}),
        "a negative seed": lambda envs: envs.reset(seed=-1),
        "three seeds for two roots": lambda envs: envs.reset(seed=[1, 2, 3]),
        "a trajectory of branch 10**6": lambda envs: envs.trajectories([10**6]),
    }
    if isinstance(actions, np.ndarray):
        calls["actions of 7 slots"] = lambda envs: envs.step(given(envs, actions[:7]))
        calls["actions with an axis more"] = lambda envs: envs.step(given(envs, actions[:, None]))
    space = subject.envs.single_action_space
    if isinstance(space, spaces.Discrete):
        high = actions.copy()
        high[4] = space.start + space.n
        name = f"action {high[4]} in slot 4, outside {space}"
        calls[name] = lambda envs: envs.step(given(envs, high))
    return calls
