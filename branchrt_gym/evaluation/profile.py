"""Where the wall time of a run goes: generation, environment and verifier, frontier."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

__all__ = ["LAYERS", "Gain", "Profile", "ceiling", "layer"]

LAYERS = ("generation", "environment", "frontier")
OTHER = "other"
BINS = 1024  # of the timeline
FIRST_BIN = 1e-4  # seconds; doubled whenever the run outgrows them
TRIALS, ENTRIES = 10, 100  # another process that wants the core spoils a trial, not all

_running: ContextVar[Profile | None] = ContextVar("branchrt_profile", default=None)
_NOTHING: AbstractContextManager[None] = nullcontext()


def layer(name: str) -> AbstractContextManager[None]:
    """Charges a block to a layer of the profile that runs here, if one does.

    Args:
        name: `"generation"` (a policy or model decides), `"environment"` (steps and verdicts,
            waiting for them included) or `"frontier"` (which attempt is next, what its verdict
            changes, and the journal).

    Cost: about 0.2 µs without a profile, 1 µs with one.
    """
    profile = _running.get()
    return _NOTHING if profile is None else profile.layer(name)


@dataclass(frozen=True)
class Gain:
    """What a faster frontier brings, end to end.

    Attributes:
        addressable: The share `p` of the baseline's wall time that its frontier takes.
        speedup: The baseline's frontier seconds over ours, `s`.
        ceiling: `1 / ((1 - p) + p / s)`, the end-to-end speed-up if nothing else changes.
        measured: The baseline's wall time over ours.
    """

    addressable: float
    speedup: float
    ceiling: float
    measured: float

    def __str__(self) -> str:
        """Writes both in one line."""
        return (
            f"addressable {self.addressable:.1%}, frontier {self.speedup:.2f}× faster: "
            f"at most {self.ceiling:.3f}× end to end, measured {self.measured:.3f}×"
        )


class Profile:
    """Splits the wall time of its block into layers; a context manager.

    Code marks its layers with `layer(name)`, which finds the profile of the same thread, or with
    `profile.layer(name)`. Time in a layer inside another counts for the inner one alone. What is
    in no layer is "other". `EvalFrontier`, `HostController` and the benches are marked. A second
    block starts afresh.

    Attributes:
        seconds: Of each layer, `"other"` included; they add up to `wall`.
        wall: Seconds of the block.
        entries: How often a layer was entered.
        overhead: Seconds of those that the profile itself took: the entries times what an empty
            one takes, measured at the end of the block.
        bin_seconds: The width of the timeline's bins.
        timeline: Of each layer the seconds in each bin, at most 1,024, from the begin to the end.

    Args:
        device: With a CUDA device each change of layer waits for it, so that its work is charged
            to the layer that asked for it. That takes time which a run without a profile saves.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Measures nothing yet."""
        self.seconds = dict.fromkeys((*LAYERS, OTHER), 0.0)
        self.wall = 0.0
        self.entries = 0
        self.overhead = 0.0
        self.bin_seconds = FIRST_BIN
        self.timeline: dict[str, list[float]] = {}
        where = torch.device(device)
        self._wait: Callable[[], None] | None = None
        if where.type == "cuda":
            self._wait = lambda: torch.cuda.synchronize(where)
        self._layers = {name: _Layer(self, name) for name in LAYERS}
        self._open: list[str] = []
        self._begin = self._since = 0.0
        self._token: Token[Profile | None] | None = None

    def layer(self, name: str) -> AbstractContextManager[None]:
        """Charges a block to a layer; outside the profile's own block it does nothing."""
        found = self._layers.get(name)
        if found is None:
            raise ValueError(f"`layer` is {name!r}; expected one of {', '.join(LAYERS)}")
        return found if self._token is not None else _NOTHING

    def against(self, baseline: Profile) -> Gain:
        """Compares with a run that made the same attempts under another frontier."""
        if not (self.wall and baseline.wall):
            raise ValueError("both profiles must have ended; run a `with Profile() as p:` of each")
        theirs, ours = baseline.seconds["frontier"], self.seconds["frontier"]
        share = min(theirs / baseline.wall, 1.0)
        speedup = theirs / ours if ours else float("inf")
        return Gain(share, speedup, ceiling(share, speedup), baseline.wall / self.wall)

    def row(self) -> dict[str, float]:
        """Returns the seconds as part of a row of evidence."""
        return {"wall": self.wall, **self.seconds, "overhead": self.overhead}

    def __str__(self) -> str:
        """Writes each layer's seconds and share of the wall time in one line."""
        wall = self.wall or 1.0
        parts = [f"{name} {took:.3f} s ({took / wall:.1%})" for name, took in self.seconds.items()]
        itself = f"profiling took {self.overhead / wall:.2%} of it"
        return f"{self.wall:.3f} s: {', '.join(parts)}; {itself}"

    def __enter__(self) -> Self:
        """Starts measuring."""
        self._start()
        return self

    def _start(self) -> None:
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self.entries, self._open = 0, [OTHER]
        self.bin_seconds, self.timeline = FIRST_BIN, {name: [0.0] * BINS for name in LAYERS}
        self._token = _running.set(self)
        self._begin = self._since = self._now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the measurement."""
        self._stop()
        self.overhead = self.entries * _cost_of_an_entry()

    def _stop(self) -> None:
        self._charge()
        self.wall = self._since - self._begin
        bins = min(BINS, math.ceil(self.wall / self.bin_seconds))
        self.timeline = {name: values[:bins] for name, values in self.timeline.items()}
        assert self._token is not None
        _running.reset(self._token)
        self._token = None

    def _now(self) -> float:
        if self._wait is not None:
            self._wait()
        return time.perf_counter()

    def _charge(self) -> None:
        """Charges the time since the last change to the layer that is open."""
        now, name = self._now(), self._open[-1]
        self.seconds[name] += now - self._since
        if name != OTHER:
            self._draw(self.timeline[name], self._since - self._begin, now - self._begin)
        self._since = now

    def _draw(self, bins: list[float], begin: float, end: float) -> None:
        """Adds a stretch to the bins that it lies in."""
        while end >= BINS * self.bin_seconds:
            self.bin_seconds *= 2
            for values in self.timeline.values():
                pairs = zip(values[::2], values[1::2], strict=True)
                values[:] = [*map(sum, pairs), *[0.0] * (BINS // 2)]
        width = self.bin_seconds
        place, last = int(begin / width), min(int(end / width), BINS - 1)
        while place < last:
            edge = (place + 1) * width
            bins[place] += edge - begin
            place, begin = place + 1, edge
        bins[last] += end - begin


class _Layer(AbstractContextManager[None]):
    """A layer of a profile, entered as often as one likes."""

    def __init__(self, profile: Profile, name: str) -> None:
        self.profile, self.name = profile, name

    def __enter__(self) -> None:
        profile = self.profile
        profile._charge()
        profile._open.append(self.name)
        profile.entries += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.profile._charge()
        self.profile._open.pop()


def ceiling(addressable: float, speedup: float) -> float:
    """Returns the end-to-end speed-up when a share of the time runs that much faster (Amdahl).

    Args:
        addressable: The share, 0 … 1.
        speedup: Above 0; infinity if that share goes away.
    """
    if not 0 <= addressable <= 1:
        raise ValueError(f"`addressable` is {addressable}; expected a share, 0 … 1")
    if not speedup > 0:
        raise ValueError(f"`speedup` is {speedup}; expected a factor above 0")
    left = (1 - addressable) + addressable / speedup
    return 1 / left if left else float("inf")


def _cost_of_an_entry() -> float:
    """Measures entering and leaving an empty layer, in seconds: the least of some trials."""
    profile = Profile()
    profile._start()
    times = []
    for _ in range(TRIALS):
        begin = time.perf_counter()
        for _ in range(ENTRIES):
            with layer("frontier"):
                pass
        times.append(time.perf_counter() - begin)
    profile._stop()
    return min(times) / ENTRIES
