"""The bound of `branchrt bench expand`: as many random reads of the contexts, and nothing else."""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from branchrt_gym.kernels.keys_triton import mix32_device

__all__ = ["read_at_random"]

_BLOCK = 1024


@triton.jit
def _read_kernel(
    contexts, context_index, sums, reads, width, FANOUT: tl.constexpr, B: tl.constexpr
):
    at = tl.program_id(0) * B + tl.arange(0, B)
    at = tl.minimum(at, reads - 1)
    place = (mix32_device(at.to(tl.uint32)).to(tl.uint64) * width) >> 32
    context = tl.load(context_index + at // FANOUT)
    entry = tl.load(contexts + context * width + place.to(tl.int64))
    tl.store(sums + tl.program_id(0), tl.sum(entry.to(tl.int32), 0))


def read_at_random(contexts: Tensor, context_index: Tensor, fanout: int) -> Tensor:
    """Reads an entry at random for each of `P * F` children, below 2**31; returns some sums.

    An entry is narrower than the 32 bytes that memory hands out, so each read costs a sector.
    """
    reads = context_index.shape[0] * fanout
    programs = triton.cdiv(reads, _BLOCK)
    sums = torch.empty(programs, dtype=torch.int32, device=contexts.device)
    with torch.cuda.device_of(contexts):
        _read_kernel[(programs,)](
            contexts, context_index, sums, reads, contexts.shape[1], fanout, _BLOCK
        )
    return sums
