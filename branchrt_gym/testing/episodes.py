"""Checks of whole episodes: equal in every autoreset mode, and when they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from branchrt_gym.slots import NO_ROOT
from branchrt_gym.testing.comparison import as_numpy, difference, outcome, pick
from branchrt_gym.testing.subject import LIMIT, MODES, NEXT, STEPS, Subject, given

__all__ = ["CHECKS"]

SAME, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def modes_agree(subject: Subject) -> Iterator[str]:
    """The three autoreset modes give the same episodes, from first to last observation."""
    runs = {mode: _episodes(subject, mode) for mode in (SAME, NEXT, DISABLED)}
    for mode in (NEXT, DISABLED):
        for slot in range(5):
            pairs = zip(runs[mode][slot], runs[SAME][slot], strict=False)
            for episode, (mine, their) in enumerate(pairs):
                for turn, (one, two) in enumerate(zip(mine, their, strict=False)):
                    if found := difference(one, two, slots=False):
                        yield (
                            f"slot {slot}, episode {episode}, after {turn} steps of it: in "
                            f"{mode.name} {found} in SAME_STEP"
                        )


def time_limit(subject: Subject) -> Iterator[str]:
    """A branch is truncated by the step with which its depth reaches `max_episode_steps`."""
    envs = subject.flat(DISABLED)
    running, limit = np.ones(5, bool), envs.max_episode_steps or LIMIT
    for turn in range(1, LIMIT + 1):
        seen = subject.step(envs, 7 * turn + 13 * np.arange(5))
        wrong = running & ~seen["truncated"] if turn == limit else seen["live"] & (turn > limit)
        if wrong.any():
            slot = int(np.flatnonzero(wrong)[0])
            yield f"slot {slot} has truncated False in step {turn}, at the limit {limit}"
        running &= ~(seen["terminated"] | seen["truncated"])


def roots_restart(subject: Subject) -> Iterator[str]:
    """Autoreset restarts roots, not branches: when the last live branch of a root has ended.

    A branch that ends before frees its slot. The root restarts in the lowest of the slots that
    ended last, which is reserved until then; in DISABLED, ended branches stay instead.
    """
    for mode in MODES:
        envs = subject.forked(mode)
        for turn in range(1, STEPS + 1):
            live, roots = as_numpy(envs.live), as_numpy(envs.roots)
            parents = np.flatnonzero(live)[: int((roots == NO_ROOT).sum())]
            envs.fork(parents.tolist())
            before, kept = as_numpy(envs.live), as_numpy(envs.roots)
            seen = subject.step(envs, 7 * turn + 13 * np.arange(8))
            ended = seen["terminated"] | seen["truncated"]
            after, now = as_numpy(envs.live), as_numpy(envs.roots)
            for root in range(2):
                theirs = before & (kept == root)
                if not (theirs & ended).any():
                    continue
                stay = theirs & ~ended
                expected = stay.copy()
                if mode == DISABLED:
                    expected |= kept == root
                elif not stay.any():
                    expected[np.flatnonzero(theirs & ended)[0]] = True
                    stay = expected if mode == SAME else stay
                where = f"{mode.name}, step {turn}, root {root}"
                for name, held, right in (
                    ("has", now == root, expected),
                    ("lives in", after & (now == root), stay),
                ):
                    if (held != right).any():
                        yield (
                            f"{where} {name} slots {np.flatnonzero(held).tolist()}, against "
                            f"{np.flatnonzero(right).tolist()}"
                        )


CHECKS = (
    modes_agree,
    time_limit,
    roots_restart,
)


def _episodes(subject: Subject, mode: AutoresetMode) -> list[list[list[dict[str, Any]]]]:
    """Plays; returns each slot's episodes, each its first observation and what its steps gave."""
    envs = subject.flat(mode)
    shown = as_numpy(envs.observe())
    told = [[[{"observation": pick(shown, slot)}]] for slot in range(5)]
    waiting = np.zeros(5, bool)
    for _ in range(STEPS):
        words = [
            13 * slot + 17 * len(episodes) + 7 * len(episodes[-1])
            for slot, episodes in enumerate(told)
        ]
        result = envs.step(given(envs, subject.actions(words)))
        seen, info = outcome(result), result[4]
        ended = (seen["terminated"] | seen["truncated"]) & ~waiting
        if mode == DISABLED and ended.any():
            shown = as_numpy(envs.reset(options={"reset_mask": ended})[0])
        for slot, episodes in enumerate(told):
            row = {name: pick(values, slot) for name, values in seen.items() if name != "live"}
            first = {"observation": pick(shown, slot) if mode == DISABLED else row["observation"]}
            if waiting[slot]:
                episodes.append([first])
                continue
            if ended[slot] and mode == SAME:
                final = info["final_obs"]
                held = isinstance(final, np.ndarray) and final.dtype == object
                row["observation"] = as_numpy(final[slot] if held else pick(final, slot))
                row["solved"] = as_numpy(info["final_info"]["solved"])[slot]
            episodes[-1].append(row)
            if ended[slot] and mode != NEXT:
                episodes.append([first])
        waiting = ended if mode == NEXT else waiting
    return told
