"""Checks of fork, prune, compact and branch_step: what they change, and what they leave alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from branchrt_gym.slots import NO_BRANCH, NO_ROOT, NO_SLOT
from branchrt_gym.testing.comparison import as_numpy, difference, pick, picture
from branchrt_gym.testing.subject import MODES, Subject, compared_rows

__all__ = ["CHECKS"]

STEADY = ("live", "roots", "branch_id", "parent_id", "depth", "observation")


def fork_places(subject: Subject) -> Iterator[str]:
    """A fork copies parents into the lowest free slots, in their order, with ids of their own."""
    envs = subject.forked(num_envs=13)
    largest = -1  # of the ids given so far
    for turn in range(3):
        before = picture(envs)
        largest = max(largest, int(before["branch_id"].max()))
        free = np.flatnonzero(before["roots"] == NO_ROOT)
        parents = np.flatnonzero(before["live"])[::-1][:2]
        counts = np.array([2, 1])[: len(parents)]
        rows = parents.repeat(counts)
        slots = as_numpy(envs.fork(parents.tolist(), counts.tolist()))
        after = picture(envs)
        where = f"fork {turn + 1}, of slots {parents.tolist()} with counts {counts.tolist()}"
        expected = free[: len(rows)]
        if slots.tolist() != expected.tolist():
            yield f"{where} returned slots {slots.tolist()}, against {expected.tolist()}"
        others = ~np.isin(np.arange(13), expected)
        if found := difference(after, before, others):
            yield f"{where}: {found} before it"
        for slot, parent in zip(expected, rows, strict=True):
            for name in ("live", "roots", "depth", "observation"):
                copied = difference(
                    pick(after[name], slot), pick(before[name], parent), name=name, slots=False
                )
                if copied:
                    yield f"{where}: slot {slot}, child of slot {parent}: {copied} of its parent"
            if after["branch_id"][slot] <= largest:
                yield f"{where}: slot {slot} has id {after['branch_id'][slot]}, no new one"
            largest = max(largest, int(after["branch_id"][slot]))
            if after["parent_id"][slot] != before["branch_id"][parent]:
                yield (
                    f"{where}: slot {slot} has parent id {after['parent_id'][slot]}, against "
                    f"{before['branch_id'][parent]}, the branch in slot {parent}"
                )
        subject.step(envs, 5 * turn + np.arange(13))


def parent_undisturbed(subject: Subject) -> Iterator[str]:
    """A branch goes on as if it had not been forked, whatever its children do."""
    for rng in ("split", "shared"):
        for later in (0, 1):
            envs, plain = subject.forked(), subject.forked()
            for each in (envs, plain):
                for turn in range(later):
                    subject.step(each, turn + np.arange(8))
            stay = np.flatnonzero(as_numpy(plain.live))
            if not stay.size:
                continue
            envs.fork(stay[:1].tolist(), 4, rng=rng)
            now = np.isin(np.arange(8), stay)
            if found := difference(picture(envs), picture(plain), now):
                yield f'rng="{rng}": {found} without the fork'
            what = f'rng="{rng}", slot {stay[0]} forked after {later} steps, against no fork'
            yield from compared_rows(subject, (envs, stay), (plain, stay), what)


def prune_isolates(subject: Subject) -> Iterator[str]:
    """A prune frees the slots of the branches it names and touches no other branch."""
    gone = np.array([3, 6])
    for mode in MODES:
        envs, masked, plain = (subject.forked(mode) for _ in range(3))
        for each in (envs, masked, plain):
            each.fork([0, 1], 3)
        envs.prune(gone.tolist())
        masked.prune(np.isin(np.arange(8), gone))
        what = f"{mode.name}, slots {gone.tolist()} pruned"
        seen = picture(envs)
        if found := difference(seen, picture(masked)):
            yield f"{what}: {found} when pruned by a mask"
        for slot in gone:
            if seen["live"][slot] or seen["roots"][slot] != NO_ROOT:
                yield f"{what}: slot {slot} has root {seen['roots'][slot]}, against a free slot"
        rows = ~np.isin(np.arange(8), gone)
        if found := difference(seen, picture(plain), rows):
            yield f"{what}: {found} without the prune"
        stay = np.flatnonzero(rows)
        yield from compared_rows(subject, (envs, stay), (plain, stay), f"{what}, or not", mode)


def prune_restarts(subject: Subject) -> Iterator[str]:
    """A root whose last live branch is pruned restarts at the next step, in its lowest slot.

    It waits there until then, without a made-up transition; in DISABLED nothing restarts.
    """
    for mode in MODES:
        envs = subject.forked(mode)
        envs.fork([1], 2)
        envs.prune([3, 1, 2])
        stays = mode != AutoresetMode.DISABLED
        where = f"{mode.name}, slots 1 to 3, all of root 1, pruned"
        roots = as_numpy(envs.roots)
        if (roots == 1).nonzero()[0].tolist() != [1] * stays or as_numpy(envs.live)[1:].any():
            yield f"{where}: roots are {roots.tolist()} and live {as_numpy(envs.live).tolist()}"
        seen = subject.step(envs, np.arange(8))
        for name in ("reward", "terminated", "truncated"):
            if seen[name][1]:
                yield f"{where}: slot 1 has {name} {seen[name][1]} in the next step"
        if seen["live"][1:].tolist() != [stays, *[False] * 6]:
            yield f"{where}: live is {seen['live'].tolist()} after the next step"


def compaction(subject: Subject) -> Iterator[str]:
    """`compact` moves branches to the first slots in order; ids and futures stay theirs."""
    for mode in MODES:
        envs, plain = subject.forked(mode), subject.forked(mode)
        for each in (envs, plain):
            each.fork([1, 0], 3)
            each.prune([1, 2, 5])
        before = picture(plain)
        kept = np.flatnonzero(before["live"])
        source = as_numpy(envs.compact())
        expected = np.full(8, NO_SLOT, np.int32)
        expected[: len(kept)] = kept
        if found := difference(source, expected, name="source"):
            yield f"{mode.name}, slots {kept.tolist()} live: {found}"
        after, place = picture(envs), np.arange(len(kept))
        for name in STEADY:
            rows = (pick(after[name], place), pick(before[name], kept))
            if found := difference(*rows, name=name):
                yield f"{mode.name}, slots {kept.tolist()} live: {found} before the move"
        if (after["roots"][len(kept) :] != NO_ROOT).any():
            yield f"{mode.name}: roots are {after['roots'].tolist()}, with {len(kept)} branches"
        what = f"{mode.name}, compacted or not"
        yield from compared_rows(subject, (envs, place), (plain, kept), what, mode)


def expansion(subject: Subject) -> Iterator[str]:
    """`branch_step` replaces each live branch by its children, one per action, in that order."""
    space = subject.envs.single_action_space
    if not isinstance(space, spaces.Discrete) or space.n > 64:
        return
    count, low = int(space.n), int(space.start)
    envs = subject.forked(num_envs=2 * count + 2, record_lineage=True)
    if not hasattr(envs, "branch_step"):
        return
    before = picture(envs)
    parents = np.flatnonzero(before["live"])
    reward, done = (as_numpy(part) for part in envs.branch_step()[1:])
    if reward.shape != (2 * count,) or done.shape != reward.shape or done.dtype != bool:
        yield f"rewards have shape {reward.shape} and done {done.shape}, for 2 × {count} children"
        return
    after = picture(envs)
    kept = np.flatnonzero(after["live"] & (after["parent_id"] != NO_BRANCH))
    kept = kept[np.argsort(after["branch_id"][kept])]
    ids = after["branch_id"][kept]
    paths = envs.trajectories(ids)
    taken, earned = as_numpy(paths.action), as_numpy(paths.reward)
    places = []
    for row, slot in enumerate(kept):
        mother = parents[before["branch_id"][parents] == after["parent_id"][slot]]
        if mother.size != 1 or after["depth"][slot] != 1 or ids[row] <= before["branch_id"].max():
            yield (
                f"slot {slot} has branch id {ids[row]}, parent id {after['parent_id'][slot]} and "
                f"depth {after['depth'][slot]}; the parents' ids are "
                f"{before['branch_id'][parents].tolist()}"
            )
            return
        order = int(np.flatnonzero(parents == mother[0])[0])
        places.append(order * count + int(taken[row, 0]) - low)
        same = np.array_equal(earned[row, :1], reward[places[-1:]], equal_nan=True)
        if not same or done[places[-1]]:
            yield (
                f"slot {slot}, action {taken[row, 0]} in slot {mother[0]}, earned "
                f"{earned[row, 0]}; child {places[-1]} has reward {reward[places[-1]]} and done "
                f"{done[places[-1]]}"
            )
    if places != sorted(places):
        yield f"by ascending branch id the children kept are {places}, not in order"


CHECKS = (
    fork_places,
    parent_undisturbed,
    prune_isolates,
    prune_restarts,
    compaction,
    expansion,
)
