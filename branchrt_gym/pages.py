"""Paged state as an environment's hooks see it: reads, and writes that are applied later."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from branchrt_gym.kernels.pages import NO_WRITE, read_pages

__all__ = ["NO_WRITE", "PageWrites", "Pages"]

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class PageWrites(NamedTuple):
    """Runs of entries to be written to a paged field of `M` branches; see `Pages.write`.

    Attributes:
        start: `[M, S] int64`, each run's first entry, or `NO_WRITE`.
        value: `[M, S, L]`, in the field's dtype.
        length: `[M, S] int64`, how many of the `L` values are written; None for all.
    """

    start: Tensor
    value: Tensor
    length: Tensor | None = None

    def rows(self, index: Tensor) -> PageWrites:
        """Returns the writes of the branches `index`, `[K] int64`."""
        length = None if self.length is None else self.length.index_select(0, index)
        start, value = self.start.index_select(0, index), self.value.index_select(0, index)
        return PageWrites(start, value, length)

    @property
    def size(self) -> int:
        """Entries that are written at most, of all branches."""
        return self.value.numel()


class Pages(NamedTuple):
    """A paged field of `M` branches.

    Attributes:
        width: `W`, entries of a branch.
        pool: `[P, E]`, the pages. table: `[N, T] int32`, which of them each slot has.
        base: `[C, W]`, what a branch reads where it has no page; None for zeros.
        context_index: `[N] int64`, the slots' contexts.
        slots: `[M] int64`, where the branches are; None for all slots in order.
    """

    width: int
    pool: Tensor
    table: Tensor
    base: Tensor | None
    context_index: Tensor
    slots: Tensor | None = None

    def read(self, index: Tensor) -> Tensor:
        """Reads entries of each branch.

        Args:
            index: `[M]` or `[M, J] int64`, in `0 … W - 1`.

        Returns:
            The entries, in the shape of `index` and the dtype of the field.
        """
        return read_pages(
            self.pool, self.table, self.base, self.context_index, self.slots, index, self.width
        )

    def write(self, start: Tensor, value: Tensor, length: Tensor | None = None) -> PageWrites:
        """Returns runs of entries for `Transition.pages`; nothing is written by this call.

        The runtime writes them where the branch stays: children that a selection drops cost no
        page. Runs of one branch must not overlap.

        Args:
            start: `[M]` or `[M, S] int64`, each run's first entry, in `0 … W - 1`, or `NO_WRITE`
                for none.
            value: `[M]`, `[M, S]` or `[M, S, L]`, in the field's dtype: the runs' values. With
                `start` of shape `[M]`, `[M, L]` is one run of each branch.
            length: `[M]` or `[M, S]` integers, how many of the `L` values are written; None for
                all.

        Raises:
            TypeError: If `start` or `length` are no integers, or something is no tensor.
            ValueError: If the shapes do not fit each other.
        """
        for name, part in (("start", start), ("value", value), ("length", length)):
            if not isinstance(part, Tensor) and not (name == "length" and part is None):
                raise TypeError(f"`{name}` is {type(part).__name__}; expected a tensor")
            if name != "value" and part is not None and part.dtype not in INTEGERS:
                raise TypeError(f"`{name}` is {part.dtype}; expected integers")
        given = tuple(start.shape), tuple(value.shape)
        if start.ndim == 1:
            start = start[:, None]
            value = value[:, None] if value.ndim == 2 else value
            length = None if length is None else length.view(-1, 1)
        while value.ndim < 3:
            value = value[..., None]
        fits = start.ndim == 2 and value.ndim == 3 and value.shape[:2] == start.shape
        if not fits or (length is not None and length.shape != start.shape):
            lengths = "" if length is None else f" and `length` {tuple(length.shape)}"
            raise ValueError(
                f"`start` is of shape {given[0]} and `value` {given[1]}{lengths}; expected a start "
                "for each branch (M,) or run (M, S), and values of shape (M, S, L)"
            )
        whole = None if length is None else length.to(torch.int64)
        return PageWrites(start.to(torch.int64), value, whole)
