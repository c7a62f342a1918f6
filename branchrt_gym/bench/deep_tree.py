"""`branchrt bench deep-tree`: the shared frontier beside the general batcher, on DeepTree."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from branchrt_gym.bench.batcher import GeneralBatcher
from branchrt_gym.bench.batcher_run import BatcherResult
from branchrt_gym.bench.measure import (
    PeakMemory,
    Summary,
    clock,
    copy_methods,
    fastest,
    ratio,
    summarize,
)
from branchrt_gym.bench.mismatches import Mismatches, compare
from branchrt_gym.envs.deep_tree import DeepTree
from branchrt_gym.policies import Beam
from branchrt_gym.roots import Roots, make_roots
from branchrt_gym.search import SearchResult, search

__all__ = ["Comparison", "Progress", "Sizes", "compare_deep_tree", "halves"]

Progress = Callable[[str, int, int], None]
"""Called with what is done next, the stages done, and all stages."""

SEARCHES = 5  # timed per repetition: a search is short beside one run of the batcher
COPIES = 3  # timed per repetition, of whole buffers


@dataclass(frozen=True)
class Sizes:
    """The size of the comparison: roots, a context each, of `width` entries, and the beam."""

    roots: int = 128
    width: int = 262_144
    beam: int = 8
    fanout: int = 4
    depth: int = 64


@dataclass(frozen=True)
class Comparison:
    """What the two approaches came to.

    Times are None where the results differ, or where the batcher did not run.

    Attributes:
        sizes: The sizes.
        device: Type of the device, `"cpu"` or `"cuda"`.
        result: The search over the whole depth.
        tier: The tier that the search ran.
        levels: The levels that both ran, timed and compared.
        shortened: Why that is less than the depth, or None.
        mismatches: The comparison of the branches kept last.
        search_seconds: Of `levels` levels.
        batcher_seconds: Likewise.
        ratio: Batcher over search.
        whole_seconds: The search over the whole depth, where the batcher ran fewer levels.
        copy_bandwidth: Bytes per second, read and written, of copying a whole buffer to the other.
        copy_share: What the batcher's copies, over its whole time, reach of that bandwidth.
        copy_methods: How the batcher copied rows, and how whole buffers were copied.
        search_peak: Bytes by which memory rose while contexts were made and searched; None
            where the system does not tell. `batcher_peak`: while its buffers were made and it ran.
        search_held: Bytes of the tensors held: contexts and population. `batcher_held`: its
            buffers and population, the roots' contexts not counted.
        transitions: Transitions that each took.
    """

    sizes: Sizes
    device: str
    result: SearchResult
    tier: str
    levels: int
    shortened: str | None
    mismatches: Mismatches | None
    search_seconds: Summary | None = None
    batcher_seconds: Summary | None = None
    ratio: Summary | None = None
    whole_seconds: Summary | None = None
    copy_bandwidth: Summary | None = None
    copy_share: Summary | None = None
    copy_methods: tuple[str, str] | None = None
    search_peak: int | None = None
    batcher_peak: int | None = None
    search_held: int = 0
    batcher_held: int | None = None
    transitions: int = 0

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches is None or self.mismatches.count == 0

    @property
    def peaks(self) -> tuple[int, int | None]:
        """Peak bytes of search and batcher: measured where both were, else those held."""
        if self.search_peak is None or self.batcher_peak is None:
            return self.search_held, self.batcher_held
        return self.search_peak, self.batcher_peak

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        found = self.mismatches
        return {
            "bench": "deep-tree",
            "sizes": asdict(self.sizes),
            "tier": self.tier,
            "levels": self.levels,
            "shortened": self.shortened,
            "transitions": self.transitions,
            "compared": found.compared if found else 0,
            "mismatches": found.count if found else None,
            "first_difference": found.first if found else None,
            "search_seconds": self.search_seconds,
            "batcher_seconds": self.batcher_seconds,
            "ratio": self.ratio,
            "whole_search_seconds": self.whole_seconds,
            "copy_bandwidth": self.copy_bandwidth,
            "batcher_copy_share": self.copy_share,
            "copy_methods": self.copy_methods,
            "memory": {
                "search_peak": self.search_peak,
                "batcher_peak": self.batcher_peak,
                "search_held": self.search_held,
                "batcher_held": self.batcher_held,
            },
        }


def compare_deep_tree(
    sizes: Sizes,
    *,
    repetitions: int = 5,
    device: str = "cpu",
    seconds: float = 60.0,
    free_bytes: int | None = None,
    patience: float = math.inf,
    progress: Progress = lambda stage, done, total: None,
) -> Comparison:
    """Runs both, compares what they found, and only if that is equal times them by turns.

    Args:
        sizes: How large.
        repetitions: Runs of the batcher that are timed, at least 1.
        device: Where both run.
        seconds: What one run of the batcher may take; it runs fewer levels where it would not do.
        free_bytes: Memory that its buffers may take; None for what is free.
        patience: Seconds of timing after which no further repetition begins.
        progress: Told of each stage.
    """
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    stages = 3 + repetitions
    policy = Beam(sizes.beam)
    env = DeepTree(width=sizes.width, fanout=sizes.fanout, depth=sizes.depth)
    search(DeepTree(width=8, depth=2), 2, policy, 2, device=device)  # loads what torch loads late

    progress(f"Making {sizes.roots:,} contexts of {sizes.width:,} and searching", 0, stages)
    with PeakMemory(device) as search_memory:
        roots = make_roots(env, sizes.roots, device=device)
        whole = search(env, roots, policy, sizes.depth, stop_solved=False)
    progress("Making the batcher's buffers and choosing its copy", 1, stages)
    with PeakMemory(device) as batcher_memory:
        batcher = GeneralBatcher(
            env, roots, sizes.beam, sizes.depth, seconds=seconds, free_bytes=free_bytes
        )
        progress("Running the batcher and comparing what both found", 2, stages)
        found = batcher.run() if batcher.levels else None
    result = whole
    if batcher.levels < sizes.depth:
        result = search(env, roots, policy, batcher.levels, stop_solved=False)
    comparison = Comparison(
        sizes=sizes,
        device=torch.device(device).type,
        result=whole,
        tier=whole.tier,
        levels=result.levels,
        shortened=batcher.shortened,
        mismatches=None if found is None else compare(found, result),
        search_peak=search_memory.bytes,
        batcher_peak=batcher_memory.bytes if found else None,
        search_held=_held(roots, whole),
        batcher_held=found.held if found else None,
        transitions=result.transitions,
    )
    if not comparison.equal:
        return comparison

    def timed_search(levels: int) -> float:
        return clock(lambda: search(env, roots, policy, levels, stop_solved=False), device)

    if found is None or not found.levels:
        times = [timed_search(sizes.depth) for _ in range(SEARCHES * repetitions)]
        return _with(comparison, whole_seconds=summarize(times))
    return _time(comparison, batcher, found, timed_search, repetitions, patience, progress)


def _time(
    comparison: Comparison,
    batcher: GeneralBatcher,
    found: BatcherResult,
    timed_search: Callable[[int], float],
    repetitions: int,
    patience: float,
    progress: Progress,
) -> Comparison:
    """Times search, batcher and plain copies by turns."""
    device, depth = comparison.device, comparison.sizes.depth
    source, target = halves(*(rows["context"] for rows in batcher.buffers))
    methods = copy_methods(source, target)
    best = fastest(methods, device)
    shared, general, copies, whole = [], [], [], []
    began = time.perf_counter()
    for repetition in range(repetitions):
        if repetition and time.perf_counter() - began > patience:
            break
        stage = f"Timing, repetition {repetition + 1} of {repetitions}"
        progress(stage, 3 + repetition, 3 + repetitions)
        shared += [timed_search(comparison.levels) for _ in range(SEARCHES)]
        if comparison.levels < depth:
            whole += [timed_search(depth) for _ in range(SEARCHES)]
        general.append(clock(batcher.run, device))
        copies += [clock(methods[best], device) for _ in range(COPIES)]
    progress("Done", 3 + repetitions, 3 + repetitions)
    moved = [2 * found.copied / spent for spent in general]
    bandwidth = summarize([2 * source.nbytes / spent for spent in copies])
    return _with(
        comparison,
        search_seconds=summarize(shared),
        batcher_seconds=summarize(general),
        ratio=ratio(general, shared),
        whole_seconds=summarize(whole) if whole else None,
        copy_bandwidth=bandwidth if source.nbytes else None,
        copy_share=(
            summarize([rate / bandwidth.median for rate in moved]) if source.nbytes else None
        ),
        copy_methods=(batcher.copy_method, best),
    )


def halves(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Returns two flat pieces of equal length; of one buffer where the other is empty."""
    one, other = one.view(-1), other.view(-1)
    if not min(len(one), len(other)):
        full = max(one, other, key=len)
        one, other = full[: len(full) // 2], full[len(full) // 2 :]
    length = min(len(one), len(other))
    return one[:length], other[:length]


def _with(comparison: Comparison, **figures: Any) -> Comparison:
    return Comparison(**{**comparison.__dict__, **figures})


def _held(roots: Roots, result: SearchResult) -> int:
    """The bytes of contexts, roots, the branches kept last, and the choices recorded."""
    held = [*roots.shared.values(), *roots.state.values(), roots.key, *result.choices]
    held += [*result.population.state.values(), result.population.branch_id]
    return sum(tensor.nbytes for tensor in held)
