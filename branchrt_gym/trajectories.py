"""Trajectories: paths of the lineage as padded tensors with masks, ready for a trainer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from branchrt_gym.lineage import (
    NO_ENTRY,
    PRUNED,
    SOLVED,
    TERMINATED,
    TRANSITION,
    TRUNCATED,
    Lineage,
)

__all__ = ["Trajectories", "trace"]


@dataclass(frozen=True)
class Trajectories:
    """`B` paths from a root's first branch to a branch, padded to the longest, `T`.

    Attributes:
        branch_id: `[B] int64`, the branches asked for, in that order.
        root: `[B] int64`.
        length: `[B] int64`, transitions of each path.
        action: `[B, T, …]`; zeros where `mask` is False.
        reward: `[B, T]` in the contract's dtype; zeros where `mask` is False.
        mask: `[B, T] bool`, True in the first `length` places.
        terminated: `[B] bool`; False for a branch that is live.
        truncated: `[B] bool`; True for a pruned branch too.
        solved: `[B] bool`.
        pruned: `[B] bool`.
        log: The contract's `log` fields, each `[B, T, …]`.
    """

    branch_id: Tensor
    root: Tensor
    length: Tensor
    action: Tensor
    reward: Tensor
    mask: Tensor
    terminated: Tensor
    truncated: Tensor
    solved: Tensor
    pruned: Tensor
    log: dict[str, Tensor]

    def packed(self, name: str, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Strings the first entries of each step's log rows together, as a trainer takes tokens.

        Args:
            name: A `log` field whose entries are rows, `[B, T, W]` here.
            count: `[B, T]` ints, how many of each row's `W` values are meant; for the most part
                another `log` field.

        Returns:
            `values: [B, L]`, zeros behind the end, `L` the longest; `mask: [B, L] bool`, True for
            the values; `step: [B, L] int64`, the step each came from, `T` behind the end.
        """
        if name not in self.log:
            raise ValueError(f"`name` is {name!r}; expected a log field of {sorted(self.log)}")
        rows = self.log[name]
        if rows.ndim != 3 or count.shape != self.mask.shape:
            raise ValueError(
                f"`{name}` has {tuple(rows.shape)} and `count` {tuple(count.shape)}; expected "
                f"(B, T, W) and (B, T), of which (B, T) is {tuple(self.mask.shape)}"
            )
        steps, wide = rows.shape[1:]
        wrong = (count < 0) | (count > wide)
        if count.dtype.is_floating_point or bool((wrong & self.mask).any()):
            raise ValueError(
                f"`count` is {count.dtype} and {count[self.mask].tolist()[:8]}; expected ints in "
                f"0 … {wide}, the width of `{name}`"
            )
        end = torch.nn.functional.pad((count * self.mask).cumsum(1), (1, 0))  # after 0 … T steps
        longest = int(end[:, -1].max()) if len(end) else 0
        place = torch.arange(longest, device=rows.device)
        mask = place < end[:, -1:]
        ends = end.new_zeros((len(end), longest + 1), dtype=torch.int32)
        ends.scatter_add_(1, end[:, 1:], torch.ones_like(end[:, 1:], dtype=torch.int32))
        step = ends[:, :-1].cumsum(1)  # how many steps ended at or before each place
        shift = torch.arange(steps + 1, device=rows.device) * wide - end
        source = shift.gather(1, step).add_(place).masked_fill_(~mask, 0)
        values = rows.flatten(1).gather(1, source).masked_fill_(~mask, 0)
        return values, mask, step


def trace(lineage: Lineage, branch_ids: Tensor, oldest: Tensor) -> Trajectories:
    """Follows the links of `B` branches back to their roots.

    Args:
        lineage: The record.
        branch_ids: `[B] int64`.
        oldest: `[R] int64`, the first branch id of each root's previous episode.

    Raises:
        ValueError: For ids that were never given or whose episode has been reclaimed.

    Cost: one scan of the lineage's ids, and one gather per transition of the longest path.
    """
    column = lineage.columns
    last = lineage.last_entries(branch_ids)
    found = last != NO_ENTRY
    root = column["root"][last.clamp(min=0)].to(torch.int64) if lineage.used else last
    known = found & (branch_ids >= oldest[torch.where(found, root, 0)])
    if not bool(known.all()):
        missing = branch_ids[~known].tolist()
        raise ValueError(
            f"no trajectory for branch id {missing[:8]}; expected branches of the current or "
            "previous episode of a root"
        )
    path = []
    entry = last
    while bool((entry != NO_ENTRY).any()):
        path.append(entry)
        entry = torch.where(entry == NO_ENTRY, NO_ENTRY, column["parent_entry"][entry.clamp(min=0)])
    chain = torch.stack(path[::-1], dim=1) if path else last[:, None][:, :0]
    taken = (chain != NO_ENTRY) & ((column["flags"][chain.clamp(min=0)] & TRANSITION) != 0)
    length = taken.sum(1)
    longest = int(length.max()) if length.numel() else 0
    # Transitions to the front, order kept; births and prunes fall behind the mask.
    order = torch.argsort((~taken).to(torch.uint8), dim=1, stable=True)[:, :longest]
    chain = torch.gather(chain, 1, order).clamp(min=0)
    mask = torch.arange(longest, device=length.device) < length[:, None]

    def read(name: str) -> Tensor:
        values = column[name][chain]
        return torch.where(
            mask.view(*mask.shape, *[1] * (values.ndim - 2)), values, torch.zeros_like(values)
        )

    flags = column["flags"][last]

    def flag(bits: int) -> Tensor:
        return (flags & bits) != 0

    return Trajectories(
        branch_id=branch_ids,
        root=root,
        length=length,
        action=read("action"),
        reward=read("reward"),
        mask=mask,
        terminated=flag(TERMINATED),
        truncated=flag(TRUNCATED | PRUNED),
        solved=flag(SOLVED),
        pruned=flag(PRUNED),
        log={name: read(name) for name in lineage.log_names},
    )
