"""Measuring: statistics of samples, copy bandwidth and peak memory."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "PeakMemory",
    "Summary",
    "Threads",
    "clock",
    "copy_methods",
    "fastest",
    "free_memory",
    "interquartile_mean",
    "ratio",
    "summarize",
]

RESAMPLES = 2000
LEVEL = 0.95
TRIALS = 5
STATUS = Path("/proc/self/status")
FORGET_PEAK = Path("/proc/self/clear_refs")

Samples = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """What some samples of one quantity come to.

    Attributes:
        median: The median.
        low: Lower end of its bootstrap 95 % interval. high: likewise.
        interquartile_mean: The mean of the middle half.
        least: The smallest sample. most: likewise.
        count: How many samples.
    """

    median: float
    low: float
    high: float
    interquartile_mean: float
    least: float
    most: float
    count: int


def summarize(samples: Samples) -> Summary:
    """Summarizes samples; the interval is the same in every run, its random state is fixed."""
    values = _values(samples)
    medians = np.median(_resampled(values, np.random.default_rng(0)), axis=1)
    low, high = _interval(medians)
    return Summary(
        median=float(np.median(values)),
        low=low,
        high=high,
        interquartile_mean=interquartile_mean(values),
        least=float(values.min()),
        most=float(values.max()),
        count=values.size,
    )


def ratio(above: Samples, below: Samples) -> Summary:
    """Summarizes `median(above) / median(below)`, both sides resampled independently.

    `least` is the smallest sample above over the largest below, `most` the reverse.
    """
    top, bottom = _values(above), _values(below)
    chance = np.random.default_rng(0)
    quotients = np.median(_resampled(top, chance), axis=1)
    quotients = quotients / np.median(_resampled(bottom, chance), axis=1)
    low, high = _interval(quotients)
    return Summary(
        median=float(np.median(top) / np.median(bottom)),
        low=low,
        high=high,
        interquartile_mean=interquartile_mean(top) / interquartile_mean(bottom),
        least=float(top.min() / bottom.max()),
        most=float(top.max() / bottom.min()),
        count=min(top.size, bottom.size),
    )


def interquartile_mean(samples: Samples) -> float:
    """Returns the mean of what stays when a quarter of the samples is cut off at either end.

    Of `n` samples `n // 4` are cut at each end, as `scipy.stats.trim_mean(samples, 0.25)` does.
    """
    values = np.sort(_values(samples))
    cut = values.size // 4
    return float(values[cut : values.size - cut].mean())


def _values(samples: Samples) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"`samples` has shape {values.shape}; expected one sample or more")
    return values


def _resampled(values: NDArray[np.float64], chance: np.random.Generator) -> NDArray[np.float64]:
    return values[chance.integers(values.size, size=(RESAMPLES, values.size))]


def _interval(statistics: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(statistics, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def clock(call: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Runs a call once and returns its wall-clock seconds, the device's work included."""
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    begin = time.perf_counter()
    call()
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    return time.perf_counter() - begin


def copy_methods(source: Tensor, target: Tensor) -> dict[str, Callable[[], object]]:
    """Returns the ways to copy a whole flat tensor to another, of equal length and dtype.

    A copy reads and writes each byte once: its bandwidth is twice the bytes over the seconds.
    """
    methods: dict[str, Callable[[], object]] = {"torch copy_": lambda: target.copy_(source)}
    if source.device.type == "cpu":
        array, into = source.numpy(), target.numpy()
        threads = Threads()

        def copy(piece: slice) -> None:
            np.copyto(into[piece], array[piece])

        methods["numpy copyto, threads"] = lambda: threads.each(copy, len(array))
    return methods


def fastest(calls: Mapping[str, Callable[[], object]], device: torch.device | str) -> str:
    """Returns the name of the call whose median time is least, of `TRIALS` by turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TRIALS):
        for name, call in calls.items():
            times[name].append(clock(call, device))
    return min(calls, key=lambda name: np.median(times[name]))


class Threads:
    """Runs a NumPy copy in as many threads as torch uses, each on its piece of the rows.

    Torch's own threads wait for each other after every row that is copied, which takes a hundred
    times as long where another process wants a core; these wait once.
    """

    def __init__(self) -> None:
        """Makes the threads; they end with this object."""
        self.count = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self.count)

    def each(self, call: Callable[[slice], object], rows: int) -> None:
        """Calls once for each piece of `0 … rows - 1` and waits for all."""
        ends = [rows * number // self.count for number in range(self.count + 1)]
        list(self._pool.map(call, map(slice, ends[:-1], ends[1:])))


class PeakMemory:
    """Measures how far memory rose, above what was held before, while its block ran.

    On CUDA that is what torch allocated on the device; on the CPU the resident memory of the
    process, as Linux counts it.

    Attributes:
        bytes: The rise, after the block; None where the system does not tell.
    """

    def __init__(self, device: torch.device | str) -> None:
        """Measures nothing yet."""
        self.bytes: int | None = None
        self._device = torch.device(device)
        self._before: int | None = None

    def __enter__(self) -> Self:
        """Takes the level to measure from."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            try:
                FORGET_PEAK.write_text("5")
            except OSError:
                return self
            self._before = _status("VmRSS")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes the peak."""
        if self._device.type == "cuda":
            peak: int | None = torch.cuda.max_memory_allocated(self._device)
        else:
            peak = _status("VmHWM")
        if peak is not None and self._before is not None:
            self.bytes = max(0, peak - self._before)


def _status(name: str) -> int | None:
    """Reads one entry of this process's status, in bytes."""
    return _entry(STATUS, name)


def _entry(path: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def free_memory(device: torch.device | str) -> int | None:
    """Returns the bytes that can still be allocated, or None where the system does not tell."""
    where = torch.device(device)
    if where.type == "cuda":
        return int(torch.cuda.mem_get_info(where)[0])
    left = [_entry(Path("/proc/meminfo"), "MemAvailable"), _control_group()]
    known = [value for value in left if value is not None]
    return min(known) if known else None


def _control_group() -> int | None:
    """Returns what the process's control group leaves, for containers with a limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        statistics = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    cached = re.search(r"^inactive_file (\d+)", statistics, re.MULTILINE)
    return int(limit) - used + (int(cached[1]) if cached else 0)
