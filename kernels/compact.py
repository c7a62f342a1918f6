"""Stable compaction: the set entries of a mask, in order, without asking how many there are."""

import torch
from torch import Tensor

from branchrt_gym.kernels.checks import describe, expect_tensor
from branchrt_gym.kernels.dispatch import Impl, resolve
from branchrt_gym.kernels.rows import NO_ROW

__all__ = ["compact_indices"]


def compact_indices(mask: Tensor, *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Lists the indices of a mask's True entries in ascending order, padded to its length.

    Args:
        mask: `[N]` bool, any N.
        impl: See `dispatch.resolve`.

    Returns:
        `index: [N] int64`, the indices and then `NO_ROW`, and `count: [] int64`, how many
        indices there are.

    Raises:
        ValueError: `mask` is not a bool vector.

    Cost: two reads of the mask and one write of the index; with Triton one launch up to 4,096
    entries, else three (counts of blocks, their prefix sum, the indices: Blelloch's scan). No
    host synchronisation on CUDA.
    """
    expect_tensor("mask", mask, (torch.bool,), None, "of shape (N,)")
    if mask.dim() != 1:
        raise ValueError(f"`mask` is {describe(mask)}; expected torch.bool of shape (N,)")
    if resolve(impl, mask) == "triton" and mask.numel():
        from branchrt_gym.kernels import compact_triton

        return compact_triton.compact_indices(mask)
    size = mask.shape[0]
    if mask.is_cuda:
        return _compact_without_waiting(mask)
    found = mask.nonzero().squeeze(1)
    index = torch.full((size,), NO_ROW, dtype=torch.int64, device=mask.device)
    index[: found.shape[0]] = found
    return index, torch.tensor(found.shape[0], device=mask.device)


def _compact_without_waiting(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The reference on CUDA, where `nonzero` would wait for its own size."""
    size = mask.shape[0]
    place = mask.cumsum(0) - 1
    # Entries that are not set all land in one extra place at the end.
    index = torch.full((size + 1,), NO_ROW, dtype=torch.int64, device=mask.device)
    index.scatter_(0, torch.where(mask, place, size), torch.arange(size, device=mask.device))
    return index[:size], mask.sum()
