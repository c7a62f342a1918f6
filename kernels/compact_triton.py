"""Stable compaction as Triton: a prefix sum inside each block, over offsets between them."""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from branchrt_gym.kernels.rows import NO_ROW

__all__ = ["compact_indices"]

_BLOCK = 4096
_WARPS = 8
_NO_ROW = tl.constexpr(NO_ROW)


@triton.jit(do_not_specialize=["size"])
def _count_kernel(mask, counts, size, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    is_set = (tl.load(mask + at, mask=at < size, other=0) != 0).to(tl.int32)
    tl.store(counts + block, tl.sum(is_set, 0).to(tl.int64))


@triton.jit(do_not_specialize=["size"])
def _place_kernel(mask, ends, index, size, ONE_BLOCK: tl.constexpr, BLOCK: tl.constexpr):
    # `ends[b]` counts the set entries of blocks 0 .. b; with one block it is written here.
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    is_set = (tl.load(mask + at, mask=at < size, other=0) != 0).to(tl.int32)
    in_block = tl.sum(is_set, 0).to(tl.int64)
    if ONE_BLOCK:
        total = in_block
        before = in_block * 0
        tl.store(ends, total)
    else:
        total = tl.load(ends + tl.num_programs(0) - 1)
        before = tl.load(ends + block) - in_block
    rank = before + tl.cumsum(is_set, 0) - is_set
    # Each entry writes one place: a set one its own, another one a place of the padding.
    place = tl.where(is_set != 0, rank, total + at - rank)
    tl.store(index + place, tl.where(is_set != 0, at, _NO_ROW), mask=at < size)


def compact_indices(mask: Tensor) -> tuple[Tensor, Tensor]:
    """See `compact.compact_indices`; the argument is taken as checked and not empty."""
    size = mask.shape[0]
    blocks = triton.cdiv(size, _BLOCK)
    flags = mask.contiguous().view(torch.uint8)
    index = torch.empty(size, dtype=torch.int64, device=mask.device)
    counts = torch.empty(blocks, dtype=torch.int64, device=mask.device)
    with torch.cuda.device_of(mask):
        if blocks == 1:
            block = triton.next_power_of_2(size)
            _place_kernel[(1,)](flags, counts, index, size, True, block, num_warps=_WARPS)
            return index, counts[0]
        _count_kernel[(blocks,)](flags, counts, size, _BLOCK, num_warps=_WARPS)
        ends = counts.cumsum(0)
        _place_kernel[(blocks,)](flags, ends, index, size, False, _BLOCK, num_warps=_WARPS)
    return index, ends[-1]
