"""A whole best-first search as one Triton kernel: one program per root, branches in registers.

Between expansions lane `i` holds the branch of rank `i`. For one, the first open branch makes room
for its children where it stood: the lanes are then the candidates, in order. The rules are those of
the eager tier, `search_eager.best_first`.
"""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from branchrt_gym.kernels.order_triton import (
    EMPTY,
    SOLVED,
    TERMINATED,
    TRUNCATED,
    exact_order,
    settle,
    take,
    where,
)
from branchrt_gym.kernels.search_triton import expand

__all__ = ["search_best_first"]


@triton.jit(do_not_specialize=["budget", "depth"])
def _best_first_kernel(
    shared,
    context_index,
    root_key,
    root_state,
    state_out,
    key_out,
    word_out,
    depth_out,
    choices,
    expanded,
    levels,
    budget,
    depth,
    transition: tl.constexpr,
    PARAMS: tl.constexpr,
    SCORE: tl.constexpr,
    KEPT: tl.constexpr,
    FANOUT: tl.constexpr,
    FIRST: tl.constexpr,
    LANES: tl.constexpr,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
    STOP: tl.constexpr,
):
    CLOSED: tl.constexpr = TERMINATED | TRUNCATED | (SOLVED if STOP else 0)
    root = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    context = tl.load(context_index + root)
    state = ()
    for j in tl.static_range(len(root_state)):
        state = state + (tl.load(root_state[j] + root + lane * 0),)
    key = (lane * 0).to(tl.int64)
    if USES_KEY:
        key = tl.load(root_key + root + lane * 0)
    word = tl.where(lane == 0, 0, EMPTY)
    deep = lane * 0
    record = choices + root * budget * KEPT
    step = tl.full((), 0, tl.int32)
    is_open = (word >= 0) & ((word & CLOSED) == 0) & (deep < depth)
    best = tl.min(tl.where(is_open, lane, LANES), 0)
    while (step < budget) & (best < LANES):
        child = (lane >= best) & (lane < best + FANOUT)
        beside = tl.where(lane < best, lane, tl.maximum(lane - FANOUT + 1, 0))
        origin = tl.where(child, best, beside)
        action = tl.where(child, lane - best, 0)
        state = take(state, origin)
        word = tl.gather(word, origin, 0)
        deep = tl.gather(deep, origin, 0)
        if USES_KEY:
            key = tl.gather(key, origin, 0)
        fresh, flags, child_key = expand(
            shared,
            context,
            key,
            state,
            deep,
            lane,
            action,
            transition,
            PARAMS,
            FIRST,
            USES_KEY,
            SPLIT,
        )
        valid = child | ((word >= 0) & (lane < KEPT + FANOUT - 1))
        wins = child & ((flags & SOLVED) != 0) & STOP
        state = where(child, fresh, state)
        deep = tl.where(child, deep + 1, deep)
        valid, place, source = exact_order(state[SCORE], valid, wins, lane, lane, KEPT, LANES, STOP)
        choice = tl.where(child, best * FANOUT + action, -2 - origin)
        step += 1
        word = settle(
            word,
            flags,
            child,
            choice,
            source,
            valid,
            place,
            record + (step - 1) * KEPT,
            step,
            lane,
            lane,
            KEPT,
            LANES,
        )
        word = tl.where(lane < KEPT, word, EMPTY)
        state = take(state, source)
        deep = tl.gather(deep, source, 0)
        if USES_KEY:
            key = tl.gather(tl.where(child, child_key, key), source, 0)
        is_open = (word >= 0) & ((word & CLOSED) == 0) & (deep < depth)
        best = tl.min(tl.where(is_open, lane, LANES), 0)
    tl.store(expanded + root, step.to(tl.int64))
    tl.store(levels + root, step)
    out = root * KEPT + lane
    mask = lane < KEPT
    for j in tl.static_range(len(state_out)):
        tl.store(state_out[j] + out, state[j], mask=mask)
    if USES_KEY:
        tl.store(key_out + out, key, mask=mask)
    tl.store(word_out + out, word, mask=mask)
    tl.store(depth_out + out, deep, mask=mask)
    stays = tl.where(word >= 0, -2 - lane, EMPTY)
    while step < budget:  # a root that is done keeps its branches
        tl.store(record + step * KEPT + lane, stays, mask=mask)
        step += 1


def search_best_first(
    kernel: Any,
    shared: Sequence[Tensor],
    context_index: Tensor,
    root_key: Tensor,
    root_state: Sequence[Tensor],
    state: Sequence[Tensor],
    key: Tensor,
    word: Tensor,
    depths: Tensor,
    choices: Tensor,
    expanded: Tensor,
    levels: Tensor,
    *,
    depth: int,
    score: int,
    fanout: int,
    first: int,
    uses_key: bool,
    split: bool,
    stop: bool,
) -> None:
    """Launches the kernel; see `search_triton.search_beam` for the arguments.

    Args:
        kernel: A `TransitionKernel`.
        shared: The shared fields.
        context_index: `[R] int64`.
        root_key: `[R] int64`.
        root_state: `[R]` each.
        state: `[R, K]` each, written.
        key: `[R, K] int64`, written where keys are used.
        word: `[R, K] int32`, written.
        depths: `[R, K] int32`, written: transitions of each branch.
        choices: `[R, budget, K] int32`, written.
        expanded: `[R] int64`, written.
        levels: `[R] int32`, written: expansions of each root.
        depth: Transitions of a branch, at most.
        score: The place of the field that ranks.
        fanout: `F`.
        first: The first action.
        uses_key: Whether the environment looks at keys.
        split: Whether children have random futures of their own.
        stop: Whether a root that is solved is done.
    """
    roots, budget, kept = choices.shape
    lanes = max(32, triton.next_power_of_2(kept + fanout - 1))
    with torch.cuda.device_of(word):
        _best_first_kernel[(roots,)](
            (*shared, *kernel.tables),
            context_index,
            root_key,
            tuple(root_state),
            tuple(state),
            key,
            word,
            depths,
            choices,
            expanded,
            levels,
            budget,
            depth,
            kernel.function,
            kernel.params,
            score,
            kept,
            fanout,
            first,
            lanes,
            uses_key,
            split,
            stop,
            num_warps=max(1, min(16, lanes // 64)),
            **({"maxnreg": 128} if lanes == 32 and word.is_cuda else {}),
        )
