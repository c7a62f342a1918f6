"""The pages of one paged field: who has which, which are free, and who may write where.

There are no reference counts. A clock goes up at each fork; a slot is sealed with it when its
branch is born or forks, and a page is stamped with the next tick when it is taken. So a branch may
write in place where the page's stamp is above its seal: it took the page itself, and no branch was
forked from it since. Elsewhere it takes a page of its own. Pages that no branch has any more are
found by marking those that some branch has, when the free ones run out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from branchrt_gym.contract import Field
from branchrt_gym.errors import PagePoolFullError
from branchrt_gym.kernels import compact_indices, copy_rows
from branchrt_gym.kernels.pages import NO_PAGE, count_pages, mark_pages, write_pages
from branchrt_gym.kernels.rows import write_rows
from branchrt_gym.pages import Pages, PageWrites

__all__ = ["NO_PAGE", "PagePool", "page_size"]

FIRST = 256  # pages of a pool that grows, to begin with
LEAST_BYTES = 64


def page_size(width: int, dtype: torch.dtype) -> int:
    """Returns how many entries a page has unless the field says.

    A branch that writes one run holds half a page too much at each end of it, and four bytes of
    table for every page of the field: with `B` bytes in all, least for pages of `2 * sqrt(B)`.
    Branches that write nothing have the table alone, so twice that is taken, rounded down to a
    power of two.

    Args:
        width: Entries of the field.
        dtype: Their dtype.
    """
    wanted = max(LEAST_BYTES, int(4 * math.sqrt(width * dtype.itemsize)))
    return max(1, (1 << (wanted.bit_length() - 1)) // dtype.itemsize)


class PagePool:
    """The pages of one field in a frontier of `N` slots.

    Attributes:
        width: `W`, entries of a branch. page_size: `E`, of a page. per_branch: `T`, pages of a
            branch.
        pool: `[P, E]`, the pages.
        table: `[N, T] int32`, each slot's pages; `NO_PAGE` where it never wrote.
        sealed: `[N] int32`. stamp: `[P] int32`. clock: `[] int32`. See the module.
        free: `[P] int32`, a stack of free pages, of which `top` `[] int64` are left.
    """

    def __init__(
        self,
        field: Field,
        num_slots: int,
        *,
        capacity: int | None = None,
        device: str | torch.device = "cpu",
        name: str = "pages",
    ) -> None:
        """Allocates the pool.

        Args:
            field: The field.
            num_slots: `N`.
            capacity: `P`; None for a pool that grows, doubling.
            device: Where it is stored.
            name: The field's, for errors.
        """
        counted = isinstance(capacity, int) and not isinstance(capacity, bool)
        if capacity is not None and (not counted or capacity < 0):
            raise ValueError(f"`page_capacity` is {capacity!r}; expected pages, 0 or more, or None")
        self.name = name
        self.field = field
        self.width = field.shape[0]
        self.page_size = field.page_size or page_size(self.width, field.dtype)
        self.page_size = min(self.page_size, self.width)
        self.per_branch = -(-self.width // self.page_size)
        self.grows = capacity is None
        pages = FIRST if capacity is None else capacity
        device = torch.device(device)
        self.pool = torch.empty((pages, self.page_size), dtype=field.dtype, device=device)
        self.stamp = torch.zeros(pages, dtype=torch.int32, device=device)
        self.free = torch.arange(pages, dtype=torch.int32, device=device)
        self.top = torch.full((), pages, dtype=torch.int64, device=device)
        self.table = torch.full(
            (num_slots, self.per_branch), NO_PAGE, dtype=torch.int32, device=device
        )
        self.sealed = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.clock = torch.zeros((), dtype=torch.int32, device=device)
        self._most_used = 0  # an upper bound that the host knows without synchronising

    @property
    def capacity(self) -> int:
        """Pages in all."""
        return self.pool.shape[0]

    @property
    def in_use(self) -> int:
        """Pages that are not free; synchronises."""
        return self.capacity - int(self.top)

    @property
    def columns(self) -> list[Tensor]:
        """What each slot has; copied when a branch moves."""
        return [self.table, self.sealed]

    def view(self, base: Tensor | None, context_index: Tensor, slots: Tensor | None) -> Pages:
        """Returns the field as the hooks see it; arguments as in `Pages`."""
        return Pages(self.width, self.pool, self.table, base, context_index, slots)

    def clear(self) -> None:
        """Frees every page and empties every slot."""
        self.table.fill_(NO_PAGE)
        self.sealed.zero_()
        self.stamp.zero_()
        self.clock.zero_()
        self._all_free(torch.zeros(self.capacity, dtype=torch.bool, device=self.top.device))
        self._most_used = 0

    def tick(self) -> Tensor:
        """Moves the clock; returns it, `[] int32`: the seal of branches that share pages now."""
        self.clock += 1
        return self.clock

    def share(self, parents: Tensor, slots: Tensor) -> None:
        """Gives free slots their parents' pages; from now on neither writes to them in place.

        Args:
            parents: `[M] int64`.
            slots: `[M] int64`, or `NO_SLOT`.
        """
        seal = self.tick()
        self.sealed[parents] = seal  # of one that has no child after all too: it may copy more
        copy_rows([self.table], parents, slots, disjoint=True)
        write_rows([self.sealed], slots, [seal.expand(slots.shape[0]).contiguous()])

    def make_room(self, writes: PageWrites, slots: Tensor, held: Tensor) -> None:
        """Makes sure that the writes find free pages, reclaiming or growing if they do not.

        Args:
            writes: Of `M` branches.
            slots: `[M] int64`, where they are, or `NO_SLOT`.
            held: `[N] bool`, the slots that are not free.

        Raises:
            PagePoolFullError: If they do not fit even so; nothing is changed.
        """
        most = self._most(writes)
        if self._surely(most):
            self._most_used += most
            return
        need = self._need(writes, slots, self.table, self.sealed)
        if need > self.capacity - self.in_use:
            self.reclaim(held)
        self._find(need, self.in_use)
        self._most_used = self.in_use + need

    def check_room(self, writes: PageWrites, table: Tensor, held: Tensor) -> None:
        """Makes sure that `make_room` will succeed for branches that are yet to be placed.

        No page changes hands: what leaves only then may still be there after another error.

        Args:
            writes: Of `M` branches.
            table: `[M, T] int32`, the pages that they will begin with, none of them their own.
            held: `[N] bool`, the slots that will not be free beside theirs.

        Raises:
            PagePoolFullError: If there are too few pages.
        """
        if self._surely(self._most(writes)):
            return
        rows = torch.arange(table.shape[0], device=table.device)
        never = torch.full_like(rows, torch.iinfo(torch.int32).max, dtype=torch.int32)
        need = self._need(writes, rows, table, never)
        if need > self.capacity - self.in_use:
            self._find(need, int(self._marked(held, table).sum()))

    def write(
        self, writes: PageWrites, slots: Tensor, base: Tensor | None, context_index: Tensor
    ) -> None:
        """Writes; the caller has made room.

        Args:
            writes: Of `M` branches.
            slots: `[M] int64`, where they are, none twice, or `NO_SLOT`.
            base: As in `Pages`.
            context_index: `[N] int64`.
        """
        write_pages(
            self.pool,
            self.stamp,
            self.free,
            self.top,
            self.table,
            self.sealed,
            self.clock,
            base,
            context_index,
            slots,
            writes.start,
            writes.value,
            writes.length,
            self.width,
        )

    def reclaim(self, held: Tensor) -> None:
        """Frees every page that no slot in `held`, `[N] bool`, has; no host synchronisation."""
        self._all_free(self._marked(held))

    def reachable(self, held: Tensor) -> int:
        """Returns how many pages the slots in `held` have; synchronises."""
        return int(self._marked(held).sum())

    def invariants(self, held: Tensor) -> None:
        """Asserts that the accounting is exact; for tests.

        The free pages are distinct, and no slot in `held` has one; no page is younger than the
        clock allows, and one that its branch may write in place is no other branch's.
        """
        free = self.free[: int(self.top)].long()
        assert not bool((free.sort().values.diff() == 0).any()), "a page is free twice"
        marked = self._marked(held)
        assert not bool(marked[free].any()), "a free page is in a table"
        assert self.in_use >= int(marked.sum()), "fewer pages in use than reachable"
        assert bool((self.stamp <= self.clock + 1).all()), "a page from the future"
        entries = self.table[held]
        own = entries != NO_PAGE
        if not bool(own.any()):
            return
        own &= self.stamp[entries.clamp(min=0).long()] > self.sealed[held][:, None]
        holders = torch.bincount(entries[entries != NO_PAGE].long(), minlength=self.capacity)
        assert bool((holders[entries[own].long()] == 1).all()), "a page to write in place is shared"

    def copies(self, held: Tensor) -> dict[str, Tensor]:
        """Returns what to save: the pages that are reachable, each once, and who has them.

        Synchronises. Slots not in `held` have none.
        """
        marked = self._marked(held)
        number = marked.cumsum(0, dtype=torch.int32) - 1
        table = torch.where(held[:, None], self.table, NO_PAGE)
        renamed = number[table.clamp(min=0).long()] if self.capacity else table
        return {
            "pool": self.pool[marked],
            "stamp": self.stamp[marked],
            "table": torch.where(table == NO_PAGE, NO_PAGE, renamed),
            "sealed": self.sealed.clone(),
            "clock": self.clock.clone(),
        }

    def put(self, saved: dict[str, Tensor]) -> None:
        """Overwrites everything by what `copies` returned; pools that are too small grow."""
        count = saved["pool"].shape[0]
        if count > self.capacity:
            self._grow(count - self.capacity)
        self.pool[:count].copy_(saved["pool"])
        self.stamp.zero_()[:count].copy_(saved["stamp"])
        self.table.copy_(saved["table"])
        self.sealed.copy_(saved["sealed"])
        self.clock.copy_(saved["clock"])
        self._all_free(torch.arange(self.capacity, device=self.top.device) < count)
        self._most_used = count

    def _most(self, writes: PageWrites) -> int:
        """Pages that writes take at most, whatever they hold."""
        count, runs, length = writes.value.shape
        reach = min(self.per_branch, (length - 1) // self.page_size + 2)
        return count * min(runs * reach, self.per_branch)

    def _surely(self, more: int) -> bool:
        """Whether so many are free, as far as is known without waiting for a GPU."""
        return self.top.device.type != "cpu" and self._most_used + more <= self.capacity

    def _need(self, writes: PageWrites, rows: Tensor, table: Tensor, sealed: Tensor) -> int:
        """Pages that writes of the `rows` of a table take."""
        length = writes.length
        if length is None:
            length = torch.full_like(writes.start, writes.value.shape[2])
        size = (self.page_size, self.width)
        return int(count_pages(self.stamp, table, sealed, rows, writes.start, length, *size))

    def _find(self, need: int, used: int) -> None:
        """Grows if `need` pages do not fit beside `used` ones, or raises."""
        lacking = need - (self.capacity - used)
        if lacking > 0 and not self.grows:
            raise PagePoolFullError(
                f"`{self.name}` needs {need} more pages and {self.capacity - used} of "
                f"{self.capacity} are free; ask for `page_capacity` of {self.capacity + lacking} "
                "or more, prune first, or leave it None for pools that grow. Nothing was changed"
            )
        if lacking > 0:
            self._grow(lacking)

    def _marked(self, held: Tensor, more: Tensor | None = None) -> Tensor:
        marked = mark_pages(self.table, held, self.capacity)
        if more is not None and more.numel():
            every = torch.ones(more.shape[0], dtype=torch.bool, device=more.device)
            marked |= mark_pages(more, every, self.capacity)
        return marked

    def _all_free(self, marked: Tensor) -> None:
        rows, count = compact_indices(~marked)
        self.free.copy_(rows.to(torch.int32))  # `NO_SLOT` beyond the top
        self.top.copy_(count)

    def _grow(self, lacking: int) -> None:
        before = self.capacity
        more = max(lacking, before, 1)
        if before + more > torch.iinfo(torch.int32).max:
            raise PagePoolFullError(f"`{self.name}` needs more than {2**31 - 1} pages; prune first")
        device = self.top.device
        pool = torch.empty((before + more, self.page_size), dtype=self.pool.dtype, device=device)
        pool[:before].copy_(self.pool)
        self.pool = pool
        self.stamp = torch.cat([self.stamp, self.stamp.new_zeros(more)])
        fresh = torch.arange(before, before + more, dtype=torch.int32, device=device)
        left = int(self.top)
        self.free = torch.cat([self.free[:left], fresh, self.free.new_full((before - left,), -1)])
        self.top += more
