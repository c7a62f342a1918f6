"""Times of populations: a round of forks and runs in either form, and forks of very many pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from branchrt_gym.bench.capacity_check import check_population
from branchrt_gym.bench.capacity_contents import PopulationSizes
from branchrt_gym.bench.capacity_forms import FORMS, PagedForm, PopulationForm
from branchrt_gym.bench.capacity_room import release
from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.estimates import Estimate, estimate, estimate_ratio
from branchrt_gym.bench.measure import clock
from branchrt_gym.slots import FREE

__all__ = ["PageSteps", "Throughput", "measure_page_steps", "measure_throughput"]

FLUSHED = 512 << 20  # bytes written before each repetition, more than any cache holds
COMPARED = 4096  # entries of every branch


@dataclass
class Throughput:
    """What a round takes: every branch is forked, each child overwrites a run and is pruned.

    Attributes:
        branches: Branches that are forked; as many children live beside them.
        contexts: Their contexts.
        compared: Values compared of parents and children. mismatches, first: those that differ.
        seconds: Of a round, by form.
    """

    branches: int
    contexts: int
    compared: int = 0
    mismatches: int = 0
    first: str | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Returns the figures for a row of evidence."""
        rates = {
            name: estimate([[self.branches / spent for spent in samples]])
            for name, samples in self.seconds.items()
        }
        return {
            "branches": self.branches,
            "contexts": self.contexts,
            "branches_per_second": rates,
            "ratio": self.ratio,
        }

    @property
    def ratio(self) -> Estimate | None:
        """Time of the dense round over that of the paged one."""
        if not self.seconds:
            return None
        return estimate_ratio([self.seconds["dense"]], [self.seconds["paged"]])


def measure_throughput(sizes: PopulationSizes, *, repetitions: int, device: str) -> Throughput:
    """Compares both forms' parents and children, then times rounds of both by turns.

    Each round begins from the same branches, whose own runs are written, and ends with them: the
    children are pruned and, of pages, all that was theirs is reclaimed. On CUDA a round of either
    form is a graph, and the pool has room for all of its pages; on the CPU it is made sure of.
    """
    count = sizes.branches
    release(device)
    found = Throughput(count, sizes.contexts)
    rounds: dict[str, Callable[[], object]] = {}
    for name, form in FORMS.items():
        population = form(sizes, device)
        population.build()
        grow, retire = _round(population)
        grow()
        for first, turns in ((0, 1), (count, 2)):
            entries = min(COMPARED, sizes.width)
            compared, mismatches, first_wrong = check_population(population, entries, turns, first)
            found.compared += compared
            found.mismatches += mismatches
            if found.first is None and first_wrong is not None:
                found.first = f"{name}: {first_wrong}"
        retire()
        rounds[name] = _both(grow, retire)
    if found.mismatches:
        return found
    found.seconds = _by_turns(rounds, repetitions, device)
    return found


def _both(grow: Callable[[], object], retire: Callable[[], object]) -> Callable[[], object]:
    def whole() -> None:
        grow()
        retire()

    return whole


def _round(population: PopulationForm) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns what forks every branch and overwrites a run of each child, and what undoes it."""
    sizes, contents, frontier = population.sizes, population.contents, population.frontier
    count, device = sizes.branches, population.device
    parents = torch.arange(count, device=device)
    rows = parents + count
    start, value = contents.start(parents, turn=1), contents.value(parents, turn=1)
    children = torch.arange(2 * count, device=device) >= count

    def grow() -> None:
        population.fork(parents, count)
        if sizes.run:
            if device.type == "cpu":
                population.make_room(rows, start)
            population.write(rows, start, value)

    def retire() -> None:
        frontier.prune(children)
        population.reclaim()

    return grow, retire


@dataclass
class PageSteps:
    """What forking very many branches with large paged states takes, and freeing half of them.

    Attributes:
        branches: Branches that are forked, each with one page of its own.
        state_bytes: Bytes of a branch's state. page_bytes: Of a page.
        compared: Values compared of the children. mismatches, first: those that differ.
        seconds: `"fork"`, and `"reclaim"`: pruning half of the branches and reclaiming their pages.
    """

    branches: int
    state_bytes: int
    page_bytes: int
    compared: int = 0
    mismatches: int = 0
    first: str | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {
            "bench": "page-steps",
            "branches": self.branches,
            "state_bytes": self.state_bytes,
            "page_bytes": self.page_bytes,
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            "seconds": {name: estimate([samples]) for name, samples in self.seconds.items()},
        }


def measure_page_steps(
    *,
    branches: int = 1 << 20,
    state_bytes: int = 512 << 10,
    page_bytes: int = 4 << 10,
    repetitions: int = 20,
    device: str = "cuda",
    progress: Progress = lambda stage, done, total: None,
) -> PageSteps:
    """Times a fork of all branches, and pruning and reclaiming half, each from the same state."""
    progress(f"Making {branches:,} branches of {state_bytes >> 10:,} KiB", 0, 3)
    release(device)
    sizes = PopulationSizes(
        branches,
        min(branches, 1024),
        state_bytes,
        run=1,
        dtype="uint8",
        page_size=page_bytes,
        spare=branches,
        block=64 << 20,
    )
    population = PagedForm(sizes, device)
    population.build()
    frontier, pool = population.frontier, population.pool
    parents = torch.arange(branches, device=population.device)
    slots = torch.arange(2 * branches, device=population.device)
    children, half = slots >= branches, (slots < branches) & (slots % 2 == 0)
    saved = [column.clone() for column in (frontier.status, pool.free, pool.top)]
    found = PageSteps(branches, state_bytes, page_bytes)

    def restore() -> None:
        for column, values in zip((frontier.status, pool.free, pool.top), saved, strict=True):
            column.copy_(values)

    def reclaim() -> None:
        frontier.prune(half)
        population.reclaim()

    progress("Comparing", 1, 3)
    frontier.fork(parents)
    found.compared, found.mismatches, found.first = check_population(population, 64, first=branches)
    frontier.prune(children)
    reclaim()
    left = branches - int(half.sum())
    found.compared += 2
    for what, pages in (("in use", pool.in_use), ("held", pool.reachable(frontier.status != FREE))):
        if pages != left:
            found.mismatches += 1
            found.first = found.first or f"{pages} pages are {what} of half, not {left}"
    restore()
    if found.mismatches:
        return found
    progress("Timing", 2, 3)
    calls: dict[str, Callable[[], object]] = {
        "fork": partial(frontier.fork, parents),
        "reclaim": reclaim,
    }
    found.seconds = _by_turns(calls, repetitions, device, restore)
    progress("Done", 3, 3)
    return found


def _timer(call: Callable[[], object], device: str) -> Callable[[], float]:
    """Returns what runs the call and returns its seconds: on CUDA those of a graph of it.

    The call has run before, so that all of it is compiled.
    """
    where = torch.device(device)
    if where.type == "cpu":
        return partial(clock, call)
    torch.cuda.synchronize(where)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(where), torch.cuda.graph(graph):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def timed() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return timed


def _by_turns(
    calls: Mapping[str, Callable[[], object]],
    repetitions: int,
    device: str,
    restore: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Times all by turns; before each the state is restored and the cache flushed."""
    on_device = torch.device(device).type == "cuda"
    scratch = torch.empty(FLUSHED if on_device else 1, dtype=torch.uint8, device=device)
    timers = {name: _timer(call, device) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for repetition in range(repetitions):
        for name, timer in timers.items():
            restore()
            scratch.fill_(repetition % 2)
            seconds[name].append(timer())
    return seconds
