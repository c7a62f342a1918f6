"""Selection as Triton: ranks by counting in one launch, or sorted runs merged by rank."""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from branchrt_gym.kernels.rows import NO_ROW

__all__ = ["top_k_per_root"]

_COUNTED = 1024  # the most candidates of a root that are ranked by counting alone
_RUN = 256  # the length of the first sorted runs above that
_SIDE = 64  # the sides of the square of pairs that a program compares at once
_MERGE_BLOCK = 256
_NO_ROW = tl.constexpr(NO_ROW)


@triton.jit
def _competes(valid, base, at, end, HAS_VALID: tl.constexpr):
    competes = at < end
    if HAS_VALID:
        competes = competes & (tl.load(valid + base + at, mask=competes, other=0) != 0)
    return competes


@triton.jit
def _rank(
    score,
    valid,
    base,
    at,
    first,
    end,
    HAS_VALID: tl.constexpr,
    CHUNKS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """How many of the row's valid candidates first .. end - 1 precede each of `at`; and all."""
    own = tl.load(score + base + at, mask=at < end, other=0)
    rank = tl.zeros((SIDE,), tl.int32)
    total = tl.sum(rank, 0)
    for chunk in range(CHUNKS):
        rival_at = first + chunk * SIDE + tl.arange(0, SIDE)
        competes = _competes(valid, base, rival_at, end, HAS_VALID)
        rival = tl.load(score + base + rival_at, mask=competes, other=0)[None, :]
        ties_ahead = (rival == own[:, None]) & (rival_at[None, :] < at[:, None])
        ahead = ((rival > own[:, None]) | ties_ahead) & competes[None, :]
        rank += tl.sum(ahead.to(tl.int32), 1)
        total += tl.sum(competes.to(tl.int32), 0)
    return own, rank, total


@triton.jit(do_not_specialize=["columns", "k"])
def _count_kernel(
    score,
    valid,
    index,
    count,
    columns,
    k,
    HAS_VALID: tl.constexpr,
    CHUNKS: tl.constexpr,
    SIDE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    base = row * columns
    _, rank, total = _rank(score, valid, base, at, 0, columns, HAS_VALID, CHUNKS, SIDE)
    competes = _competes(valid, base, at, columns, HAS_VALID)
    tl.store(index + row * k + rank, at.to(tl.int64), mask=competes & (rank < k))
    # The same lanes pad the places that no candidate takes; the grid covers k as well.
    named = tl.minimum(total, k)
    tl.store(index + row * k + at, _NO_ROW, mask=(at >= named) & (at < k))
    tl.store(count + row, named.to(tl.int64), mask=tl.program_id(1) == 0)


@triton.jit(do_not_specialize=["columns", "runs"])
def _run_kernel(
    score,
    valid,
    run_score,
    run_index,
    run_count,
    columns,
    runs,
    HAS_VALID: tl.constexpr,
    RUN: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Sorts each run of RUN candidates into its own place, without those that do not compete."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    run = tl.program_id(1) * SIDE // RUN
    first = run * RUN
    end = tl.minimum(first + RUN, columns)
    base = row * columns
    own, rank, total = _rank(score, valid, base, at, first, end, HAS_VALID, RUN // SIDE, SIDE)
    competes = _competes(valid, base, at, end, HAS_VALID)
    tl.store(run_score + base + first + rank, own, mask=competes)
    tl.store(run_index + base + first + rank, at, mask=competes)
    tl.store(run_count + row * runs + run, total, mask=tl.program_id(1) * SIDE == first)


@triton.jit(do_not_specialize=["columns", "runs", "width"])
def _merge_kernel(
    score,
    index,
    count,
    merged_score,
    merged_index,
    columns,
    runs,
    width,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Merges runs 2i and 2i + 1: an entry moves back by what precedes it in the other run.

    The left run has the lower indices, so of equal scores the left one precedes.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    base = row * columns
    run = at // width
    exists = at < columns
    exists = exists & (at % width < tl.load(count + row * runs + run, mask=exists, other=0))
    own = tl.load(score + base + at, mask=exists, other=0)
    other = base + (run ^ 1) * width
    low = tl.zeros((BLOCK,), tl.int32)
    high = tl.load(count + row * runs + (run ^ 1), mask=exists, other=0)
    for _ in range(STEPS):
        middle = (low + high) // 2
        searching = low < high
        rival = tl.load(score + other + middle, mask=searching, other=0)
        ahead = (rival > own) | ((rival == own) & (run % 2 == 1))
        low = tl.where(searching & ahead, middle + 1, low)
        high = tl.where(searching & (ahead == 0), middle, high)
    place = base + run // 2 * 2 * width + at % width + low
    tl.store(merged_score + place, own, mask=exists)
    tl.store(merged_index + place, tl.load(index + base + at, mask=exists), mask=exists)


def top_k_per_root(score: Tensor, k: int, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `select.top_k_per_root`; the arguments are taken as checked, `score` not empty."""
    score = score.contiguous()
    flags = score if valid is None else valid.contiguous().view(torch.uint8)
    with torch.cuda.device_of(score):
        if score.shape[1] <= _COUNTED:
            return _by_counting(score, k, flags, valid is not None)
        return _by_merging(score, k, flags, valid is not None)


def _by_counting(score: Tensor, k: int, flags: Tensor, has_valid: bool) -> tuple[Tensor, Tensor]:
    rows, columns = score.shape
    side = min(_SIDE, max(16, triton.next_power_of_2(columns)))
    index = torch.empty(rows, k, dtype=torch.int64, device=score.device)
    count = torch.empty(rows, dtype=torch.int64, device=score.device)
    _count_kernel[(rows, triton.cdiv(max(columns, k), side))](
        score,
        flags,
        index,
        count,
        columns,
        k,
        has_valid,
        triton.cdiv(columns, side),
        side,
        num_warps=4 if side == _SIDE else 1,
    )
    return index, count


def _by_merging(score: Tensor, k: int, flags: Tensor, has_valid: bool) -> tuple[Tensor, Tensor]:
    rows, columns = score.shape
    width, runs = _RUN, triton.next_power_of_2(triton.cdiv(columns, _RUN))
    steps = columns.bit_length()
    run = (torch.empty_like(score), torch.empty_like(score, dtype=torch.int32))
    merged = (torch.empty_like(run[0]), torch.empty_like(run[1]))
    # Zero, since the runs past the last candidate have no program.
    count = torch.zeros(rows, runs, dtype=torch.int32, device=score.device)
    _run_kernel[(rows, triton.cdiv(columns, _SIDE))](
        score, flags, *run, count, columns, runs, has_valid, _RUN, _SIDE
    )
    while runs > 1:
        _merge_kernel[(rows, triton.cdiv(columns, _MERGE_BLOCK))](
            *run, count, *merged, columns, runs, width, steps, _MERGE_BLOCK
        )
        run, merged = merged, run
        width, runs = 2 * width, runs // 2
        count = count.view(rows, runs, 2).sum(2, dtype=torch.int32)
    kept = min(k, columns)
    index = torch.full((rows, k), NO_ROW, dtype=torch.int64, device=score.device)
    count = count.view(rows).to(torch.int64).clamp_(max=k)
    named = torch.arange(kept, device=score.device) < count.unsqueeze(1)
    index[:, :kept] = torch.where(named, run[1][:, :kept], NO_ROW)
    return index, count
