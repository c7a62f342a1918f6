"""What the population of `branchrt bench capacity` holds, entry by entry.

Every entry is a pure function of where it is, so what a population must hold is known without
storing it, and neither form of it is the other's truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from branchrt_gym.kernels import bounded, fold
from branchrt_gym.page_pool import page_size

__all__ = ["DTYPES", "Contents", "PopulationSizes", "pieces"]

DTYPES = {"int16": torch.int16, "uint8": torch.uint8}
ENTRY, CONTEXT, PLACE, RUN, BRANCH = range(5)  # what a key is for


@dataclass(frozen=True)
class PopulationSizes:
    """The size of a population.

    Attributes:
        branches: `N`. contexts: `C`, at most `N`; branch `i` is of context `i % C`.
        width: `W`. run: Entries of it that each branch overwrites. dtype: `"int16"` or `"uint8"`.
        page_size: Entries of a page; None for the field's own choice.
        spare: Slots beside those of the branches.
        spare_runs: Runs for which there are pages beside those of the branches.
        block: Bytes of values that are made at a time, about.
    """

    branches: int
    contexts: int
    width: int
    run: int
    dtype: str = "int16"
    page_size: int | None = None
    spare: int = 0
    spare_runs: int = 0
    block: int = 1 << 20

    @property
    def item(self) -> int:
        """Bytes of an entry."""
        return DTYPES[self.dtype].itemsize

    @property
    def page_entries(self) -> int:
        """Entries of a page."""
        return min(self.page_size or page_size(self.width, DTYPES[self.dtype]), self.width)

    @property
    def pages_each(self) -> float:
        """Pages that a run touches, on average."""
        if not self.run:
            return 0.0
        return min((self.run - 1) / self.page_entries + 1, -(-self.width // self.page_entries))


class Contents:
    """What every entry of a population must be: of its context, or of the runs over it."""

    def __init__(self, sizes: PopulationSizes, device: torch.device) -> None:
        """Makes what all branches have in common: a context's worth of bits, and a run's."""
        self.sizes = sizes
        self.dtype = DTYPES[sizes.dtype]
        self.device = device
        self._entry = self._bits(ENTRY, torch.arange(sizes.width, device=device))
        self._run = self._bits(RUN, torch.arange(sizes.run, device=device))

    def _key(self, purpose: int, word: Tensor, turn: int = 0) -> Tensor:
        key = torch.full((), 8 * turn + purpose, dtype=torch.int64, device=self.device)
        return fold(fold(key, 0), word)

    def _bits(self, purpose: int, word: Tensor, turn: int = 0) -> Tensor:
        return self._key(purpose, word, turn).to(self.dtype)

    def context(self, low: int, high: int, out: Tensor) -> None:
        """Writes contexts `low … high - 1` into `out`, `[high - low, W]`."""
        of = self._bits(CONTEXT, torch.arange(low, high, device=self.device))
        torch.add(self._entry, of[:, None], out=out)

    def start(self, branches: Tensor, turn: int = 0) -> Tensor:
        """Returns where the run of each branch begins, `[M] int64`, in its round `turn`."""
        return bounded(
            self._key(PLACE, branches, turn), self.sizes.width - max(self.sizes.run, 1) + 1
        )

    def value(self, branches: Tensor, turn: int = 0) -> Tensor:
        """Returns what it writes, `[M, L]`."""
        return self._run + self._bits(BRANCH, branches, turn)[:, None]

    def expected(self, branches: Tensor, index: Tensor, turns: int) -> Tensor:
        """Returns what branches hold at `index`, `[M, J]`, after so many rounds of runs."""
        context = self._bits(CONTEXT, branches % self.sizes.contexts)
        found = self._entry[index] + context[:, None]
        for turn in range(turns if self.sizes.run else 0):
            place = index - self.start(branches, turn)[:, None]
            inside = (place >= 0) & (place < self.sizes.run)
            written = self._run[place.clamp(0, self.sizes.run - 1)]
            written = written + self._bits(BRANCH, branches, turn)[:, None]
            found = torch.where(inside, written, found)
        return found

    def pages(self, entries: int) -> int:
        """Returns how many pages of so many entries the runs of all branches touch; waits."""
        sizes, total = self.sizes, 0
        for low, high in pieces(0, sizes.branches if sizes.run else 0, 1 << 16):
            start = self.start(torch.arange(low, high, device=self.device))
            total += int(((start + sizes.run - 1) // entries - start // entries + 1).sum())
        return total


def pieces(low: int, high: int, most: int) -> Iterator[tuple[int, int]]:
    """Yields `low … high` in pieces of at most so many, at least one."""
    step = max(1, most)
    for begin in range(low, high, step):
        yield begin, min(begin + step, high)
