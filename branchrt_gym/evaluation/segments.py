"""A batch of verdicts whose roots may occur more than once, seen root by root."""

from __future__ import annotations

from typing import Any

from branchrt_gym.evaluation.arrays import Arrays

__all__ = ["Segments"]


class Segments:
    """Rows sorted by root, their order within a root kept.

    Attributes:
        by: `[M] int64`, the rows in that order.
        roots: `[M]`, their roots.
        last: `[G] int64`, the place of the last row of each root, roots ascending.
    """

    def __init__(self, arrays: Arrays, roots: Any) -> None:
        """Sorts `roots`, `[M] int64` with M of 1 or more."""
        self.by = arrays.order(roots)
        self.roots = roots[self.by]
        begins = arrays.full(len(roots), 1, "bool")
        begins[1:] = self.roots[1:] != self.roots[:-1]
        self.first = arrays.nonzero(begins)
        self.group = begins.cumsum(0) - 1
        ends = arrays.full(len(roots), 1, "bool")
        ends[:-1] = begins[1:]
        self.last = arrays.nonzero(ends)

    def count(self, mask: Any) -> Any:
        """Returns how many rows of the same root are set up to each row, itself included."""
        total = mask.cumsum(0)
        before = (total - mask * 1)[self.first]
        return total - before[self.group]
