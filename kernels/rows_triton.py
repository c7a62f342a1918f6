"""Row copies as Triton: all fields in one launch, as machine words, whatever their dtypes."""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import math

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

__all__ = ["copy_rows"]

_BLOCK = 1024
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


@triton.jit(do_not_specialize=["count", "source_rows", "field_rows"])
def _copy_rows_kernel(
    sources,
    targets,
    from_rows,
    to_rows,
    count,
    source_rows,
    field_rows,
    WIDTHS: tl.constexpr,
    GATHER: tl.constexpr,
    SCATTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # The programs of field j follow those of field j - 1; each copies BLOCK words.
    program = tl.program_id(0).to(tl.int64)
    first = program * 0
    for j in tl.static_range(len(WIDTHS)):
        words = count.to(tl.int64) * WIDTHS[j]
        programs = tl.cdiv(words, BLOCK)
        if (program >= first) & (program < first + programs):
            at = (program - first) * BLOCK + tl.arange(0, BLOCK)
            entry = at // WIDTHS[j]
            source_row = tl.load(from_rows + entry, mask=at < words, other=-1)
            target_row = tl.load(to_rows + entry, mask=at < words, other=-1)
            named = (source_row >= 0) & (source_row < source_rows)
            named = named & (target_row >= 0) & (target_row < field_rows)
            # A side that is not indexed is scratch, one row for each entry.
            if not GATHER:
                source_row = entry
            if not SCATTER:
                target_row = entry
            column = at % WIDTHS[j]
            word = tl.load(sources[j] + source_row * WIDTHS[j] + column, mask=named)
            tl.store(targets[j] + target_row * WIDTHS[j] + column, word, mask=named)
        first += programs


def copy_rows(
    fields: tuple[Tensor, ...],
    from_rows: Tensor,
    to_rows: Tensor,
    sources: tuple[Tensor, ...],
    disjoint: bool = False,
) -> None:
    """See `rows.copy_rows`; the arguments are taken as checked, with at least one of each row.

    Reads finish before writes start because gather and scatter are launches of their own,
    unless no storage is shared or the rows are disjoint.
    """
    pairs = [
        _as_words(source, field)
        for source, field in zip(sources, fields, strict=True)
        if field.numel()
    ]
    if not pairs:
        return
    read, written = (tuple(side) for side in zip(*pairs, strict=True))
    rows = (from_rows.contiguous(), to_rows.contiguous())
    extent = (sources[0].shape[0], fields[0].shape[0])
    with torch.cuda.device_of(from_rows):
        if disjoint or _storages(sources).isdisjoint(_storages(fields)):
            _launch(read, written, rows, extent, gather=True, scatter=True)
        else:
            scratch = tuple(x.new_empty(from_rows.shape[0], x.shape[1]) for x in read)
            _launch(read, scratch, rows, extent, gather=True, scatter=False)
            _launch(scratch, written, rows, extent, gather=False, scatter=True)


def _launch(
    sources: tuple[Tensor, ...],
    targets: tuple[Tensor, ...],
    rows: tuple[Tensor, Tensor],
    extent: tuple[int, int],
    *,
    gather: bool,
    scatter: bool,
) -> None:
    count = rows[0].shape[0]
    widths = tuple(x.shape[1] for x in sources)
    grid = (sum(triton.cdiv(count * width, _BLOCK) for width in widths),)
    _copy_rows_kernel[grid](
        sources, targets, *rows, count, *extent, widths, gather, scatter, _BLOCK
    )


def _as_words(source: Tensor, field: Tensor) -> tuple[Tensor, Tensor]:
    """Both as `[rows, words]` of the widest word that fits a row and both places in memory."""
    size = math.gcd(8, field.numel() // field.shape[0] * field.element_size())
    for x in (source, field):
        size = math.gcd(size, x.data_ptr(), x.storage_offset() * x.element_size())
    word = _WORDS[size]
    # Flat in between: the last dimension alone may be narrower than a word.
    return (
        source.view(-1).view(word).view(source.shape[0], -1),
        field.view(-1).view(word).view(field.shape[0], -1),
    )


def _storages(tensors: tuple[Tensor, ...]) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tensors}
