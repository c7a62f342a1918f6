"""Copies named rows of many fields at once: what a fork, a restart and a compaction do."""

from collections.abc import Sequence

import torch
from torch import Tensor

from branchrt_gym.kernels.checks import describe, expect_tensor
from branchrt_gym.kernels.dispatch import Impl, resolve

__all__ = ["NO_ROW", "copy_rows", "write_rows"]

NO_ROW = -1
"""In a list of rows: no row here."""


def copy_rows(
    fields: Sequence[Tensor],
    from_rows: Tensor,
    to_rows: Tensor,
    *,
    sources: Sequence[Tensor] | None = None,
    disjoint: bool = False,
    impl: Impl = "auto",
) -> None:
    """Sets `field[to_rows[m]] = source[from_rows[m]]` for every m, in every field.

    All reads happen before the first write, whatever shares memory with what, so a row may be
    copied from and to in one call. An entry is skipped where either row is `NO_ROW`. Rows
    that no entry names keep every bit.

    Args:
        fields: Contiguous tensors `[N, ...]` of any dtype and trailing shape; changed in place.
        from_rows: `[M]` int64, rows of the sources.
        to_rows: `[M]` int64, rows of the fields. No row may be named twice, which is not
            checked.
        sources: One contiguous tensor `[S, ...]` for each field, of its dtype and trailing
            shape; the fields themselves unless given.
        disjoint: No row that is read is written, which is not checked.
        impl: See `dispatch.resolve`.

    Raises:
        ValueError: A tensor is not as above, or, on the CPU, a row is out of range. On CUDA
            an entry with a row out of range is skipped, since a check would have to wait for
            the device.
        TypeError: A tensor is something else. Nothing has changed after an error.

    Cost: on the CPU one gather and one scatter for each field. With Triton one launch for all
    fields if no source shares storage with a field, or with `disjoint`; else two, through
    scratch of M rows for each field, since seeing that rows are disjoint would have to wait for
    the device. No host synchronisation on CUDA.
    """
    fields = tuple(fields)
    sources = fields if sources is None else tuple(sources)
    _check(fields, sources, from_rows, to_rows)
    path = resolve(impl, from_rows)
    if not fields or not from_rows.numel():
        return
    source_rows, field_rows = sources[0].shape[0], fields[0].shape[0]
    all_named = False
    if not from_rows.is_cuda:
        all_named = _expect_in_range("from_rows", from_rows, source_rows)
        all_named &= _expect_in_range("to_rows", to_rows, field_rows)
    if not source_rows or not field_rows:
        return
    if path == "triton":
        from branchrt_gym.kernels import rows_triton

        rows_triton.copy_rows(fields, from_rows, to_rows, sources, disjoint)
    elif from_rows.is_cuda:
        _copy_without_waiting(fields, from_rows, to_rows, sources)
    else:
        if not all_named:
            named = (from_rows >= 0).logical_and_(to_rows >= 0)
            from_rows, to_rows = from_rows[named], to_rows[named]
        read = [source.index_select(0, from_rows) for source in sources]
        for field, rows in zip(fields, read, strict=True):
            field.index_copy_(0, to_rows, rows)


def write_rows(
    fields: Sequence[Tensor],
    rows: Tensor,
    values: Sequence[Tensor | int],
    *,
    impl: Impl = "auto",
) -> None:
    """Sets `field[rows[m]] = value[m]` for every m, in every field.

    As `copy_rows` from all rows in order, without a gather.

    Args:
        fields: As in `copy_rows`.
        rows: `[M]` int64, rows of the fields. An entry that is `NO_ROW` is skipped; no row may be
            named twice, which is not checked.
        values: For each field a contiguous tensor `[M, ...]` of its dtype and trailing shape, or
            a number for all of its rows.
        impl: See `dispatch.resolve`.

    Raises:
        ValueError, TypeError: As `copy_rows` does.

    Cost: on the CPU one scatter or fill for each field; elsewhere that of `copy_rows`.
    """
    fields, values = tuple(fields), tuple(values)
    expect_tensor("rows", rows, (torch.int64,), None, "of shape (M,)")
    if rows.dim() != 1 or len(values) != len(fields):
        raise ValueError(
            f"`rows` is {describe(rows)} and `values` has {len(values)} entries; expected rows of "
            f"shape (M,) and an entry for each of {len(fields)} fields"
        )
    count = rows.shape[0]
    if rows.is_cuda or resolve(impl, rows) == "triton":
        sources = [
            value if isinstance(value, Tensor) else field.new_full((count, *field.shape[1:]), value)
            for field, value in zip(fields, values, strict=True)
        ]
        order = torch.arange(count, device=rows.device)
        copy_rows(fields, order, rows, sources=sources, impl=impl)
        return
    _check_fields(fields, rows)
    for i, (field, value) in enumerate(zip(fields, values, strict=True)):
        if not isinstance(value, int):
            _check_tensor(f"values[{i}]", value, rows, rows)
            _check_source(f"values[{i}]", value, field)
    if not fields or not count:
        return
    given = [value for value in values if isinstance(value, Tensor)]
    if not _expect_in_range("rows", rows, fields[0].shape[0]):
        named = rows >= 0
        rows = rows[named]
        values = tuple(value[named] if isinstance(value, Tensor) else value for value in values)
    elif _share_storage(fields, given):
        values = tuple(value.clone() if isinstance(value, Tensor) else value for value in values)
    for field, value in zip(fields, values, strict=True):
        if isinstance(value, Tensor):
            field.index_copy_(0, rows, value)
        else:
            field.index_fill_(0, rows, value)


def _share_storage(fields: Sequence[Tensor], sources: Sequence[Tensor]) -> bool:
    written = {field.untyped_storage().data_ptr() for field in fields}
    return any(source.untyped_storage().data_ptr() in written for source in sources)


def _check(
    fields: tuple[Tensor, ...], sources: tuple[Tensor, ...], from_rows: Tensor, to_rows: Tensor
) -> None:
    expect_tensor("from_rows", from_rows, (torch.int64,), None, "of shape (M,)")
    expect_tensor("to_rows", to_rows, (torch.int64,), from_rows, "of shape (M,)")
    if from_rows.dim() != 1 or from_rows.shape != to_rows.shape:
        raise ValueError(
            f"`from_rows` is {describe(from_rows)} and `to_rows` {describe(to_rows)}; "
            "expected both of the same shape (M,)"
        )
    if len(fields) != len(sources):
        raise ValueError(
            f"`sources` has {len(sources)} tensors; expected {len(fields)}, one for each field"
        )
    _check_fields(fields, from_rows)
    if sources is fields:
        return
    for i, (source, field) in enumerate(zip(sources, fields, strict=True)):
        _check_tensor(f"sources[{i}]", source, sources[0], from_rows)
        _check_source(f"sources[{i}]", source, field)


def _check_fields(fields: tuple[Tensor, ...], rows: Tensor) -> None:
    for i, field in enumerate(fields):
        _check_tensor(f"fields[{i}]", field, fields[0], rows)


def _check_tensor(name: str, tensor: Tensor, like: Tensor, rows: Tensor) -> None:
    """Refuses what is not a contiguous tensor of as many rows as `like`."""
    if not isinstance(tensor, Tensor) or tensor.device != rows.device:  # says what is wrong
        expect_tensor(name, tensor, None, rows, "of shape (N, ...)")
    if tensor.dim() == 0 or tensor.shape[0] != like.shape[0]:
        raise ValueError(
            f"`{name}` is {describe(tensor)}; expected as many rows as the others, "
            f"which is {describe(like)}"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"`{name}` is {describe(tensor)} with strides {tensor.stride()}; "
            "expected a contiguous tensor"
        )


def _check_source(name: str, source: Tensor, field: Tensor) -> None:
    if source.dtype != field.dtype or source.shape[1:] != field.shape[1:]:
        raise ValueError(
            f"`{name}` is {describe(source)}; expected the dtype and the trailing "
            f"shape of its field, {describe(field)}"
        )


def _expect_in_range(name: str, rows: Tensor, count: int) -> bool:
    """Refuses rows out of range. For the CPU: it looks. Returns whether no entry is skipped."""
    low, high = (int(x) for x in rows.aminmax())
    if low < NO_ROW or high >= count:
        raise ValueError(
            f"`{name}` has rows {low} .. {high}; expected 0 .. {count - 1}, "
            f"the rows there are, or NO_ROW ({NO_ROW})"
        )
    return low >= 0


def _copy_without_waiting(
    fields: tuple[Tensor, ...], from_rows: Tensor, to_rows: Tensor, sources: tuple[Tensor, ...]
) -> None:
    """The reference on CUDA, where dropping the skipped entries would wait for their number.

    A skipped entry repeats the first named one instead, which writes the same bits twice; if
    none is named, all entries write row 0 back to itself.
    """
    named = (from_rows >= 0) & (from_rows < sources[0].shape[0])
    named &= (to_rows >= 0) & (to_rows < fields[0].shape[0])
    first = named.to(torch.int8).argmax(0, keepdim=True)
    any_named = named[first]
    first_from = torch.where(any_named, from_rows[first], 0)
    first_to = torch.where(any_named, to_rows[first], 0)
    from_rows = torch.where(named, from_rows, first_from)
    to_rows = torch.where(named, to_rows, first_to)
    read = []
    for field, source in zip(fields, sources, strict=True):
        keep = any_named.view((1,) * field.dim())
        read.append(torch.where(keep, source.index_select(0, from_rows), field[:1]))
    for field, rows in zip(fields, read, strict=True):
        field.index_copy_(0, to_rows, rows)
