"""The floor of `branchrt bench deep-tree`: DeepTree's beam search written by hand, and a chase.

Single-purpose: one kind of branch, scores known to be small, no record of choices, no flags, no
early end. A general runtime must keep all of these; the floor shows what they cost.
"""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from branchrt_gym.kernels.keys_triton import mix32_device

__all__ = ["chase", "floor"]

_NOWHERE = tl.constexpr(-(2**25))  # below every score; times 32 it is an int32 still


@triton.jit
def _child(position, action, depth, WIDTH: tl.constexpr):
    bits = position.to(tl.uint32) * 31 + action.to(tl.uint32) * 0x9E3779B1
    bits = mix32_device(bits + depth.to(tl.uint32) * 0x85EBCA6B)
    return ((bits.to(tl.uint64) * WIDTH) >> 32).to(tl.int32)


@triton.jit
def _floor_kernel(
    contexts,
    context_index,
    start,
    position_out,
    score_out,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    KEPT: tl.constexpr,
    FANOUT: tl.constexpr,
):
    root = tl.program_id(0)
    lane = tl.arange(0, 32)
    rank = lane // FANOUT
    action = lane % FANOUT
    row = contexts + tl.load(context_index + root) * WIDTH
    position = tl.load(start + root + lane * 0)
    score = tl.where(lane < FANOUT, 0, _NOWHERE)
    for level in range(DEPTH):
        position = _child(position, action, lane * 0 + level, WIDTH)
        reward = tl.load(row + position).to(tl.int32)
        score += reward
        even = tl.zeros_like(lane)
        odd = tl.zeros_like(lane)
        own = score * 32 + (31 - lane)  # no two are equal
        for turn in tl.static_range(1, 32):
            rival = tl.gather(own, (lane + turn) & 31, 0)
            ahead = ((own - rival).to(tl.uint32, bitcast=True) >> 31).to(tl.int32, bitcast=True)
            if turn % 2 == 0:
                even += ahead
            else:
                odd += ahead
        place = even + odd
        source = lane * 0
        for first in tl.static_range(0, KEPT, 6):
            here = (place >= first) & (place < first + 6)
            packed = tl.sum(tl.where(here, lane << (((place - first) * 5) & 31), 0), 0)
            mine = (rank >= first) & (rank < first + 6)
            source = tl.where(mine, (packed >> (((rank - first) * 5) & 31)) & 31, source)
        position = tl.gather(position, source, 0)
        score = tl.gather(score, source, 0)
    mask = (action == 0) & (rank < KEPT)
    tl.store(position_out + root * KEPT + rank, position, mask=mask)
    tl.store(score_out + root * KEPT + rank, score, mask=mask)


@triton.jit
def _chase_kernel(contexts, context_index, start, out, DEPTH: tl.constexpr, WIDTH: tl.constexpr):
    root = tl.program_id(0)
    lane = tl.arange(0, 32)
    row = contexts + tl.load(context_index + root) * WIDTH
    position = tl.load(start + root + lane * 0)
    value = lane * 0
    for level in range(DEPTH):
        # Where the next read goes depends on what this one found.
        position = _child(position + value, lane, lane * 0 + level, WIDTH)
        value = tl.load(row + position).to(tl.int32)
    tl.store(out + root * 32 + lane, position + value)


def floor(
    contexts: Tensor, context_index: Tensor, start: Tensor, depth: int, kept: int, fanout: int
) -> tuple[Tensor, Tensor]:
    """Searches; one warp per root, `kept * fanout == 32`.

    Args:
        contexts: `[C, W] int16`.
        context_index: `[R] int64`.
        start: `[R] int32`, the roots' positions.
        depth: Levels.
        kept: Width of the beam.
        fanout: Actions.

    Returns:
        The positions and the scores kept last, `[R, kept] int32`.
    """
    if kept * fanout != 32:
        raise ValueError(f"the floor keeps {kept} of {fanout} children each; expected 32 children")
    position = torch.empty(len(start), kept, dtype=torch.int32, device=start.device)
    score = torch.empty_like(position)
    _floor_kernel[(len(start),)](
        contexts,
        context_index,
        start,
        position,
        score,
        depth,
        contexts.shape[1],
        kept,
        fanout,
        num_warps=1,
    )
    return position, score


def chase(contexts: Tensor, context_index: Tensor, start: Tensor, depth: int) -> Tensor:
    """Reads `depth` entries of a context one after another, 32 chains for each root."""
    out = torch.empty(len(start), 32, dtype=torch.int32, device=start.device)
    _chase_kernel[(len(start),)](
        contexts, context_index, start, out, depth, contexts.shape[1], num_warps=1
    )
    return out
