"""Paged fields in a search: tables travel with the fields, pages are taken after selection.

A search keeps its branches in rows that are made anew at each level, so a table is carried as one
more column, under a name that no field can have.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from branchrt_gym.checked import CheckedEnv
from branchrt_gym.page_pool import NO_PAGE, PagePool
from branchrt_gym.pages import Pages, PageWrites
from branchrt_gym.slots import NO_SLOT

__all__ = ["SearchPages"]

MARK = "pages of "


class SearchPages:
    """The pools of a search, and the tables among its columns."""

    def __init__(self, env: CheckedEnv, shared: Mapping[str, Tensor], device: torch.device) -> None:
        """Makes empty pools that grow; without paged fields every method does nothing."""
        self.shared = shared
        self.pools = {
            name: PagePool(field, 0, device=device, name=name)
            for name, field in env.contract.of("paged").items()
        }

    def begin(self, rows: int) -> dict[str, Tensor]:
        """Returns the tables of branches that wrote nothing yet, as columns."""
        return {
            MARK + name: pool.table.new_full((rows, pool.per_branch), NO_PAGE)
            for name, pool in self.pools.items()
        }

    def fields(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the columns that are fields."""
        if not self.pools:
            return dict(columns)
        return {name: x for name, x in columns.items() if not name.startswith(MARK)}

    def tables(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the columns that are tables."""
        return {MARK + name: columns[MARK + name] for name in self.pools}

    def view(self, columns: Mapping[str, Tensor], context_index: Tensor) -> dict[str, Pages]:
        """Returns the paged fields of the branches whose columns these are."""
        return {
            name: pool.view(self._base(pool), context_index, None)._replace(
                table=columns[MARK + name]
            )
            for name, pool in self.pools.items()
        }

    def write(
        self,
        columns: Mapping[str, Tensor],
        writes: Mapping[str, PageWrites],
        valid: Tensor,
        context_index: Tensor,
        *,
        shared: bool = True,
    ) -> None:
        """Writes for the branches in `valid`, `[M] bool`, into their tables, in place.

        Args:
            columns: The branches' columns; of no others are pages kept.
            writes: What they write.
            valid: Which of them do.
            context_index: `[M] int64`.
            shared: Whether they may have pages in common, as siblings do.
        """
        rows = torch.arange(valid.shape[0], device=valid.device)
        slots = torch.where(valid, rows, NO_SLOT)
        every = torch.ones_like(valid)
        for name, pool in self.pools.items():
            pool.table = columns[MARK + name]
            if shared or pool.sealed.shape != rows.shape:
                pool.sealed = pool.tick().expand(rows.shape[0]).contiguous()
            if name in writes:
                pool.make_room(writes[name], slots, every)
                pool.write(writes[name], slots, self._base(pool), context_index)

    def _base(self, pool: PagePool) -> Tensor | None:
        return None if pool.field.initial is None else self.shared[pool.field.initial]
