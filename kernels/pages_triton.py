"""Paged rows as Triton: device functions for authors' kernels, and the operations on them.

A kernel of an author reads with `read_page` and writes with `write_page`. Both take entries as
they are in memory: pass the pool, the base and the values of bool as uint8.
"""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

__all__ = ["count_pages", "mark_pages", "read_page", "read_pages", "write_page", "write_pages"]

_TILE = 1024
_COPIED = 2048  # entries that a program copies at once
_LANES, _MANY = 16, 4096  # rows of a program that writes, where there are that many
_SHORT = 64  # entries of a run: of longer ones a program does one row
_BUSY = 2048  # programs that keep a device busy
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


@triton.jit
def read_page(
    pool,
    table,
    base,
    row,
    context,
    index,
    E: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    BASED: tl.constexpr,
    mask=None,
):
    """Reads entry `index` of each lane's row, as `pages.read_pages` does.

    Args:
        pool, table, base: As there; the base is not looked at unless `BASED`.
        row: int, rows of the table, each there.
        context: int, rows of the base; broadcasts to `index`, as `row` does.
        index: int; an entry that is not there reads the nearest one.
        E, T, W: Entries of a page, pages of a row, entries of a row.
        BASED: Whether there is a base.
        mask: Lanes that read; the others are 0, their row may be anything. All unless given.
    """
    index = tl.minimum(tl.maximum(index.to(tl.int64), 0), W - 1)
    cell = table + (row.to(tl.int64) * T + index // E)
    if mask is None:
        page = tl.load(cell)
    else:
        page = tl.load(cell, mask=mask, other=-1)
    value = tl.load(pool + (page.to(tl.int64) * E + index % E), mask=page >= 0, other=0)
    if BASED:
        unwritten = page < 0
        if mask is not None:
            unwritten = unwritten & mask
        at = base + (context.to(tl.int64) * W + index)
        value = tl.where(unwritten, tl.load(at, mask=unwritten, other=0), value)
    return value


@triton.jit
def _own_page(
    pool,
    stamp,
    free,
    top,
    table,
    sealed,
    clock,
    base,
    row,
    context,
    page,
    covered,
    mask,
    E: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    BASED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sees that page `page` of each lane's row is the row's own; lanes are distinct cells.

    Returns the number in the pool, -1 for a lane that is not in `mask` or finds no page left. A
    barrier has to come before the page is read or written.
    """
    row = row.to(tl.int64)
    cell = table + (row * T + page)
    old = tl.load(cell, mask=mask, other=-1)
    age = tl.load(stamp + old, mask=old >= 0, other=0)
    seal = tl.load(sealed + row, mask=mask, other=0)
    need = mask & ((old < 0) | (age <= seal))
    rank = tl.cumsum(need.to(tl.int32), 0)
    taken = tl.sum(need.to(tl.int32), 0)
    own = old
    if taken > 0:
        left = tl.atomic_add(top, -(taken.to(tl.int64)), sem="relaxed")
        at = left - rank
        new = tl.load(free + at, mask=need & (at >= 0), other=-1)
        placed = need & (new >= 0)
        tl.store(stamp + new, tl.load(clock) + 1, mask=placed)
        tl.store(cell, new, mask=placed)
        own = tl.where(need, new, old)
        copied = placed & (covered == 0)
        held = (copied & (old >= 0))[:, None]
        fresh = (copied & (old < 0))[:, None]
        for first in range(0, E, BLOCK):
            inside = (first + tl.arange(0, BLOCK))[None, :]
            exists = inside < E
            content = pool + (old.to(tl.int64)[:, None] * E + inside)
            word = tl.load(content, mask=held & exists, other=0)
            if BASED:
                index = page.to(tl.int64)[:, None] * E + inside
                content = base + (context.to(tl.int64)[:, None] * W + index)
                unwritten = tl.load(content, mask=fresh & exists & (index < W), other=0)
                word = tl.where(fresh, unwritten, word)
            place = pool + (new.to(tl.int64)[:, None] * E + inside)
            tl.store(place, word, mask=copied[:, None] & exists)
    return own


@triton.jit
def write_page(
    pool,
    stamp,
    free,
    top,
    table,
    sealed,
    clock,
    base,
    row,
    context,
    index,
    value,
    mask,
    E: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    BASED: tl.constexpr,
    BLOCK: tl.constexpr = 32,
):
    """Writes entry `index` of each lane's row, as `pages.write_pages` does.

    Later reads and writes of the program find it. There has to be room: if no page is left, the
    entry is not written and `top` goes below 0.

    Args:
        pool, stamp, free, top, table, sealed, clock, base: As there.
        row: int vector, rows of the table, no row twice.
        context: int vector, rows of the base.
        index: int vector; an entry that is not there is not written.
        value: The entries.
        mask: Lanes that write; the row of another may be anything.
        E, T, W, BASED: As in `read_page`.
        BLOCK: Entries of each lane's page that are copied at once, a power of two.
    """
    index = index.to(tl.int64)
    mask = mask & (index >= 0) & (index < W)
    index = tl.where(mask, index, 0)
    page = index // E
    covered = (page * 0 + E) == 1
    tl.debug_barrier()
    own = _own_page(
        pool, stamp, free, top, table, sealed, clock, base, row, context, page, covered, mask,
        E, T, W, BASED, BLOCK,
    )  # fmt: skip
    tl.debug_barrier()
    tl.store(pool + (own.to(tl.int64) * E + index % E), value, mask=own >= 0)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["count", "num_rows"])
def _read_kernel(
    pool,
    table,
    base,
    context_index,
    rows,
    index,
    out,
    count,
    num_rows,
    columns,
    E: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    BASED: tl.constexpr,
    NAMED: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks = tl.cdiv(columns, BLOCK)
    lane = (tl.program_id(0) // blocks).to(tl.int64) * LANES + tl.arange(0, LANES)
    column = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    named = lane < count
    row = lane
    if NAMED:
        row = tl.load(rows + lane, mask=named, other=0)
    row = tl.minimum(tl.maximum(row, 0), num_rows - 1)
    context = row
    if BASED:
        context = tl.load(context_index + row, mask=named, other=0)
    at = lane[:, None] * columns + column[None, :]
    exists = named[:, None] & (column < columns)[None, :]
    entry = tl.load(index + at, mask=exists, other=0)
    value = read_page(
        pool, table, base, row[:, None], context[:, None], entry, E, T, W, BASED, exists
    )
    tl.store(out + at, value, mask=exists)


@triton.jit(do_not_specialize=["count", "num_rows", "pages_each"])
def _write_kernel(
    pool,
    stamp,
    free,
    top,
    table,
    sealed,
    clock,
    base,
    context_index,
    rows,
    start,
    value,
    length,
    count,
    num_rows,
    runs,
    longest,
    pages_each,
    E: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    BASED: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN_BLOCK: tl.constexpr,
):
    # A program has LANES rows and `pages_each` pages of them: no cell is another's too, so what
    # several runs do to a page needs no order between programs.
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    row = tl.load(rows + lane, mask=lane < count, other=-1)
    named = (row >= 0) & (row < num_rows)
    context = row
    if BASED:
        context = tl.load(context_index + row, mask=named, other=0)
    low = tl.program_id(1).to(tl.int64) * pages_each
    run = 0
    while run < runs:
        at = lane * runs + run
        first = tl.load(start + at, mask=named, other=-1)
        length_ = tl.load(length + at, mask=named, other=0)
        end = tl.minimum(first + tl.minimum(length_, longest), W)
        some = (first >= 0) & (end > first)
        source = at * longest - first  # where entry 0 of the row would lie in the values
        page = tl.maximum(first // E, low)
        stop = tl.minimum((end - 1) // E + 1, low + pages_each)
        steps = tl.max(tl.where(some, stop - page, 0), 0)
        tl.debug_barrier()  # the run before has set cells and copied pages that this one finds
        step = 0
        while step < steps:
            here = some & (page < stop)
            begin = tl.maximum(first, page * E)
            finish = tl.minimum(end, (page + 1) * E)
            own = _own_page(
                pool, stamp, free, top, table, sealed, clock, base, row, context, page,
                finish - begin == E, here, E, T, W, BASED, BLOCK,
            )  # fmt: skip
            tl.debug_barrier()
            finish = tl.where(own >= 0, finish, begin)
            most = tl.max(finish - begin, 0)
            place = own.to(tl.int64) - page  # pages from where a row would have them
            done = 0
            while done < most:
                entry = begin[:, None] + (done + tl.arange(0, RUN_BLOCK))[None, :]
                inside = entry < finish[:, None]
                word = tl.load(value + (source[:, None] + entry), mask=inside, other=0)
                tl.store(pool + (place[:, None] * E + entry), word, mask=inside)
                done += RUN_BLOCK
            page += 1
            step += 1
        run += 1


@triton.jit(do_not_specialize=["count", "num_rows"])
def _count_kernel(
    stamp,
    table,
    sealed,
    rows,
    start,
    length,
    out,
    count,
    num_rows,
    runs,
    E: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    row = tl.load(rows + lane, mask=lane < count, other=-1)
    named = (row >= 0) & (row < num_rows)
    seal = tl.load(sealed + row, mask=named, other=0)
    need = tl.zeros([LANES, BLOCK], tl.int32)
    for block in range(0, T, BLOCK):
        page = (block + tl.arange(0, BLOCK))[None, :]
        touched = tl.zeros([LANES, BLOCK], tl.int32)
        run = 0
        while run < runs:
            at = lane * runs + run
            first = tl.load(start + at, mask=named, other=-1)
            length_ = tl.load(length + at, mask=named, other=0)
            end = tl.minimum(first + tl.minimum(length_, W), W)
            some = (first >= 0) & (end > first)
            within = (page >= (first // E)[:, None]) & (page <= ((end - 1) // E)[:, None])
            touched |= (some[:, None] & within).to(tl.int32)
            run += 1
        reached = touched != 0
        old = tl.load(table + (row[:, None] * T + page), mask=reached, other=-1)
        age = tl.load(stamp + old, mask=old >= 0, other=0)
        need += (reached & ((old < 0) | (age <= seal[:, None]))).to(tl.int32)
    total = tl.sum(tl.sum(need, 1), 0)
    if total > 0:
        tl.atomic_add(out, total.to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["count", "num_pages"])
def _mark_kernel(
    table, held, marks, count, num_pages, T: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr
):
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    is_held = tl.load(held + lane, mask=lane < count, other=0) != 0
    for block in range(0, T, BLOCK):
        cell = (block + tl.arange(0, BLOCK))[None, :]
        exists = is_held[:, None] & (cell < T)
        page = tl.load(table + (lane[:, None] * T + cell), mask=exists, other=-1)
        # Programs that mark one page all store the same.
        tl.store(marks + page, 1, mask=(page >= 0) & (page < num_pages))


def read_pages(
    pool: Tensor,
    table: Tensor,
    base: Tensor | None,
    context_index: Tensor,
    rows: Tensor | None,
    index: Tensor,
    width: int,
) -> Tensor:
    """See `pages.read_pages`; the arguments are taken as checked, with something to read."""
    out = torch.empty(index.shape, dtype=pool.dtype, device=pool.device)
    count, columns = index.shape[0], index.numel() // index.shape[0]
    block = min(triton.next_power_of_2(columns), _TILE)
    lanes = _TILE // block
    grid = (triton.cdiv(count, lanes) * triton.cdiv(columns, block),)
    with torch.cuda.device_of(pool):
        _read_kernel[grid](
            _words(pool), table, _words(pool if base is None else base), context_index,
            table if rows is None else rows, index.contiguous(), _words(out), count,
            table.shape[0], columns, pool.shape[1], table.shape[1], width, base is not None,
            rows is not None, lanes, block,
        )  # fmt: skip
    return out


def write_pages(
    pool: Tensor,
    stamp: Tensor,
    free: Tensor,
    top: Tensor,
    table: Tensor,
    sealed: Tensor,
    clock: Tensor,
    base: Tensor | None,
    context_index: Tensor,
    rows: Tensor,
    start: Tensor,
    value: Tensor,
    length: Tensor,
    width: int,
) -> None:
    """See `pages.write_pages`; the arguments are taken as checked, with something to write."""
    (count, runs, longest), size, pages = value.shape, pool.shape[1], table.shape[1]
    lanes = _LANES if count >= _MANY and longest <= _SHORT else 1
    block = min(triton.next_power_of_2(size), _COPIED // lanes)
    run_block = min(triton.next_power_of_2(longest), block)
    programs = triton.cdiv(count, lanes)
    # Long runs are split by their pages, so that few rows keep the device busy too.
    parts = min(pages, max(1, _BUSY // programs)) if longest > size else 1
    pages_each = triton.cdiv(pages, parts)
    grid = (programs, triton.cdiv(pages, pages_each))
    with torch.cuda.device_of(pool):
        _write_kernel[grid](
            _words(pool), stamp, free, top, table, sealed, clock,
            _words(pool if base is None else base), context_index, rows, start.contiguous(),
            _words(value.contiguous()), length.contiguous(), count, table.shape[0], runs,
            longest, pages_each, size, pages, width, base is not None, lanes, block, run_block,
        )  # fmt: skip


def count_pages(
    stamp: Tensor,
    table: Tensor,
    sealed: Tensor,
    rows: Tensor,
    start: Tensor,
    length: Tensor,
    page_size: int,
    width: int,
) -> Tensor:
    """See `pages.count_pages`; the arguments are taken as checked, with at least one run."""
    out = torch.zeros((), dtype=torch.int64, device=table.device)
    (count, runs), pages = start.shape, table.shape[1]
    block = min(triton.next_power_of_2(pages), 128, _TILE)
    lanes = _TILE // block
    with torch.cuda.device_of(table):
        _count_kernel[(triton.cdiv(count, lanes),)](
            stamp, table, sealed, rows, start.contiguous(), length.contiguous(), out, count,
            table.shape[0], runs, page_size, pages, width, lanes, block,
        )  # fmt: skip
    return out


def mark_pages(table: Tensor, held: Tensor, num_pages: int) -> Tensor:
    """See `pages.mark_pages`; the arguments are taken as checked, with at least one cell."""
    marks = torch.zeros(num_pages, dtype=torch.uint8, device=table.device)
    count, pages = table.shape
    block = min(triton.next_power_of_2(pages), _TILE)
    lanes = _TILE // block
    with torch.cuda.device_of(table):
        _mark_kernel[(triton.cdiv(count, lanes),)](
            table, held.view(torch.uint8), marks, count, num_pages, pages, lanes, block
        )
    return marks.view(torch.bool)


def _words(x: Tensor) -> Tensor:
    """Its elements as integers, which move bit for bit."""
    return x.view(_WORDS[x.element_size()])
