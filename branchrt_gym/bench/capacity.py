"""`branchrt bench capacity`: how many branches the same memory holds, dense rows against pages.

Three methods that do not depend on each other: `capacity`, the number of branches at which a fixed
budget runs out of memory; `peak`, the memory that equal populations take; `throughput`, rounds of
forks and runs by turns. Contents are compared before anything is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from branchrt_gym.bench.capacity_figures import Capacity, CapacityCell, CapacitySizes
from branchrt_gym.bench.capacity_room import Attempt, Limits, attempt, first_that_fails
from branchrt_gym.bench.capacity_times import Throughput, measure_throughput
from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.frontier import check_device

__all__ = ["METHODS", "measure_capacity"]

METHODS = ("capacity", "peak", "throughput")
TIMED_FANOUT = 16  # throughput hardly depends on it
BESIDE = 110  # bytes of a branch beside its contents, about: for the first guess alone


def measure_capacity(
    sizes: CapacitySizes,
    *,
    methods: Sequence[str] = METHODS,
    repetitions: int = 7,
    device: str = "cpu",
    progress: Progress = lambda stage, done, total: None,
) -> Capacity:
    """Measures every fan-out and mutation by each method; stops at the first mismatch.

    Args:
        sizes: What to measure.
        methods: Of `METHODS`.
        repetitions: Timed rounds of each form.
        device: Where.
        progress: Told of each stage.
    """
    check_device(device)
    unknown = sorted(set(methods) - set(METHODS))
    if unknown or not methods or repetitions < 1:
        raise ValueError(
            f"`methods` is {list(methods)} and `repetitions` {repetitions}; expected of "
            f"{', '.join(METHODS)}, and 1 or more"
        )
    cells = [
        CapacityCell(fanout, mutation, round(sizes.width * mutation / 100), sizes.width)
        for mutation in sizes.mutations
        for fanout in sizes.fanouts
    ]
    kind = torch.device(device).type
    capacity = Capacity(sizes, kind, tuple(m for m in METHODS if m in methods), cells)
    stages = [*_stages(capacity)]
    steps = _measure(capacity, repetitions, device)
    for done, stage in enumerate(stages):
        progress(stage, done, len(stages))
        capacity.found.append(next(steps))
        if capacity.mismatches:
            break
    progress("Done", len(stages), len(stages))
    return capacity


def _stages(capacity: Capacity) -> Iterator[str]:
    for method in sorted(capacity.methods, reverse=True):  # `throughput` compares most: first
        if method != "throughput":
            yield f"{method}: dense"
        for cell in capacity.cells:
            if method != "throughput" or cell.fanout == _timed(capacity.sizes):
                yield f"{method}: {cell.mutation} % of {cell.fanout} branches a context"


def _timed(sizes: CapacitySizes) -> int:
    return TIMED_FANOUT if TIMED_FANOUT in sizes.fanouts else sizes.fanouts[0]


def _measure(capacity: Capacity, repetitions: int, device: str) -> Iterator[Attempt | Throughput]:
    """Takes the steps that `_stages` names; yields what was compared in each."""
    sizes = capacity.sizes
    if "throughput" in capacity.methods:
        count = sizes.budget // (2 * sizes.row_bytes)  # with their children they fill the budget
        for cell in capacity.cells:
            if cell.fanout == _timed(sizes):
                one = sizes.population(count, cell.fanout, cell.mutation, device)
                one = replace(one, spare=count, spare_runs=count)
                cell.throughput = measure_throughput(one, repetitions=repetitions, device=device)
                yield cell.throughput
    if "peak" in capacity.methods:
        budget = sizes.peak_budget or sizes.budget
        count = capacity.peak_branches = budget // sizes.row_bytes
        one = sizes.population(count, sizes.fanouts[0], max(sizes.mutations), device, budget)
        capacity.dense_peak = attempt("dense", one, device)
        yield capacity.dense_peak
        for cell in capacity.cells:
            one = sizes.population(count, cell.fanout, cell.mutation, device, budget)
            cell.peak = attempt("paged", one, device)
            yield cell.peak
    if "capacity" in capacity.methods:
        capacity.dense_limits = _limits_of("dense", capacity, None, device)
        yield capacity.dense_limits.at
        for cell in capacity.cells:
            cell.limits = _limits_of("paged", capacity, cell, device)
            yield cell.limits.at


def _limits_of(form: str, capacity: Capacity, cell: CapacityCell | None, device: str) -> Limits:
    sizes = capacity.sizes
    fanout, mutation = (
        (cell.fanout, cell.mutation) if cell else (sizes.fanouts[0], max(sizes.mutations))
    )
    one = sizes.population(1, fanout, mutation, device)
    each = float(sizes.row_bytes + BESIDE)
    if form == "paged":
        page = one.page_entries * one.item + 8
        each = sizes.row_bytes / fanout + one.pages_each * page + BESIDE
        each += 4 * -(-sizes.width // one.page_entries)

    def try_out(count: int) -> Attempt:
        population = sizes.population(count, fanout, mutation, device)
        return attempt(form, population, device, sizes.budget)

    return first_that_fails(try_out, sizes.budget / each)
