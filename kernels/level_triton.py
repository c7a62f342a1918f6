"""One level of a beam search in Triton, around a transition that runs elsewhere.

The captured tier of `search` alternates the environment's own torch transition with `level_kernel`,
which selects among the children, records the choices, and lays the branches kept out again as the
children they will have. The rules are those of the eager tier, `search_eager.beam`.
"""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from branchrt_gym.kernels.keys_triton import fold_device
from branchrt_gym.kernels.order_triton import (
    EMPTY,
    SOLVED,
    TERMINATED,
    TRUNCATED,
    exact_order,
    like,
    settle,
    take,
    where,
)
from branchrt_gym.kernels.search_triton import own_key

__all__ = ["begin_levels", "select_level"]


@triton.jit
def _load(pointers, at, mask):
    fields = ()
    for j in tl.static_range(len(pointers)):
        fields = fields + (tl.load(pointers[j] + at, mask=mask, other=0),)
    return fields


@triton.jit
def _lay_out(
    state,
    key,
    level,
    at,
    mask,
    parents,
    parent_key,
    step_key,
    depth,
    action,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Writes what the next transition reads, one row for each child to come."""
    for j in tl.static_range(len(parents)):
        tl.store(parents[j] + at, state[j], mask=mask)
    tl.store(depth + at, action * 0 + level, mask=mask)
    if USES_KEY:
        tl.store(parent_key + at, key, mask=mask)
        tl.store(step_key + at, fold_device(own_key(key, action, SPLIT), level), mask=mask)


@triton.jit
def _begin_kernel(
    root_state,
    root_key,
    parents,
    parent_key,
    step_key,
    depth,
    word,
    expanded,
    levels,
    KEPT: tl.constexpr,
    FANOUT: tl.constexpr,
    LANES: tl.constexpr,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
):
    root = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    action = lane % FANOUT
    state = _load(root_state, root + lane * 0, lane >= 0)
    key = (lane * 0).to(tl.int64)
    if USES_KEY:
        key = tl.load(root_key + root + lane * 0)
    mask = lane < KEPT * FANOUT
    at = root * (KEPT * FANOUT) + lane
    _lay_out(state, key, 0, at, mask, parents, parent_key, step_key, depth, action, USES_KEY, SPLIT)
    tl.store(word + root * KEPT + lane, tl.where(lane == 0, 0, EMPTY), mask=lane < KEPT)
    tl.store(expanded + root, (root * 0).to(tl.int64))
    tl.store(levels + root, (root * 0).to(tl.int32))


@triton.jit(do_not_specialize=["level", "most"])
def _level_kernel(
    fresh,
    terminated,
    truncated,
    solved,
    parents,
    parent_key,
    step_key,
    depth,
    word,
    choices,
    expanded,
    levels,
    level,
    most,
    SCORE: tl.constexpr,
    KEPT: tl.constexpr,
    FANOUT: tl.constexpr,
    LANES: tl.constexpr,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
    STOP: tl.constexpr,
):
    CLOSED: tl.constexpr = TERMINATED | TRUNCATED | (SOLVED if STOP else 0)
    root = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    rank = lane // FANOUT
    action = lane % FANOUT
    mask = lane < KEPT * FANOUT
    at = root * (KEPT * FANOUT) + lane
    held = tl.load(word + root * KEPT + rank, mask=mask, other=EMPTY)
    is_open = (held >= 0) & ((held & CLOSED) == 0)
    open_now = tl.sum((is_open & (action == 0)).to(tl.int32), 0)
    valid = (held >= 0) & (is_open | (action == 0))

    state = _load(parents, at, mask)
    state = where(is_open, like(_load(fresh, at, mask), state), state)
    flags = (tl.load(terminated + at, mask=mask, other=0) != 0).to(tl.int32) * TERMINATED
    flags += (tl.load(truncated + at, mask=mask, other=0) != 0).to(tl.int32) * TRUNCATED
    flags += (tl.load(solved + at, mask=mask, other=0) != 0).to(tl.int32) * SOLVED
    wins = is_open & ((flags & SOLVED) != 0) & STOP
    valid, place, source = exact_order(state[SCORE], valid, wins, lane, rank, KEPT, LANES, STOP)
    row = choices + (root * most + level) * KEPT
    level += 1
    held = settle(
        held,
        flags,
        is_open,
        tl.where(is_open, lane, -2 - rank),
        source,
        valid,
        place,
        row,
        level,
        lane,
        rank,
        KEPT,
        LANES,
    )
    state = take(state, source)
    key = (lane * 0).to(tl.int64)
    if USES_KEY:
        key = tl.load(parent_key + at, mask=mask, other=0)
        key = tl.gather(tl.where(is_open, own_key(key, action, SPLIT), key), source, 0)
    tl.debug_barrier()  # all lanes have read what they now write over
    tl.store(word + root * KEPT + rank, held, mask=mask & (action == 0))
    _lay_out(
        state, key, level, at, mask, parents, parent_key, step_key, depth, action, USES_KEY, SPLIT
    )
    tl.store(expanded + root, tl.load(expanded + root) + open_now)
    tl.store(levels + root, tl.load(levels + root) + (open_now > 0).to(tl.int32))


def _lanes(word: Tensor, fanout: int) -> int:
    return max(32, int(triton.next_power_of_2(word.shape[1] * fanout)))


def begin_levels(
    root_state: Sequence[Tensor],
    root_key: Tensor,
    parents: Sequence[Tensor],
    parent_key: Tensor,
    step_key: Tensor,
    depth: Tensor,
    word: Tensor,
    expanded: Tensor,
    levels: Tensor,
    *,
    fanout: int,
    uses_key: bool,
    split: bool,
) -> None:
    """Lays the roots out for the first transition.

    Args:
        root_state: `[R]` each.
        root_key: `[R] int64`.
        parents: `[R, K * F]` each, written.
        parent_key: `[R, K * F] int64`, written where keys are used.
        step_key: Likewise, the key of each transition.
        depth: `[R, K * F] int32`, written.
        word: `[R, K] int32`, written: flags and births of the branches held, see `order_triton`.
        expanded: `[R] int64`, written. levels: `[R] int32`, written.
        fanout: `F`.
        uses_key: Whether the environment looks at keys.
        split: Whether children have random futures of their own.
    """
    lanes = _lanes(word, fanout)
    with torch.cuda.device_of(word):
        _begin_kernel[(word.shape[0],)](
            tuple(root_state),
            root_key,
            tuple(parents),
            parent_key,
            step_key,
            depth,
            word,
            expanded,
            levels,
            word.shape[1],
            fanout,
            lanes,
            uses_key,
            split,
            num_warps=max(1, min(16, lanes // 64)),
        )


def select_level(
    fresh: Sequence[Tensor],
    flags: Sequence[Tensor],
    parents: Sequence[Tensor],
    parent_key: Tensor,
    step_key: Tensor,
    depth: Tensor,
    word: Tensor,
    choices: Tensor,
    expanded: Tensor,
    levels: Tensor,
    level: int,
    *,
    score: int,
    fanout: int,
    uses_key: bool,
    split: bool,
    stop: bool,
) -> None:
    """Selects among a level's children and lays those kept out for the next.

    Args:
        fresh: The children's fields, `[R * K * F]` each.
        flags: terminated, truncated and solved, `[R * K * F] bool`.
        parents: As in `begin_levels`; read and written over, as are the others.
        parent_key: Likewise.
        step_key: Likewise.
        depth: Likewise.
        word: Likewise.
        choices: `[R, depth, K] int32`; `level` is written.
        expanded: Added to. levels: Likewise.
        level: Which, from 0.
        score: The place of the field that ranks.
        fanout: `F`.
        uses_key: As in `begin_levels`.
        split: Likewise.
        stop: Whether a root that is solved is done.
    """
    lanes = _lanes(word, fanout)
    with torch.cuda.device_of(word):
        _level_kernel[(word.shape[0],)](
            tuple(fresh),
            *flags,
            tuple(parents),
            parent_key,
            step_key,
            depth,
            word,
            choices,
            expanded,
            levels,
            level,
            choices.shape[1],
            score,
            word.shape[1],
            fanout,
            lanes,
            uses_key,
            split,
            stop,
            num_warps=max(1, min(16, lanes // 64)),
        )
