"""What the forms of a search came to at one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from branchrt_gym.bench.deep_tree import Sizes
from branchrt_gym.bench.estimates import Estimate, estimate, estimate_ratio
from branchrt_gym.bench.forms import EXPERTS
from branchrt_gym.bench.frontier_share import FrontierShare
from branchrt_gym.bench.mismatches import Mismatches

__all__ = ["RATIOS", "FormFigures", "FormsComparison"]

RATIOS = {
    "batcher_over_fused": ("batcher_graph", "fused", "device"),
    "fused_over_floor": ("fused", "floor", "device"),
    "floor_over_chase": ("floor", "chase", "device"),
    "captured_over_jax": ("captured", "jax", "wall"),
    "batcher_over_captured": ("batcher_graph", "captured", "device"),
    "captured_over_fused": ("captured", "fused", "device"),
}
"""Time of the first form over that of the second, by this clock, cache flushed."""


@dataclass
class FormFigures:
    """What one form came to; no time where it was not run or any result differs.

    Attributes:
        not_run: Why it was not run, or None. note: What it had to do without, or None.
        mismatches: Of all seeds together; None where there is nothing to compare.
        peak_bytes: The most it held on the device, contexts not counted; of the seeds the least,
            since the first may count what compiling took. None where not known.
        samples: Seconds by clock, a list for each seed: `"device"` and `"wall"` with the cache
            flushed, and `"warm"` by the first of these that there is.
    """

    not_run: str | None = None
    note: str | None = None
    mismatches: Mismatches | None = None
    peak_bytes: int | None = None
    samples: dict[str, list[list[float]]] = field(default_factory=dict)

    def seconds(self, clock_name: str) -> Estimate | None:
        """Estimates its time by a clock."""
        return estimate(self.samples[clock_name]) if clock_name in self.samples else None

    def row(self) -> dict[str, Any]:
        """Returns the figures for a row of evidence."""
        if self.not_run is not None:
            return {"not_run": self.not_run}
        found = self.mismatches
        return {
            "note": self.note,
            "compared": found.compared if found else 0,
            "mismatches": found.count if found else None,
            "first_difference": found.first if found else None,
            "seconds": self.seconds("device"),
            "wall_seconds": self.seconds("wall"),
            "warm_seconds": self.seconds("warm"),
            "peak_bytes": self.peak_bytes,
        }


@dataclass
class FormsComparison:
    """What the forms came to at one size.

    Attributes:
        sizes: The sizes.
        device: Type of the device.
        seeds: Sets of roots. repetitions: Timed for each.
        forms: By name, in the order of `FORMS`.
        copies: Bytes per second, read and written, of copying one of the batcher's buffers to the
            other, for each seed.
        copied: Bytes of context that the batcher copies in one search.
        copy_method: How it copies rows.
        contexts: Bytes of the contexts. buffers: Bytes of the batcher's rows.
        shares: What part of eager and captured searches is the frontier's.
    """

    sizes: Sizes
    device: str
    seeds: int
    repetitions: int
    forms: dict[str, FormFigures]
    copies: list[list[float]] = field(default_factory=list)
    copied: int = 0
    copy_method: str | None = None
    contexts: int = 0
    buffers: int = 0
    shares: dict[str, FrontierShare] = field(default_factory=dict)

    @property
    def differing(self) -> Mapping[str, Mismatches]:
        """The forms whose results differ from the eager search's."""
        found = {name: form.mismatches for name, form in self.forms.items()}
        return {name: same for name, same in found.items() if same is not None and same.count}

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return not self.differing

    @property
    def best_expert(self) -> str | None:
        """The expert's form whose wall time is least."""
        walls = {name: self.forms[name].seconds("wall") for name in EXPERTS if name in self.forms}
        known = {name: wall.interquartile_mean for name, wall in walls.items() if wall is not None}
        return min(known, key=lambda name: known[name], default=None)

    def ratio(self, above: str, below: str, clock_name: str) -> Estimate | None:
        """Estimates one form's time over another's."""
        sides = [self.forms.get(name, FormFigures()).samples for name in (above, below)]
        if not all(clock_name in side for side in sides):
            return None
        return estimate_ratio(*(side[clock_name] for side in sides))

    def copy_share(self) -> Estimate | None:
        """What the batcher's copies, over its whole time in a graph, reach of the bandwidth."""
        times = self.forms.get("batcher_graph", FormFigures()).samples.get("device")
        if times is None or not self.copies:
            return None
        moved = [[2 * self.copied / spent for spent in seed] for seed in times]
        return estimate_ratio(moved, self.copies)

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        found = [form.mismatches for form in self.forms.values() if form.mismatches is not None]
        first = next((same.first for same in found if same.first), None)
        best = self.best_expert
        ratios = {name: self.ratio(*sides) for name, sides in RATIOS.items()}
        ratios |= {f"{name}_over_fused": self.ratio(name, "fused", "wall") for name in EXPERTS}
        ratios["expert_over_fused"] = None if best is None else ratios[f"{best}_over_fused"]
        return {
            "bench": "deep-tree-gpu",
            "device": self.device,
            "sizes": asdict(self.sizes),
            "seeds": self.seeds,
            "repetitions": self.repetitions,
            "compared": sum(same.compared for same in found),
            "mismatches": sum(same.count for same in found),
            "first_difference": first,
            "forms": {name: form.row() for name, form in self.forms.items()},
            "ratios": ratios,
            "best_expert": best,
            "copy_bandwidth": estimate(self.copies) if self.copies else None,
            "batcher_copy_share": self.copy_share(),
            "batcher_copy_method": self.copy_method,
            "context_bytes": self.contexts,
            "batcher_bytes": self.buffers,
            # Of what a batcher holds for its branches, what sharing has no need of.
            "sharing_efficiency": 1 - self.contexts / self.buffers if self.buffers else None,
            "frontier_share": self.shares,
        }
