"""What `branchrt bench capacity` measures at one width, and what it came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from branchrt_gym.bench.capacity_contents import DTYPES, PopulationSizes
from branchrt_gym.bench.capacity_room import Attempt, Limits
from branchrt_gym.bench.capacity_times import Throughput
from branchrt_gym.lineage import Lineage

__all__ = ["Capacity", "CapacityCell", "CapacitySizes"]

BLOCKS = {"cpu": 4096, "cuda": 1024}  # values are made in so many pieces of the budget
LEAST_BLOCK = 1 << 16  # bytes


@dataclass(frozen=True)
class CapacitySizes:
    """What is measured.

    Attributes:
        width: `W`, entries of a context. dtype: `"int16"` or `"uint8"`.
        fanouts: Branches of a context, each in turn.
        mutations: Percent of the context that each branch overwrites, each in turn.
        budget: Bytes.
        peak_budget: Bytes that dense rows fill where peaks are measured; None for `budget`. On CUDA
            torch reserves memory in pieces of 20 MiB, which a small population would show.
        page_size: Entries of a page; None for the field's own choice.
    """

    width: int = 262_144
    dtype: str = "int16"
    fanouts: tuple[int, ...] = (4, 8, 16, 64)
    mutations: tuple[int, ...] = (0, 5, 20, 100)
    budget: int = 1 << 30
    peak_budget: int | None = None
    page_size: int | None = None

    def __post_init__(self) -> None:
        """Checks that there is something to measure."""
        if self.dtype not in DTYPES:
            raise ValueError(f"`dtype` is {self.dtype!r}; expected one of {', '.join(DTYPES)}")
        for name, low, high in (("fanouts", 1, self.width), ("mutations", 0, 100)):
            given = getattr(self, name)
            if not given or not all(low <= value <= high for value in given):
                raise ValueError(f"`{name}` is {given}; expected values in {low} … {high}")
        least = min(self.budget, self.peak_budget or self.budget)
        if least < 4 * self.row_bytes:
            raise ValueError(
                f"`budget` is {least:,} bytes and a branch's row {self.row_bytes:,}; "
                "expected room for a few"
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of a context."""
        return self.width * DTYPES[self.dtype].itemsize

    def population(
        self, branches: int, fanout: int, mutation: int, device: str, budget: int | None = None
    ) -> PopulationSizes:
        """Returns the sizes of a population of so many branches, for a budget."""
        pieces = BLOCKS[torch.device(device).type]
        return PopulationSizes(
            branches,
            -(-branches // fanout),
            self.width,
            round(self.width * mutation / 100),
            self.dtype,
            self.page_size,
            block=max((budget or self.budget) // pieces, LEAST_BLOCK),
        )


@dataclass
class CapacityCell:
    """What one fan-out and mutation came to.

    Attributes:
        fanout: Branches of a context. mutation: Percent of it that each overwrites.
        run: Entries of it. width: Entries of a context.
        limits: Between which numbers of paged branches the budget ran out.
        peak: The paged population of as many branches as `Capacity.dense_peak` has.
        throughput: Rounds of both forms.
    """

    fanout: int
    mutation: int
    run: int
    width: int
    limits: Limits | None = None
    peak: Attempt | None = None
    throughput: Throughput | None = None

    @property
    def ideal(self) -> float:
        """The most by which sharing can save memory: `1 / (m + 1 / b)`."""
        return 1 / (self.run / self.width + 1 / self.fanout)


@dataclass
class Capacity:
    """What the methods came to at one width.

    Attributes:
        sizes: The sizes. device: Type of the device. methods: Those that were asked for.
        dense_limits: Between which numbers of dense branches the budget ran out. A dense branch
            takes the same whatever is shared or overwritten, so there is one for all cells.
        dense_peak: The population of `peak_branches` dense branches, whose rows fill the budget.
        cells: For each fan-out and mutation.
    """

    sizes: CapacitySizes
    device: str
    methods: tuple[str, ...]
    cells: list[CapacityCell]
    dense_limits: Limits | None = None
    dense_peak: Attempt | None = None
    peak_branches: int = 0
    found: list[Attempt | Throughput] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """Values compared with what they must be, of both forms."""
        return sum(one.compared for one in self.found)

    @property
    def mismatches(self) -> int:
        """How many differ."""
        return sum(one.mismatches for one in self.found)

    @property
    def first(self) -> str | None:
        """The first that does."""
        return next((one.first for one in self.found if one.first is not None), None)

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {
            "bench": "capacity",
            "device": self.device,
            "sizes": asdict(self.sizes),
            "methods": self.methods,
            "page_bytes": self._page_bytes(),
            "lineage_bytes_per_entry": lineage_entry_bytes(),
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            "dense": {
                **_limits(self.dense_limits),
                "peak_branches": self.peak_branches or None,
                "peak_bytes": self.dense_peak.peak if self.dense_peak else None,
            },
            "cells": [] if self.mismatches else [self._cell(cell) for cell in self.cells],
        }

    def _page_bytes(self) -> int:
        sizes = self.sizes.population(1, 1, 0, self.device)
        return sizes.page_entries * sizes.item

    def _cell(self, cell: CapacityCell) -> dict[str, Any]:
        ours, dense = cell.limits, self.dense_limits
        multiple = ours.fits / dense.fits if ours and dense else None
        peaks = [one.peak if one else None for one in (self.dense_peak, cell.peak)]
        by_peak = peaks[0] / peaks[1] if peaks[0] and peaks[1] else None
        at = ours.at.held if ours else cell.peak.held if cell.peak else None
        count = ours.fits if ours else self.peak_branches
        return {
            "fanout": cell.fanout,
            "mutation": cell.mutation,
            "ideal": cell.ideal,
            **_limits(ours),
            "multiple": multiple,
            "share_of_ideal": multiple / cell.ideal if multiple else None,
            "peak_bytes": peaks[1],
            "peak_multiple": by_peak,
            "peak_share_of_ideal": by_peak / cell.ideal if by_peak else None,
            "bytes_per_branch": {name: round(size / count, 1) for name, size in (at or {}).items()},
            "throughput": cell.throughput.row() if cell.throughput else None,
        }


def _limits(limits: Limits | None) -> dict[str, int | None]:
    return {
        "fits": limits.fits if limits else None,
        "fails": limits.fails if limits else None,
    }


def lineage_entry_bytes() -> int:
    """Returns the bytes of one entry of a lineage with an integer action and no log."""
    lineage = Lineage(
        1,
        action_shape=(),
        action_dtype=torch.int64,
        reward_dtype=torch.float32,
        log={},
        device=torch.device("cpu"),
    )
    return sum(column.nbytes for column in lineage.columns.values())
