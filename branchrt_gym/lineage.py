"""The lineage: an append-only record of births, transitions and prunes, linked to parents.

An entry is written when a root's first branch or a forked child is born, when a branch takes a
transition (expansion writes one entry for birth and transition together), and when a branch is
pruned. Each entry links to the one before it on the same path, so siblings share their prefix and
memory grows with transitions taken, not with branches times depth. Capacity is fixed; entries of a
root's episodes before the previous one are reclaimed when room is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from branchrt_gym.contract import Field
from branchrt_gym.errors import LineageFullError

__all__ = [
    "NO_ENTRY",
    "PRUNED",
    "SOLVED",
    "TERMINATED",
    "TRANSITION",
    "TRUNCATED",
    "Lineage",
    "entry_flags",
]

NO_ENTRY = -1

# Bits of `flags`. An entry with none is a birth.
TRANSITION = 1
TERMINATED = 2
TRUNCATED = 4
SOLVED = 8
PRUNED = 16


def entry_flags(taken: Tensor, terminated: Tensor, truncated: Tensor, solved: Tensor) -> Tensor:
    """Packs bools, each `[M]`, into the flags of transitions, `[M] uint8`."""
    flags = taken.to(torch.uint8)  # TRANSITION is the lowest bit
    for bit, values in ((TERMINATED, terminated), (TRUNCATED, truncated), (SOLVED, solved)):
        flags.add_(values.view(torch.uint8), alpha=bit)
    return flags


class Lineage:
    """Structure of arrays over `capacity` entries.

    Attributes:
        columns: `parent_entry`, `branch_id` (int64), `root` (int32), `flags` (uint8), `action`,
            `reward` and the contract's `log` fields, each `[capacity, …]`; rows from `used` on
            are unwritten.
        used: Entries taken. On a GPU an upper bound that the host knows without synchronising;
            `count` on the device is exact.
    """

    def __init__(
        self,
        capacity: int,
        *,
        action_shape: tuple[int, ...],
        action_dtype: torch.dtype,
        reward_dtype: torch.dtype,
        log: Mapping[str, Field],
        device: torch.device,
    ) -> None:
        """Allocates the columns; with `capacity` 0 nothing is recorded."""

        def column(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.empty((capacity, *shape), dtype=dtype, device=device)

        self.capacity = capacity
        self.log_names = tuple(log)
        self.columns = {
            "parent_entry": column((), torch.int64),
            "branch_id": column((), torch.int64),
            "root": column((), torch.int32),
            "flags": column((), torch.uint8),
            "action": column(action_shape, action_dtype),
            "reward": column((), reward_dtype),
            **{name: column(field.shape, field.dtype) for name, field in log.items()},
        }
        self.used = 0
        self.count = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def recorded(self) -> bool:
        """Whether entries are kept at all."""
        return self.capacity > 0

    def clear(self) -> None:
        """Forgets every entry."""
        self.used = 0
        self.count.zero_()

    def append(self, valid: Tensor | None, values: Mapping[str, Tensor]) -> Tensor:
        """Writes one entry for each valid row; the caller has made room with `room`.

        Args:
            valid: `[M] bool`, or None if all rows are.
            values: Columns by name, each `[M, …]`; those not given are written as zeros.

        Returns:
            `[M] int64`, the entry of each row, or `NO_ENTRY`.
        """
        rows = values["branch_id"].shape[0]
        device = self.count.device
        if not self.recorded:
            return torch.full((rows,), NO_ENTRY, dtype=torch.int64, device=device)
        assert self.used + rows <= self.capacity
        if valid is None:
            start, self.used = self.used, self.used + rows
            if device.type == "cpu":
                self.count.fill_(self.used)
                for name, column in self.columns.items():
                    column[start : self.used] = values.get(name, 0)
                return torch.arange(start, self.used)
            valid = torch.ones(rows, dtype=torch.bool, device=device)
        else:
            self.used += rows
        position = self.count + valid.cumsum(0) - 1
        self.count += valid.sum()
        # A row that is not valid rewrites the last entry with itself: there is room for all rows,
        # so where one is not valid the last entry is neither read nor written by another.
        target = torch.where(valid, position, self.capacity - 1)
        for name, column in self.columns.items():
            old = column[target]
            new = values[name].to(column.dtype) if name in values else torch.zeros_like(old)
            column[target] = torch.where(valid.view(-1, *[1] * (old.ndim - 1)), new, old)
        return torch.where(valid, position, NO_ENTRY)

    def room(self, extra: int, oldest: Tensor) -> Tensor | None:
        """Makes sure that `extra` more entries fit, reclaiming old episodes if they do not.

        Args:
            extra: Entries about to be appended, at most.
            oldest: `[R] int64`, for each root the first branch id of its previous episode;
                entries of branches before it are reclaimed.

        Returns:
            None, or, when entries moved, `[capacity] int64`: where each old entry is now.

        Raises:
            LineageFullError: If they do not fit even so; nothing is changed.
        """
        if not self.recorded or self.used + extra <= self.capacity:
            return None
        exact = int(self.count)
        if exact + extra <= self.capacity:
            self.used = exact
            return None
        branch_id = self.columns["branch_id"][:exact]
        root = self.columns["root"][:exact].to(torch.int64)
        keep = branch_id >= oldest[root]
        kept = int(keep.sum())
        if kept + extra > self.capacity:
            raise LineageFullError(
                f"the lineage is full: {kept} of its {self.capacity} entries are of current and "
                f"previous episodes, and {extra} more are needed. Ask for `lineage_capacity` of "
                f"{2 * (kept + extra)} or more, or export and reset sooner (a reset with a "
                "seed starts the lineage over)"
            )
        moved = torch.full((self.capacity,), NO_ENTRY, dtype=torch.int64, device=keep.device)
        moved[:exact] = torch.where(keep, keep.cumsum(0) - 1, NO_ENTRY)
        for column in self.columns.values():
            column[:kept] = column[:exact][keep]
        parent = self.columns["parent_entry"][:kept]
        parent.copy_(torch.where(parent == NO_ENTRY, NO_ENTRY, moved[parent.clamp(min=0)]))
        self.used = kept
        self.count.fill_(kept)
        return moved

    def last_entries(self, branch_ids: Tensor) -> Tensor:
        """Returns the last entry of each branch, `[B] int64`, or `NO_ENTRY` if it has none."""
        count = int(self.count)
        recorded = self.columns["branch_id"][:count]
        ids, back = torch.unique(branch_ids, return_inverse=True)
        last = torch.full_like(ids, NO_ENTRY)
        if count and ids.numel():
            slot = torch.searchsorted(ids, recorded).clamp(max=ids.numel() - 1)
            entry = torch.where(
                ids[slot] == recorded, torch.arange(count, device=ids.device), NO_ENTRY
            )
            last.scatter_reduce_(0, slot, entry, "amax")
        return last[back]
