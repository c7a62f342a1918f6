"""Paged rows: reads and copy-on-write of wide per-branch arrays kept as pages of one pool."""

from collections.abc import Iterator

import torch
from torch import Tensor

from branchrt_gym.kernels.checks import describe, expect_tensor
from branchrt_gym.kernels.dispatch import Impl, resolve
from branchrt_gym.kernels.rows import NO_ROW

__all__ = ["NO_PAGE", "NO_WRITE", "count_pages", "mark_pages", "read_pages", "write_pages"]

NO_PAGE = -1
"""In a table: the row never wrote this page and reads its base."""
NO_WRITE = -1
"""As the start of a run: no write here."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 20  # entries of scratch at once: few passes, each within a cache


def read_pages(
    pool: Tensor,
    table: Tensor,
    base: Tensor | None,
    context_index: Tensor,
    rows: Tensor | None,
    index: Tensor,
    width: int,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """Reads entries of paged rows, each row its own.

    Entry i of a row is `pool[page, i % E]` with `page = table[row, i // E]`, or where that is
    `NO_PAGE` `base[context_index[row], i]`, or 0 without a base.

    Args:
        pool: `[P, E]` of any dtype, contiguous: P pages of E entries.
        table: `[N, T]` int32, contiguous, T = ceil(width / E).
        base: `[C, width]` of the pool's dtype, contiguous, or None.
        context_index: `[N]` int64, rows of the base.
        rows: `[M]` int64, rows of the table; rows 0 .. N - 1 unless given. What an entry that is
            `NO_ROW` reads has no meaning.
        index: `[M]` or `[M, J]` int64 in 0 .. width - 1.
        width: Entries of a row.
        impl: See `dispatch.resolve`.

    Returns:
        The entries, in the shape of `index` and the dtype of the pool.

    Raises:
        ValueError: A tensor is not as above, or, on the CPU, a row or an index is out of range.
            On CUDA and in a compiled function the nearest one is read instead.

    Cost: a few reads for each entry read, the base's among them (torch: for all, written or
    not); neither pool nor base is copied. No host synchronisation on CUDA.
    """
    _check_pages(pool, table, base, context_index, width)
    count, size = table.shape[0], pool.shape[1]
    if rows is not None:
        _expect("rows", rows, (torch.int64,), ("M",), pool)
        count = rows.shape[0]
    expect_tensor("index", index, (torch.int64,), pool, f"of shape ({count},) or ({count}, J)")
    if index.dim() not in (1, 2) or index.shape[0] != count:
        raise ValueError(
            f"`index` is {describe(index)}; expected shape ({count},) or ({count}, J), "
            "entries for each of the rows read"
        )
    path = resolve(impl, pool)
    if not (index.is_cuda or torch.compiler.is_compiling()):
        _expect_rows(rows, table)
        _expect_entries(index, rows, width)
    if not index.numel() or not table.numel():
        return pool.new_zeros(index.shape)
    if path == "triton":
        from branchrt_gym.kernels import pages_triton

        return pages_triton.read_pages(pool, table, base, context_index, rows, index, width)
    if rows is None:
        rows = torch.arange(count, device=pool.device)
    index, rows = index.clamp(0, width - 1), rows.clamp(0, table.shape[0] - 1)
    column = (slice(None), *(None,) * (index.dim() - 1))
    cell, inside = _split(index, size)
    page = _at(table, cell.add_((rows * table.shape[1])[column]))
    unwritten = pool.new_zeros(())
    if base is not None:
        unwritten = _at(base, index + (context_index.index_select(0, rows) * width)[column])
    if not pool.shape[0]:
        return unwritten.expand(index.shape).contiguous()
    value = _at(pool, page.clamp(min=0).to(torch.int64).mul_(size).add_(inside))
    return torch.where(page >= 0, value, unwritten)


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
    length: Tensor | None,
    width: int,
    *,
    impl: Impl = "auto",
) -> None:
    """Writes runs of entries of paged rows, in pages that no other row can refer to.

    A page is written in place if its stamp is above the row's seal. Otherwise a page comes from
    the stack, is stamped `clock + 1`, takes over the old content unless a run covers it, and
    replaces the old one in the row's table. Which number it has is not specified. Rows that are
    not named read as before, every bit.

    Args:
        pool: As in `read_pages`; changes.
        stamp: `[P]` int32, contiguous, the clock's next value when the page was taken; changes.
        free: `[P]` int32, contiguous: a stack of the numbers of free pages.
        top: `[]` int64, how many are free; changes. It has to be at least what `count_pages`
            says. With Triton on CUDA nobody looks: a write for which no page is left is dropped
            and `top` goes below 0.
        table: As in `read_pages`; changes.
        sealed: `[N]` int32, the clock when the row last became another's past.
        clock: `[]` int32.
        base: As in `read_pages`.
        context_index: As in `read_pages`.
        rows: `[M]` int64, rows of the table. An entry that is `NO_ROW` is skipped; no row may be
            named twice, which is not checked.
        start: `[M, S]` int64: where each of S runs begins, or `NO_WRITE`. Runs of a row do not
            overlap, which is not checked.
        value: `[M, S, L]` of the pool's dtype.
        length: `[M, S]` int64 in 0 .. L, the entries that each run writes; L unless given.
        width: As in `read_pages`.
        impl: See `dispatch.resolve`.

    Raises:
        ValueError: A tensor is not as above, too few pages are free, or, on the CPU, a row or a
            run is out of range; on CUDA what is out of range is not written. Nothing has changed
            after an error.

    Cost: one read and one write of each page taken and not covered, and of each entry written.
    With Triton one launch and no host synchronisation; torch waits on CUDA.
    """
    _check_pages(pool, table, base, context_index, width)
    _expect("value", value, (pool.dtype,), ("M", "S", "L"), pool, contiguous=False)
    longest = value.shape[2]
    _expect("start", start, (torch.int64,), (*value.shape[:2],), pool, contiguous=False)
    if length is None:
        length = torch.full_like(start, longest)
    _check_runs(rows, start, length, longest, table, width)
    _check_ownership(stamp, table, sealed)
    _expect("stamp", stamp, None, (pool.shape[0],), pool)
    _expect("free", free, (torch.int32,), (pool.shape[0],), pool)
    _expect("top", top, (torch.int64,), (), pool)
    _expect("clock", clock, (torch.int32,), (), pool)
    path = resolve(impl, pool)
    if not value.numel() or not table.numel():
        return
    if path == "torch" or pool.is_cpu:
        runs = _Pieces(rows, start, length, longest, table.shape, pool.shape[1], width)
        cell, kept = runs.cells_without_page(stamp, table, sealed)
        if cell.shape[0] > int(top):
            raise ValueError(
                f"`top` is {int(top)}, the free pages, and the runs take {cell.shape[0]}; "
                "expected enough: ask `count_pages` first, then reclaim pages or grow the pool"
            )
    if path == "triton":
        from branchrt_gym.kernels import pages_triton

        pages_triton.write_pages(
            pool, stamp, free, top, table, sealed, clock, base, context_index, rows, start, value,
            length, width,
        )  # fmt: skip
        return
    top -= cell.shape[0]
    new = free.narrow(0, int(top), cell.shape[0]).to(torch.int64)
    stamp.index_fill_(0, new, int(clock) + 1)
    _copy_content(
        pool, table, base, context_index, width, kept, new[cell.shape[0] - kept.shape[0] :]
    )
    table.view(-1).index_copy_(0, cell, new.to(torch.int32))
    runs.write(value, pool, table)


def count_pages(
    stamp: Tensor,
    table: Tensor,
    sealed: Tensor,
    rows: Tensor,
    start: Tensor,
    length: Tensor,
    page_size: int,
    width: int,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """Counts the pages that `write_pages` would take: exact, each of a row's pages once.

    Args:
        stamp: As in `write_pages`.
        table: As in `write_pages`.
        sealed: As in `write_pages`.
        rows: As in `write_pages`.
        start: As in `write_pages`.
        length: `[M, S]` int64.
        page_size: Entries of a page, E.
        width: Entries of a row.
        impl: See `dispatch.resolve`.

    Returns:
        `[]` int64.

    Raises:
        ValueError: As `write_pages` does.

    Cost: a read of the table's entries and stamps that the runs touch. With Triton one launch
    and no host synchronisation; torch waits on CUDA.
    """
    pages = -(-width // page_size) if page_size > 0 else "T"
    _expect("table", table, (torch.int32,), ("N", pages), None)
    if page_size < 1:
        raise ValueError(f"`page_size` is {page_size}; expected at least 1")
    _check_runs(rows, start, length, width, table, width)
    _check_ownership(stamp, table, sealed)
    path = resolve(impl, table)
    if not start.numel() or not table.numel():
        return torch.zeros((), dtype=torch.int64, device=table.device)
    if path == "triton":
        from branchrt_gym.kernels import pages_triton

        return pages_triton.count_pages(stamp, table, sealed, rows, start, length, page_size, width)
    runs = _Pieces(rows, start, length, width, table.shape, page_size, width)
    cell, _ = runs.cells_without_page(stamp, table, sealed)
    return torch.tensor(cell.shape[0], device=table.device)


def mark_pages(table: Tensor, held: Tensor, num_pages: int, *, impl: Impl = "auto") -> Tensor:
    """Marks the pages that the tables of held rows name.

    Args:
        table: `[N, T]` int32, contiguous.
        held: `[N]` bool.
        num_pages: Pages of the pool, P.
        impl: See `dispatch.resolve`.

    Returns:
        `[P]` bool.

    Raises:
        ValueError: A tensor is not as above.

    Cost: one read of the held rows' tables and one write for each page named there. No host
    synchronisation on CUDA.
    """
    _expect("table", table, (torch.int32,), ("N", "T"), None)
    _expect("held", held, (torch.bool,), (table.shape[0],), table)
    if resolve(impl, table) == "triton" and table.numel():
        from branchrt_gym.kernels import pages_triton

        return pages_triton.mark_pages(table, held, num_pages)
    # Whatever is not a page of a held row marks one more page, in front.
    marks = torch.zeros(num_pages + 1, dtype=torch.bool, device=table.device)
    for part, of in _chunks(_CHUNK // max(1, table.shape[1]), table, held):
        page = torch.where(of[:, None] & (part < num_pages), part, NO_PAGE)
        marks.index_fill_(0, page.view(-1).to(torch.int64) + 1, True)
    return marks[1:]


class _Pieces:
    """Runs cut at the bounds of pages: a piece is of one row and one page."""

    def __init__(
        self,
        rows: Tensor,
        start: Tensor,
        length: Tensor,
        longest: int,
        table_shape: torch.Size,
        page_size: int,
        width: int,
    ) -> None:
        named = (rows >= 0).logical_and_(rows < table_shape[0])[:, None]
        named = named & (start >= 0) & (start < width) & (length > 0)
        run = named.reshape(-1).nonzero().squeeze(1)
        row = rows[run // start.shape[1]]
        first = start.reshape(-1)[run]
        end = (first + length.reshape(-1)[run].clamp_(max=longest)).clamp_(max=width)
        source = run * longest - first  # where entry 0 of the row would lie in the values
        page, inside = _split(first, page_size)
        pages = _split(end + (page_size - 1), page_size)[0] - page
        if pages.numel() and int(pages.max()) > 1:
            of, rank = _repeat(pages)
            row, end, source, page = row[of], end[of], source[of], page[of].add_(rank)
            inside = inside[of].masked_fill_(rank > 0, 0)
        begin = page * page_size
        self.inside = inside  # where in its page a piece begins
        self.count = (end - begin).clamp_(max=page_size).sub_(inside)
        self.source = source.add_(begin).add_(inside)
        self.cell = page.add_(row * table_shape[1])
        self.covers = self.count == page_size
        self.page_size, self.longest, self.many = page_size, longest, start.shape[1] > 1

    def cells_without_page(
        self, stamp: Tensor, table: Tensor, sealed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Finds the cells of the table, flat, whose page is not the row's own.

        Returns:
            `cell: [K] int64`, each once, and `kept`, the last of them: those of pages that no
            piece covers, whose content has to be kept.
        """
        page = table.view(-1).index_select(0, self.cell)
        owned = page >= 0
        if stamp.shape[0]:
            seal = sealed.index_select(0, self.cell // table.shape[1])
            owned &= stamp.index_select(0, page.clamp_(min=0)) > seal
        kept = self.cell[~(owned | self.covers)]
        if self.many:
            kept = kept.sort().values
            kept = kept[torch.cat([kept[:1] >= 0, kept[1:] > kept[:-1]])]
        return torch.cat([self.cell[self.covers & ~owned], kept]), kept

    def write(self, value: Tensor, pool: Tensor, table: Tensor) -> None:
        """Writes all pieces; their pages are their rows' own by now."""
        page = table.view(-1).index_select(0, self.cell).to(torch.int64)
        entries, value, size = pool.view(-1), value.reshape(-1), self.page_size
        whole = self.covers.nonzero().squeeze(1)
        for (some,) in _chunks(_CHUNK // size, whole):
            _put(pool, page[some], _windows(value, self.source[some], size))
        place, source, count = page * size + self.inside, self.source, self.count
        if whole.shape[0]:
            part = ~self.covers
            place, source, count = place[part], source[part], count[part]
        if self.longest == 1:
            entries.index_copy_(0, place, value.index_select(0, source))
            return
        step = _CHUNK // min(size, self.longest)
        for place_, source_, count_ in _chunks(step, place, source, count):
            of, rank = _repeat(count_)
            found = value.index_select(0, source_[of].add_(rank))
            entries.index_copy_(0, place_[of].add_(rank), found)


def _copy_content(
    pool: Tensor,
    table: Tensor,
    base: Tensor | None,
    context_index: Tensor,
    width: int,
    cell: Tensor,
    to: Tensor,
) -> None:
    """Copies what the flat cells of the table read into the pages `to` of the pool."""
    size, pages = pool.shape[1], table.shape[1]
    for cell_, to_ in _chunks(_CHUNK // size, cell, to):
        old = table.view(-1).index_select(0, cell_).to(torch.int64)
        held = old >= 0
        _put(pool, to_[held], pool.index_select(0, old[held]))
        cell_, to_ = cell_[~held], to_[~held]
        if base is None:
            pool.index_fill_(0, to_, 0)
            continue
        row = cell_ // pages
        page = cell_ - row * pages
        begin = context_index.index_select(0, row) * width + page * size
        real = width - (pages - 1) * size  # entries of a row's last page
        short = page > (pages - 2 if real < size else pages)
        full = ~short
        _put(pool, to_[full], _windows(base.view(-1), begin[full], size))
        last = to_[short]
        pool.index_fill_(0, last, 0)
        pool[:, :real].index_copy_(0, last, _windows(base.view(-1), begin[short], real))


def _put(pool: Tensor, to: Tensor, pages: Tensor) -> None:
    """Sets `pool[to] = pages`."""
    if pool.is_cuda:
        pool.index_copy_(0, to, pages)
        return
    # NumPy takes a fraction of torch's time, which moves entry by entry with all threads.
    words = _WORDS[pool.element_size()]
    pool.view(words).numpy()[to.numpy()] = pages.view(words).numpy()


def _chunks(step: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors, `step` entries of each at a time."""
    step = max(1, step)
    for first in range(0, tensors[0].shape[0], step):
        yield tuple(x[first : first + step] for x in tensors)


def _repeat(count: Tensor) -> tuple[Tensor, Tensor]:
    """Each k `count[k]` times, and how many times before: `[0, 0, 2], [0, 1, 0]` of `[2, 0, 1]`."""
    of = torch.repeat_interleave(count)
    rank = torch.arange(of.shape[0], device=of.device)
    return of, rank.sub_((count.cumsum(0) - count)[of])


def _windows(flat: Tensor, begin: Tensor, size: int) -> Tensor:
    """`flat[begin[k] : begin[k] + size]` for each k, without an index for each entry."""
    if not begin.shape[0]:
        return flat.new_empty(0, size)
    return flat.unfold(0, size, 1).index_select(0, begin)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Entries of `x`, seen flat, in the shape of `index`."""
    return x.view(-1).index_select(0, index.reshape(-1)).view(index.shape)


def _split(index: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """The pages of entries, and where in them these are; new tensors."""
    if page_size & (page_size - 1):
        return index // page_size, index % page_size
    return index >> (page_size.bit_length() - 1), index & (page_size - 1)


def _check_pages(
    pool: Tensor, table: Tensor, base: Tensor | None, context_index: Tensor, width: int
) -> None:
    _expect("pool", pool, None, ("P", "E"), None)
    if not pool.shape[1]:
        raise ValueError(f"`pool` is {describe(pool)}; expected at least one entry a page")
    pages = -(-width // pool.shape[1])
    _expect("table", table, (torch.int32,), ("N", pages), pool)
    _expect("context_index", context_index, (torch.int64,), (table.shape[0],), pool)
    if base is not None:
        _expect("base", base, (pool.dtype,), ("C", width), pool)


def _check_ownership(stamp: Tensor, table: Tensor, sealed: Tensor) -> None:
    _expect("stamp", stamp, (torch.int32,), ("P",), table)
    _expect("sealed", sealed, (torch.int32,), (table.shape[0],), table)


def _check_runs(
    rows: Tensor, start: Tensor, length: Tensor, longest: int, table: Tensor, width: int
) -> None:
    """Refuses runs that are not as in `write_pages`."""
    _expect("rows", rows, (torch.int64,), ("M",), table)
    _expect("start", start, (torch.int64,), (rows.shape[0], "S"), table, contiguous=False)
    _expect("length", length, (torch.int64,), tuple(start.shape), table, contiguous=False)
    if start.is_cuda:
        return
    _expect_rows(rows, table)
    wrong = (start < 0) | (length < 0) | (length > longest) | (start > width - length)
    wrong &= (start != NO_WRITE) & (rows >= 0)[:, None]
    if wrong.any():
        m, s = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"`start[{m}, {s}]` is {int(start[m, s])} and the run's length {int(length[m, s])}; "
            f"expected a length of 0 .. {longest} within the entries 0 .. {width - 1} of a row, "
            f"or NO_WRITE ({NO_WRITE}) as the start"
        )


def _expect(
    name: str,
    value: object,
    dtypes: tuple[torch.dtype, ...] | None,
    shape: tuple[int | str, ...],
    like: Tensor | None,
    *,
    contiguous: bool = True,
) -> None:
    """Refuses what is not such a tensor; a letter in `shape` stands for any extent."""
    meaning = f"of shape ({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
    expect_tensor(name, value, dtypes, like, meaning)
    assert isinstance(value, Tensor)
    if value.dim() != len(shape) or any(
        isinstance(wanted, int) and found != wanted
        for found, wanted in zip(value.shape, shape, strict=True)
    ):
        raise ValueError(f"`{name}` is {describe(value)}; expected a tensor {meaning}")
    if contiguous and not value.is_contiguous():
        raise ValueError(
            f"`{name}` is {describe(value)} with strides {value.stride()}; "
            "expected a contiguous tensor"
        )


def _expect_rows(rows: Tensor | None, table: Tensor) -> None:
    if rows is None or not rows.numel():
        return
    low, high = (int(x) for x in rows.aminmax())
    if low < NO_ROW or high >= table.shape[0]:
        raise ValueError(
            f"`rows` has rows {low} .. {high}; expected 0 .. {table.shape[0] - 1}, "
            f"the rows there are, or NO_ROW ({NO_ROW})"
        )


def _expect_entries(index: Tensor, rows: Tensor | None, width: int) -> None:
    if not index.numel():
        return
    low, high = (int(x) for x in index.aminmax())
    if (low < 0 or high >= width) and rows is not None:  # whose skipped entries do not count
        named = index[rows >= 0]
        low, high = (int(x) for x in named.aminmax()) if named.numel() else (0, 0)
    if low < 0 or high >= width:
        raise ValueError(
            f"`index` has entries {low} .. {high}; expected 0 .. {width - 1}, those of a row"
        )
