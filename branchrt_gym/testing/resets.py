"""Checks of resets, by the caller and by each autoreset mode, and of slots that are not live."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from branchrt_gym.slots import NO_BRANCH, NO_ROOT
from branchrt_gym.structure import rest_observation
from branchrt_gym.testing.comparison import as_numpy, difference, outcome, pick, picture
from branchrt_gym.testing.subject import MODES, NEXT, SEED, STEPS, Subject, given

__all__ = ["CHECKS"]

SAME, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def reset_layout(subject: Subject) -> Iterator[str]:
    """A reset starts one live branch per root in the first slots; the others are free."""
    envs = subject.forked()
    subject.run(envs, 3)
    envs.reset(seed=SEED)
    seen = picture(envs)
    expected = {
        "live": np.arange(8) < 2,
        "roots": np.array([0, 1, *[NO_ROOT] * 6]),
        "branch_id": np.array([0, 1, *[0] * 6]),
        "parent_id": np.array([NO_BRANCH, NO_BRANCH, *[0] * 6]),
        "depth": np.zeros(8, np.int32),
    }
    if found := difference({name: seen[name] for name in expected}, expected):
        yield f"8 slots, 2 roots, after a reset with a seed: {found}"


def next_step(subject: Subject) -> Iterator[str]:
    """In NEXT_STEP an ended root restarts in the step after: reward 0, no flags, live after it."""
    envs = subject.flat(NEXT)
    waiting = np.zeros(5, bool)
    for turn in range(1, STEPS + 1):
        seen = subject.step(envs, 7 * turn + 13 * np.arange(5))
        depth = as_numpy(envs.frontier.depth)
        ended = seen["terminated"] | seen["truncated"]
        for slot in range(5):
            where = f"step {turn}, slot {slot}"
            if waiting[slot]:
                yield from _restarted(seen, depth, slot, f"{where}, which ended in the last step")
            elif ended[slot] == seen["live"][slot]:
                yield f"{where}: ended is {ended[slot]}, and live after it {seen['live'][slot]}"
        waiting = ended & ~waiting


def same_step(subject: Subject) -> Iterator[str]:
    """In SAME_STEP an ended root restarts in that step; its end is in final_obs and final_info."""
    envs = subject.flat(SAME)
    for turn in range(1, STEPS + 1):
        result = envs.step(given(envs, subject.actions(7 * turn + 13 * np.arange(5))))
        seen, info = outcome(result), result[4]
        ended = seen["terminated"] | seen["truncated"]
        if found := difference({"info['live']": seen["live"]}, {"info['live']": ended | True}):
            yield f"step {turn}: {found}"
        depth = as_numpy(envs.frontier.depth)
        wrong = np.flatnonzero(ended != (depth == 0))
        if wrong.size:
            slot = int(wrong[0])
            yield f"step {turn}, slot {slot}: ended is {ended[slot]}, and depth {depth[slot]}"
        for name in ("final_obs", "final_info"):
            mask = as_numpy(info.get(f"_{name}", np.zeros(5, bool)))
            if found := difference({f"info['_{name}']": mask}, {f"info['_{name}']": ended}):
                yield f"step {turn}: {found} of the slots that ended"
            if ended.any() and name not in info:
                yield f"step {turn} has no `info['{name}']`"


def disabled(subject: Subject) -> Iterator[str]:
    """In DISABLED an ended branch stays, readable and not live, until a reset by mask."""
    envs = subject.flat(DISABLED)
    over = np.zeros(5, bool)
    last: dict[int, Any] = {}
    for turn in range(1, STEPS + 1):
        seen = subject.step(envs, 7 * turn + 13 * np.arange(5))
        for slot in np.flatnonzero((seen["terminated"] | seen["truncated"]) & ~over).tolist():
            last[slot] = pick(seen["observation"], slot)
            over[slot] = True
        expected = {"live": ~over, "roots": np.arange(5)}
        now = picture(envs)
        if found := difference({name: now[name] for name in expected}, expected):
            yield f"step {turn}, without a reset: {found}"
        for slot, shown in last.items():
            if found := difference(
                pick(now["observation"], slot), shown, name="`observe`", slots=False
            ):
                yield f"step {turn}, slot {slot}, which has ended: {found}, its last observation"
    envs.reset(options={"reset_mask": over})
    now = picture(envs)
    wrong = np.flatnonzero(over & ~(now["live"] & (now["depth"] == 0)))
    if wrong.size:
        yield f"slot {wrong[0]} is not live at depth 0 after its reset by mask"


def masked_reset(subject: Subject) -> Iterator[str]:
    """A `reset_mask` starts the masked roots' next episodes; every other row stays bit-equal.

    A masked root starts in its lowest masked slot; its others are free then.
    """
    mask = np.arange(5) % 2 == 1
    for mode in MODES:
        envs, plain, whole = (subject.flat(mode) for _ in range(3))
        for each in (envs, plain, whole):
            for turn in range(2):
                subject.step(each, 7 * turn + 13 * np.arange(5))
        shown, info = envs.reset(options={"reset_mask": mask.copy()})
        first = {"observation": as_numpy(shown)}
        what = f"{mode.name}, rows {np.flatnonzero(mask).tolist()} masked"
        for rows, other, against in (
            (~mask, plain.observe(), "without the reset"),
            (mask, whole.reset()[0], "by `reset()`"),
        ):
            if found := difference(first, {"observation": as_numpy(other)}, rows):
                yield f"{what}: {found} {against}"
        depth = as_numpy(envs.frontier.depth)
        for slot in np.flatnonzero(mask):
            if depth[slot] or not as_numpy(info["live"])[slot]:
                yield f"{what}: slot {slot} is not live at depth 0"
        for turn in range(2, 5):
            one, two = (subject.step(each, 7 * turn + 13 * np.arange(5)) for each in (envs, plain))
            if found := difference(one, two, ~mask):
                yield f"{what}: in step {turn - 1} after it {found} without the reset"
        forked, plain = subject.forked(mode), subject.forked(mode)
        for each in (forked, plain):
            each.fork([1, 0, 1])  # roots 0 1 1 0 1
        forked.reset(options={"reset_mask": np.isin(np.arange(8), [1, 2, 4, 6])})
        roots = as_numpy(forked.roots).tolist()
        if roots != [0, 1, NO_ROOT, 0, *[NO_ROOT] * 4]:
            yield f"{mode.name}, root 1 in slots 1, 2, 4, all masked: roots are {roots} after it"
        if found := difference(picture(forked), picture(plain), np.isin(np.arange(8), [0, 3])):
            yield f"{mode.name}, root 1 masked and not root 0: {found} without the reset"


def arguments_unchanged(subject: Subject) -> Iterator[str]:
    """`reset` and `step` write nothing into their arguments: options, masks, seeds, actions."""
    envs = subject.flat(NEXT)
    options = {"reset_mask": np.array([True, False, True, False, False])}
    seeds = [SEED] * 5
    actions = given(envs, subject.actions(range(5)))
    before = deepcopy((options, seeds, actions))
    envs.reset(options=options)
    if list(options) != ["reset_mask"]:
        yield f"`options` holds {list(options)} after `reset`, against ['reset_mask']"
    envs.reset(seed=seeds, options=options)
    envs.step(actions)
    if found := difference(options["reset_mask"], before[0]["reset_mask"], name="reset_mask"):
        yield f"after `reset`: {found} before"
    if seeds != before[1]:
        yield f"`seed` is {seeds} after `reset`, against {before[1]}"
    if found := difference(as_numpy(actions), as_numpy(before[2]), name="action"):
        yield f"after `step`: {found} before"


def not_live(subject: Subject) -> Iterator[str]:
    """A slot that is not live has a constant observation, reward 0, no flags; it stands still.

    The observation is 0 where 0 lies in the space, else the lowest value. Its action is not
    looked at.
    """
    rest = rest_observation(subject.envs.single_observation_space)
    for mode in MODES:
        envs, twin = (subject.forked(mode) for _ in range(2))
        for each in (envs, twin):
            each.fork([0, 1], 2)
            each.prune([3])
        for turn in range(1, STEPS + 1):
            before = picture(envs)
            waiting = (before["roots"] != NO_ROOT) & ~before["live"]
            actions = subject.actions(7 * turn + 13 * np.arange(8))
            calm = outcome(twin.step(given(twin, actions)))
            wild = _nonsense(actions, ~before["live"])
            seen = outcome(envs.step(given(envs, wild)))
            where = f"{mode.name}, step {turn}"
            if found := difference(seen, calm):
                yield f"{where}, nonsense as the actions of slots not live: {found} with others"
            still = ~before["live"] if mode == DISABLED else ~before["live"] & ~waiting
            for slot in np.flatnonzero(still):
                for name in ("reward", "terminated", "truncated", "live", "solved"):
                    if seen[name][slot]:
                        yield f"{where}: slot {slot}, not live, has {name} {seen[name][slot]}"
                shown = pick(seen["observation"], slot)
                if found := difference(shown, rest, name="observation", slots=False):
                    yield f"{where}: slot {slot}, not live: {found}"
            if found := difference(picture(envs), before, still & waiting):
                yield f"{where}: {found} before the step, though it has ended"


CHECKS = (
    reset_layout,
    next_step,
    same_step,
    disabled,
    masked_reset,
    arguments_unchanged,
    not_live,
)


def _restarted(seen: dict[str, Any], depth: np.ndarray, slot: int, where: str) -> Iterator[str]:
    for name in ("reward", "terminated", "truncated", "solved"):
        if seen[name][slot]:
            yield f"{where}: {name} is {seen[name][slot]}"
    if not seen["live"][slot] or depth[slot]:
        yield f"{where}: live is {seen['live'][slot]} and depth {depth[slot]}"


def _nonsense(actions: Any, rows: np.ndarray) -> Any:
    if not isinstance(actions, np.ndarray):
        return actions
    wild = actions.copy()
    whole = np.issubdtype(wild.dtype, np.integer)
    wild[rows] = np.iinfo(wild.dtype).max if whole else np.nan
    return wild
