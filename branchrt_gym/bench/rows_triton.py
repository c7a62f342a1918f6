"""Whole rows copied from where an index says, as fast as the memory goes: the batcher's copy."""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

__all__ = ["take_rows"]

_BLOCK = 2048  # words of a row that a program copies


@triton.jit
def _take_kernel(source, index, target, words, BLOCK: tl.constexpr):
    # Programs that copy the same place of neighbouring rows are near each other in time, and
    # neighbours are often siblings: their parent's row is then read from cache.
    chunks = tl.cdiv(words, BLOCK)
    program = tl.program_id(0).to(tl.int64)
    row = program // chunks
    at = (program % chunks) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(source + tl.load(index + row) * words + at, mask=at < words)
    tl.store(target + row * words + at, word, mask=at < words)


def take_rows(source: Tensor, index: Tensor, target: Tensor) -> None:
    """Sets `target[i]` to `source[index[i]]`; both are `[N, J]` of the same words, contiguous."""
    rows, words = target.shape
    if target.numel():
        grid = (rows * triton.cdiv(words, _BLOCK),)
        with torch.cuda.device_of(target):
            _take_kernel[grid](source, index, target, words, _BLOCK, num_warps=8)
