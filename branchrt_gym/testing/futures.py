"""Checks of what a branch's future depends on: its ancestry and its actions, nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from branchrt_gym.structure import map_leaves
from branchrt_gym.testing.comparison import as_numpy, difference, pick
from branchrt_gym.testing.subject import LIMIT, SEED, Subject, compared_rows
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["CHECKS"]

ROUNDS = 12  # families of branches in which chance is looked for


def fork_shared(subject: Subject) -> Iterator[str]:
    """Children forked with rng="shared" have their parent's future under equal actions."""
    for seed in range(SEED, SEED + 4):
        keys, futures = _family(subject, seed, "shared")
        if keys is not None and (keys != keys[0]).any():
            yield f"seed {seed}: `frontier.key` of slots 0 … 8 is {keys.tolist()}, against one key"
        for slot in range(1, 9):
            if futures[slot] != futures[0]:
                turn = _first_unequal(futures[slot], futures[0])
                yield f"seed {seed}: slot {slot}, child of slot 0, differs from it in step {turn}"


def fork_split(subject: Subject) -> Iterator[str]:
    """Children forked with rng="split" have futures of their own, where the rules use chance."""
    apart = alone = 0  # rounds in which children differ; in which only their parent does
    for seed in range(SEED, SEED + ROUNDS):
        keys, futures = _family(subject, seed, "split")
        if keys is not None and len(set(keys.tolist())) < len(keys):
            yield f"seed {seed}: `frontier.key` of slots 0 … 8 is {keys.tolist()}, not all apart"
        siblings = any(future != futures[1] for future in futures[1:])
        apart += siblings
        alone += not siblings and futures[1] != futures[0]
    # One round with only the parent apart may be luck, where chance is rare.
    if not apart and alone > 1:
        yield f"in {alone} of {ROUNDS} families 8 children agree with each other, not their parent"
    if subject.chance is True and not apart:
        yield f"`chance` is True, and in {ROUNDS} families 8 children all agree"
    if subject.chance is False and (apart or alone):
        yield f"`chance` is False, and in {apart + alone} of {ROUNDS} families futures differ"


def placement(subject: Subject) -> Iterator[str]:
    """A branch's future does not depend on its slot, nor on how many slots there are."""
    plain = subject.forked()
    own = np.array([0, *as_numpy(plain.fork([0], 2))])
    for moved in (False, True):
        envs = subject.forked(num_envs=11)
        filler = as_numpy(envs.fork([1], 5)).tolist()
        slots = np.array([0, *as_numpy(envs.fork([0], 2))])
        envs.prune(filler)
        if moved:
            envs.compact()
            slots = np.array([0, 2, 3])
        what = f"8 slots against 11{', compacted' * moved}"
        yield from compared_rows(subject, (plain, own), (envs, slots), what)
        plain = subject.forked()
        plain.fork([0], 2)


def roots_by_seed(subject: Subject) -> Iterator[str]:
    """A root's episode depends on its seed, not on its number among the roots."""
    forth, back = np.arange(4), np.arange(4)[::-1]
    sizes = {"num_envs": 4, "num_roots": 4, "num_contexts": 4}
    one = subject.forked(seed=[3, 5, 7, 9], **sizes)
    two = subject.forked(seed=[9, 7, 5, 3], **sizes)
    shown = (pick(as_numpy(one.observe()), forth), pick(as_numpy(two.observe()), back))
    if found := difference(*shown, name="first observation"):
        yield f"seeds 3, 5, 7, 9 against these reversed: {found}"
    yield from compared_rows(subject, (one, forth), (two, back), "seeds against these reversed")


CHECKS = (
    fork_shared,
    fork_split,
    placement,
    roots_by_seed,
)


def _family(subject: Subject, seed: int, rng: str) -> tuple[np.ndarray | None, list[list[bytes]]]:
    """Forks slot 0 into 8 more and steps all nine by the same actions.

    Returns:
        The branches' random keys, where there are such, and of each branch the bytes of what
        each of its steps gave.
    """
    envs: BranchingVectorEnv = subject.forked(num_envs=9, num_roots=1, seed=seed)
    envs.fork([0], 8, rng=rng)  # type: ignore[arg-type]
    held = getattr(envs.frontier, "key", None)
    keys = None if held is None else as_numpy(held)
    futures: list[list[bytes]] = [[] for _ in range(9)]
    running = np.ones(9, bool)
    for turn in range(LIMIT):
        seen = subject.step(envs, np.full(9, 7 * turn + 3 * seed))
        ended = seen["terminated"] | seen["truncated"]
        for slot in np.flatnonzero(running):
            told: list[bytes] = []
            for name in ("observation", "reward", "terminated", "truncated", "solved"):
                map_leaves(lambda leaf, at=slot, to=told: to.append(leaf[at].tobytes()), seen[name])
            futures[slot].append(b"".join(told))
        running &= ~ended
        if not running.any():
            break
    return keys, futures


def _first_unequal(one: list[bytes], two: list[bytes]) -> int:
    same = [a == b for a, b in zip(one, two, strict=False)]
    return (same.index(False) if False in same else len(same)) + 1
