"""`branchrt bench expand`: fork, transition and reward of every child in one call, on DeepTree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.expand_forms import ExpandForms, ExpandSizes
from branchrt_gym.bench.measure import Summary, clock, interquartile_mean, summarize

__all__ = ["ExpandTimes", "measure_expand"]

FLUSHED = 512 << 20  # bytes written before each repetition, more than any cache holds


@dataclass(frozen=True)
class ExpandTimes:
    """What the expansion came to; without times where it differs from torch.

    Attributes:
        sizes: The sizes.
        compared: Values compared with torch's: of all children, every column and entry.
        mismatches: How many differ.
        first: The first column that does.
        bytes_per_child: Read of parents and written, by form; a context's entry is beside that.
        seconds: By form; see `ExpandForms`.
        copy_bandwidth: Bytes per second, read and written, of a plain copy.
    """

    sizes: ExpandSizes
    compared: int
    mismatches: int
    first: str | None
    bytes_per_child: dict[str, float]
    seconds: Mapping[str, Summary] = field(default_factory=dict)
    copy_bandwidth: Summary | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    @property
    def rates(self) -> dict[str, float]:
        """Children per second by form, from the interquartile means."""
        return {
            name: self.sizes.children / spent.interquartile_mean
            for name, spent in self.seconds.items()
        }

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        rates, bandwidth = self.rates, self.copy_bandwidth
        bound = {
            name: bandwidth.interquartile_mean / moved if bandwidth else None
            for name, moved in self.bytes_per_child.items()
        }
        return {
            "bench": "expand",
            "sizes": asdict(self.sizes),
            "children": self.sizes.children,
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            "seconds": self.seconds,
            "children_per_second": rates,
            "bytes_per_child": self.bytes_per_child,
            "copy_bandwidth": bandwidth,
            "bound_by_copy_bandwidth": bound,
            "bare_share_of_reads": rates["bare"] / rates["reads"] if rates else None,
        }


def measure_expand(
    sizes: ExpandSizes,
    *,
    repetitions: int = 20,
    device: str = "cuda",
    progress: Progress = lambda stage, done, total: None,
) -> ExpandTimes:
    """Expands a frontier with the kernel and in torch, compares all of it, then times by turns.

    On CUDA each form but `step` and `torch` is a graph, timed by the device's own clock; before
    each repetition the cache is flushed.
    """
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    stages = 3 + repetitions
    progress(f"Making {sizes.parents:,} branches of {sizes.roots:,} roots", 0, stages)
    forms = ExpandForms(sizes, device)
    progress("Expanding both ways and comparing", 1, stages)
    times = ExpandTimes(sizes, *forms.compare(), forms.bytes_per_child)
    if not times.equal:
        return times
    progress("Compiling and capturing", 2, stages)
    on_device = torch.device(device).type == "cuda"
    flushed = torch.empty(FLUSHED if on_device else 1, dtype=torch.uint8, device=device)
    timers = {name: _timer(call, device) for name, call in forms.captured.items()}
    for name, call in forms.eager.items():
        timers[name] = partial(clock, call, device)
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for repetition in range(repetitions):
        progress(f"Timing, repetition {repetition + 1} of {repetitions}", 3 + repetition, stages)
        for name, timer in timers.items():
            forms.restore()
            flushed.fill_(repetition % 2)
            seconds[name].append(timer())
    progress("Done", stages, stages)
    # A graph hands a plain copy to other hardware than kernels run on; the faster one counts.
    copies = [seconds.pop(name) for name in ("copy", "inverted copy")]
    copied = min(copies, key=interquartile_mean)
    return replace(
        times,
        seconds={name: summarize(spent) for name, spent in seconds.items()},
        copy_bandwidth=summarize([forms.copied / spent for spent in copied]),
    )


def _timer(call: Callable[[], object], device: str) -> Callable[[], float]:
    """Returns what runs the call once and returns its seconds: on CUDA from a graph."""
    if torch.device(device).type != "cuda":
        return partial(clock, call)
    call()  # compiles
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )

    def timed() -> float:
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize(device)
        return float(begin.elapsed_time(end)) / 1e3

    return timed
