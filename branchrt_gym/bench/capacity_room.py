"""Room for a population: whether it fits a budget of memory, and how much it takes.

On CUDA the budget is what torch may reserve on the device, and the allocator is emptied between
tries. On the CPU each try is a process of its own, whose private memory the system limits to the
budget; they are forked from one that has imported what they need, so that a try costs no imports.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from branchrt_gym.bench.capacity_check import check_population
from branchrt_gym.bench.capacity_contents import PopulationSizes
from branchrt_gym.bench.capacity_forms import FORMS
from branchrt_gym.bench.measure import PeakMemory

__all__ = ["Attempt", "Limits", "attempt", "first_that_fails", "in_child"]

ENTRIES = 16  # of every branch, compared in each try that fits
WIDER = 4  # by how much a bracket that does not hold is widened
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Attempt:
    """What became of a population.

    Attributes:
        fits: Whether there was memory for it.
        peak: Bytes that it took at most; None where it did not fit, or the system does not tell.
        held: Bytes that it holds, by what they hold.
        compared: Values compared with what they must be. mismatches, first: those that differ.
    """

    fits: bool
    peak: int | None = None
    held: dict[str, int] | None = None
    compared: int = 0
    mismatches: int = 0
    first: str | None = None


@dataclass(frozen=True)
class Limits:
    """Between which numbers of branches memory ran out.

    Attributes:
        fits: The most that fit. fails: The least that did not.
        at: What the most came to.
        tries: Populations that were made, or begun.
    """

    fits: int
    fails: int
    at: Attempt
    tries: int


def attempt(form: str, sizes: PopulationSizes, device: str, budget: int | None = None) -> Attempt:
    """Makes a population within a budget, and compares it with what it must hold.

    Args:
        form: `"dense"` or `"paged"`.
        sizes: How large.
        device: Where.
        budget: Bytes that it may take; None for as many as there are.
    """
    if torch.device(device).type == "cpu":
        found: Attempt = in_child(_attempt, form, sizes, device, budget)
        return found
    return _attempt(form, sizes, device, budget)


def _attempt(form: str, sizes: PopulationSizes, device: str, budget: int | None) -> Attempt:
    _warm(form, sizes, device)
    population = FORMS[form](sizes, device)
    release(device)
    try:
        with limited(budget, device), _peak(device) as memory:
            population.build()
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        return Attempt(fits=False)
    return Attempt(True, memory.bytes, population.held(), *check_population(population, ENTRIES))


def _warm(form: str, sizes: PopulationSizes, device: str) -> None:
    """Makes a small one, so that neither threads nor kernels count."""
    run = min(sizes.run, 64)
    small = replace(sizes, branches=40, contexts=4, width=256, run=run, spare=0, spare_runs=0)
    population = FORMS[form](small, device)
    population.build()
    check_population(population, ENTRIES)


class _Reserved:
    """As `PeakMemory`, what torch reserved on a CUDA device, beyond what it had."""

    def __init__(self, device: str) -> None:
        self.bytes: int | None = None
        self._device = device

    def __enter__(self) -> _Reserved:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_reserved(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize(self._device)
        self.bytes = torch.cuda.max_memory_reserved(self._device) - self._before


def _peak(device: str) -> _Reserved | PeakMemory:
    return PeakMemory(device) if torch.device(device).type == "cpu" else _Reserved(device)


@contextmanager
def limited(budget: int | None, device: str) -> Iterator[None]:
    """Lets no more than so many bytes be taken inside the block."""
    if budget is None:
        yield
        return
    if torch.device(device).type == "cpu":
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (_private() + budget, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        return
    held, (_, total) = torch.cuda.memory_reserved(device), torch.cuda.mem_get_info(device)
    with torch.cuda.device(device):
        torch.cuda.set_per_process_memory_fraction(min(1.0, (held + budget) / total))
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)


def release(device: str) -> None:
    """Gives back what is held of earlier populations, so that it is no room beside the budget."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    else:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
        if trim is not None:
            trim(0)


def _private() -> int:
    """Bytes that count towards the limit of private memory, as Linux counts them."""
    found = re.search(r"^VmData:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("this system does not tell a process's private memory; expected Linux")
    return int(found[1]) * 1024


def _out_of_memory(error: BaseException) -> bool:
    said = ("allocate memory", "bad_alloc", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in said
    )


def first_that_fails(
    try_out: Callable[[int], Attempt], guess: float, *, least: int = 1, tolerance: float = 0.002
) -> Limits:
    """Finds the number of branches at which memory runs out.

    Args:
        try_out: Makes a population of so many.
        guess: About how many will fit; a bad guess costs tries, not truth.
        least: Branches that any population has.
        tolerance: The two limits lie this share apart, or are neighbours.

    Raises:
        ValueError: If not even `least` branches fit.
    """
    tries = 0
    step = max(1.0, 4 * tolerance * guess)
    low, high = 0, 0
    best: Attempt | None = None
    count = max(least, round(guess - step / 2))
    while True:
        found = try_out(count)
        tries += 1
        if found.mismatches:
            return Limits(count, count, found, tries)
        if found.fits:
            low, best = count, found
        else:
            high = count
            if count == least:
                raise ValueError(f"not even {least} branches fit the budget")
        if not high:
            count = low + max(1, round(step))
            step *= WIDER
        elif not low:
            count = max(least, high - max(1, round(step)))
            step *= WIDER
        elif high - low <= max(1, int(tolerance * low)):
            assert best is not None
            return Limits(low, high, best, tries)
        else:
            count = (low + high) // 2


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a process of its own, and returns what it returns.

    Raises:
        RuntimeError: If the process ended without an answer.
        Exception: What the function raised.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, function, arguments), daemon=True)
    child.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError as error:
        child.join()
        raise RuntimeError(f"the process of a try ended with {child.exitcode}") from error
    finally:
        ours.close()
    child.join()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _answer(answers: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)  # nothing is timed, and threads that wait for a core take long
    try:
        found = function(*arguments)
    except Exception as error:
        found = error
    answers.send(found)
    answers.close()
