"""`branchrt bench beams`: how good a beam search gets in the same memory, dense or shared.

In DeepTree the best leaf lies behind up to six of the poorest steps, so that a beam finds it only
if it is wide enough to keep what looks bad. With a context of its own for each branch the width
ends where memory does; on the shared frontier a branch costs what it has for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from branchrt_gym.bench.batcher import GeneralBatcher
from branchrt_gym.bench.capacity_room import in_child, release
from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.measure import LEVEL, RESAMPLES, PeakMemory
from branchrt_gym.bench.mismatches import compare
from branchrt_gym.envs.deep_tree import DeepTree
from branchrt_gym.frontier import check_device
from branchrt_gym.policies import Beam
from branchrt_gym.roots import Roots, make_roots
from branchrt_gym.search import SearchResult, search

__all__ = ["BeamFigures", "BeamPoint", "BeamSizes", "Mean", "measure_beams"]

PROBES = (256, 1024)  # beams whose memory tells what a branch of a search takes
MARGIN = 0.95  # of the width that follows: a branch does not take quite the same in all beams


@dataclass(frozen=True)
class BeamSizes:
    """What is searched.

    Attributes:
        roots: Of each seed, a context each. width: Entries of a context.
        fanout: Actions. depth: Levels.
        budgets: Bytes, each in turn.
        seeds: Sets of roots.
        widest: No beam is wider: it already keeps all that leads anywhere.
    """

    roots: int = 16
    width: int = 65_536
    fanout: int = 4
    depth: int = 64
    budgets: tuple[int, ...] = (8 << 20, 16 << 20, 32 << 20, 64 << 20, 128 << 20)
    seeds: int = 5
    widest: int = 8192

    def __post_init__(self) -> None:
        """Checks that every budget holds the contexts and a branch of each."""
        least = 2 * self.context_bytes
        if not self.budgets or min(self.budgets) < least or self.seeds < 1:
            raise ValueError(
                f"`budgets` is {self.budgets} and `seeds` {self.seeds}; expected 1 seed or more, "
                f"and at least {least:,} bytes, twice the contexts of {self.roots} roots"
            )

    @property
    def context_bytes(self) -> int:
        """Bytes of the contexts of all roots."""
        return self.roots * self.width * 2

    def env(self) -> DeepTree:
        """Returns the rules."""
        return DeepTree(width=self.width, fanout=self.fanout, depth=self.depth)


@dataclass(frozen=True)
class Mean:
    """A mean over the roots of all seeds, with a bootstrap 95 % interval, seeds kept apart."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class BeamPoint:
    """What one form came to in one budget.

    Attributes:
        form: `"dense"` or `"shared"`.
        budget: Bytes. beam: Branches kept of each root, as many as fit.
        bytes: What the form takes of the budget: computed for dense rows, measured for a search;
            None where the system does not tell.
        best: Each root's best score, of its target. solved: The share of roots that reach it.
    """

    form: str
    budget: int
    beam: int
    bytes: int | None
    best: Mean
    solved: Mean


@dataclass
class BeamFigures:
    """What all budgets came to.

    Attributes:
        sizes: The sizes. device: Type of the device.
        dense_bytes: Of a branch with its context. shared_bytes: Of a branch of a search.
        batcher_bytes: Of a branch of the general batcher, which has two rows for each.
        compared: Values of a search and of the general batcher at the same width.
            mismatches, first: those that differ.
        points: By budget, dense before shared.
    """

    sizes: BeamSizes
    device: str
    dense_bytes: int = 0
    shared_bytes: float = 0.0
    batcher_bytes: float = 0.0
    compared: int = 0
    mismatches: int = 0
    first: str | None = None
    points: list[BeamPoint] = field(default_factory=list)

    def falls(self, form: str | None = None) -> list[tuple[int, int, str, float]]:
        """Returns where a wider beam did worse: both widths, in what, and by how much.

        Args:
            form: Of one form; None for the beams of both in the order of their widths.
        """
        chosen = [point for point in self.points if form in (None, point.form)]
        chosen.sort(key=lambda point: point.beam)
        found = []
        for before, after in pairwise(chosen):
            for what in ("best", "solved"):
                lost = getattr(before, what).mean - getattr(after, what).mean
                if lost > 0:
                    found.append((before.beam, after.beam, what, lost))
        return found

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {
            "bench": "beams",
            "device": self.device,
            "sizes": asdict(self.sizes),
            "bytes_per_branch": {
                "dense": self.dense_bytes,
                "shared": self.shared_bytes,
                "batcher": self.batcher_bytes,
            },
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            "points": [asdict(point) for point in self.points],
            "monotone": not self.falls(),
            "falls": self.falls(),
        }


def measure_beams(
    sizes: BeamSizes,
    *,
    device: str = "cpu",
    progress: Progress = lambda stage, done, total: None,
) -> BeamFigures:
    """Searches with the widest beams that fit each budget, dense and shared.

    A dense branch takes one row of context and its state, the least that any form does with which
    each branch owns its context: the general batcher takes two. What a search finds with a beam
    does not depend on how it is stored, which is compared first, so both are searched alike.
    """
    kind = check_device(device).type
    figures = BeamFigures(sizes, kind)
    stages = 2 + 2 * len(sizes.budgets)
    progress("Comparing with the general batcher", 0, stages)
    _compare(figures, device)
    if figures.mismatches:
        return figures
    progress("Measuring what a branch takes", 1, stages)
    first, second = (_memory(sizes, width, device) for width in PROBES)
    if first is None or second is None:
        raise ValueError("this system does not tell the memory of a process; expected Linux")
    figures.shared_bytes = max(1, second - first) / (sizes.roots * (PROBES[1] - PROBES[0]))
    for number, budget in enumerate(sizes.budgets):
        for offset, form in enumerate(("dense", "shared")):
            beam = _beam(figures, form, budget, second)
            stage = f"{budget / 2**20:g} MiB, {form}: beam {beam:,}"
            progress(stage, 2 + 2 * number + offset, stages)
            figures.points.append(_point(figures, form, budget, beam, device))
    progress("Done", stages, stages)
    return figures


def _compare(figures: BeamFigures, device: str) -> None:
    """Runs the general batcher as wide as fits the least budget, and the search."""
    sizes, env = figures.sizes, figures.sizes.env()
    roots = make_roots(env, sizes.roots, device=device)
    state = sum(column.nbytes for column in roots.state.values())
    figures.dense_bytes = (sizes.context_bytes + state) // sizes.roots
    beam = max(1, min(sizes.budgets) // (sizes.roots * figures.dense_bytes))
    batcher = GeneralBatcher(env, roots, beam, sizes.depth, seconds=math.inf)
    found = batcher.run()
    same = compare(found, search(env, roots, Beam(beam), found.levels, stop_solved=False))
    figures.compared, figures.mismatches, figures.first = same.compared, same.count, same.first
    figures.batcher_bytes = found.held / (sizes.roots * beam)


def _beam(figures: BeamFigures, form: str, budget: int, probed: int) -> int:
    """Returns how wide a beam of this form the budget holds."""
    sizes = figures.sizes
    if form == "dense":
        beam = budget // (sizes.roots * figures.dense_bytes)
    else:
        left = budget - probed  # beyond the wider probe
        beam = int(PROBES[1] + MARGIN * left / (sizes.roots * figures.shared_bytes))
    return max(1, min(beam, sizes.widest))


def _memory(sizes: BeamSizes, beam: int, device: str) -> int | None:
    """Returns the bytes by which memory rises while contexts are made and searched."""
    if torch.device(device).type == "cpu":
        found: int | None = in_child(_rise, sizes, beam, device)
        return found
    return _rise(sizes, beam, device)


def _rise(sizes: BeamSizes, beam: int, device: str) -> int | None:
    env = DeepTree(width=256, fanout=sizes.fanout, depth=2)
    search(env, 2, Beam(2), 2, device=device)  # loads what torch loads late
    release(device)
    with PeakMemory(device) as memory:
        _search(sizes, 0, beam, device)
    return memory.bytes


def _search(sizes: BeamSizes, seed: int, beam: int, device: str) -> SearchResult:
    env = sizes.env()
    first = seed * sizes.roots
    roots: Roots = make_roots(env, range(first, first + sizes.roots), device=device)
    # Of all tiers the same result; this one takes beams of any width.
    return search(env, roots, Beam(beam), sizes.depth, tier="eager")


def _fitting(sizes: BeamSizes, beam: int, budget: int, device: str) -> tuple[int, int | None]:
    """Returns the beam, narrower where its search takes more than the budget, and what it takes."""
    taken = _memory(sizes, beam, device)
    while taken is not None and taken > budget and beam > 1:
        beam = max(1, min(beam - 1, int(beam * budget / taken)))
        taken = _memory(sizes, beam, device)
    return beam, taken


def _point(figures: BeamFigures, form: str, budget: int, beam: int, device: str) -> BeamPoint:
    sizes = figures.sizes
    taken: int | None = sizes.roots * beam * figures.dense_bytes
    if form == "shared":
        beam, taken = _fitting(sizes, beam, budget, device)
    best, solved = [], []
    for seed in range(sizes.seeds):
        result = _search(sizes, seed, beam, device)
        roots = result.roots
        target = roots.shared["target"][roots.context_index]
        best.append((result.score / target).tolist())
        solved.append(result.solved.to(torch.float64).tolist())
        release(device)
    return BeamPoint(form, budget, beam, taken, _mean(best), _mean(solved))


def _mean(samples: Sequence[Sequence[float]]) -> Mean:
    """Returns the mean over all; within a seed roots are drawn again, from seed to seed not."""
    chance = np.random.default_rng(0)
    seeds = [np.asarray(values, dtype=np.float64) for values in samples]
    again = [
        values[chance.integers(len(values), size=(RESAMPLES, len(values)))] for values in seeds
    ]
    low, high = np.quantile(
        np.concatenate(again, axis=1).mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    )
    return Mean(float(np.concatenate(seeds).mean()), float(low), float(high))
