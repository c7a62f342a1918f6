"""Runs written into rows of their own, as fast as the memory goes: the dense form's write."""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

__all__ = ["write_runs"]

_BLOCK = 4096  # entries of a run that a program writes


@triton.jit
def _write_kernel(content, rows, start, value, width, length, BLOCK: tl.constexpr):
    chunks = tl.cdiv(length, BLOCK)
    program = tl.program_id(0).to(tl.int64)
    run = program // chunks
    at = (program % chunks) * BLOCK + tl.arange(0, BLOCK)
    entry = tl.load(value + run * length + at, mask=at < length)
    place = tl.load(rows + run) * width + tl.load(start + run)
    tl.store(content + place + at, entry, mask=at < length)


def write_runs(content: Tensor, rows: Tensor, start: Tensor, value: Tensor) -> None:
    """Sets `content[rows[i], start[i] + j]` to `value[i, j]`; all are contiguous."""
    runs, length = value.shape
    if value.numel():
        grid = (runs * triton.cdiv(length, _BLOCK),)
        with torch.cuda.device_of(content):
            _write_kernel[grid](
                content, rows, start, value, content.shape[1], length, _BLOCK, num_warps=8
            )
