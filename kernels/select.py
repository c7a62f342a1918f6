"""Selection: the best few of each root's candidates, in one total order everywhere."""

import torch
from torch import Tensor

from branchrt_gym.kernels.checks import describe, expect_tensor
from branchrt_gym.kernels.dispatch import Impl, resolve
from branchrt_gym.kernels.rows import NO_ROW

__all__ = ["top_k_per_root"]

_LOWEST = -(2**63)


def top_k_per_root(
    score: Tensor, k: int, valid: Tensor | None = None, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """Finds the k best valid candidates of each root, by (score descending, index ascending).

    The order is exact for every score, the extremes of the dtype included.

    Args:
        score: `[R, M]` int32 or int64.
        k: How many to keep of each root, at least 1; it may exceed M.
        valid: `[R, M]` bool, the candidates that compete; all of them unless given.
        impl: See `dispatch.resolve`.

    Returns:
        `index: [R, k] int64`, columns of `score` from best to worst and then `NO_ROW`, and
        `count: [R] int64`, how many columns are named: the smaller of k and the valid ones.

    Raises:
        ValueError: A tensor is not as above, or k < 1.

    Cost: a partial sort of each row in torch (int64 with its extreme scores: two passes over a
    full stable sort). With Triton one launch that compares all pairs up to M = 1,024; above,
    sorted tiles of 256 and log2(M / 256) merges, M log M steps each. No host synchronisation
    on CUDA.
    """
    expect_tensor("score", score, (torch.int32, torch.int64), None, "of shape (R, M)")
    if score.dim() != 2:
        raise ValueError(f"`score` is {describe(score)}; expected a tensor of shape (R, M)")
    if valid is not None:
        meaning = f"of shape {tuple(score.shape)}, that of `score`"
        expect_tensor("valid", valid, (torch.bool,), score, meaning)
        if valid.shape != score.shape:
            raise ValueError(f"`valid` is {describe(valid)}; expected torch.bool {meaning}")
    if k < 1:
        raise ValueError(f"`k` is {k}; expected at least 1")
    if resolve(impl, score) == "triton" and score.numel():
        from branchrt_gym.kernels import select_triton

        return select_triton.top_k_per_root(score, k, valid)
    return _by_sorting(score, k, valid)


def _by_sorting(score: Tensor, k: int, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, columns = score.shape
    kept = min(k, columns)
    if valid is None:
        count = torch.full((rows,), kept, dtype=torch.int64, device=score.device)
    else:
        count = valid.sum(1).clamp_(max=k)
    if _fits_32_bits(score):
        order = _packed(score, valid).topk(kept, dim=1).indices
    else:
        order = score.sort(dim=1, descending=True, stable=True).indices
        if valid is not None:
            first = valid.gather(1, order).to(torch.int8)
            order = order.gather(1, first.sort(dim=1, descending=True, stable=True).indices)
        order = order[:, :kept]
    named = torch.arange(kept, device=score.device) < count.unsqueeze(1)
    best = torch.where(named, order, NO_ROW)
    if kept == k:
        return best, count
    return torch.nn.functional.pad(best, (0, k - kept), value=NO_ROW), count


def _fits_32_bits(score: Tensor) -> bool:
    """Whether every score is known to fit int32; a CUDA tensor is not waited for."""
    if score.dtype == torch.int32:
        return True
    if score.is_cuda or not score.numel():
        return False
    low, high = (int(x) for x in score.aminmax())
    return -(2**31) <= low and high < 2**31


def _packed(score: Tensor, valid: Tensor | None) -> Tensor:
    """One int64 for each candidate, distinct where valid, whose order is the total order.

    The score is the high half and the index, counted down from the top, the low half: the
    least value there can be for a valid one is above `_LOWEST`, which marks the others.
    """
    columns = torch.arange(score.shape[1], device=score.device)
    packed = (score.to(torch.int64) << 32).bitwise_or_(0xFFFFFFFF - columns)
    return packed if valid is None else packed.masked_fill_(~valid, _LOWEST)
