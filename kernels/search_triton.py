"""A whole beam search as one Triton kernel: one program per root, branches in registers.

The environment's own `transition_kernel` is inlined into it. The branches of a root, at most
`KEPT`, are spread over `LANES` lanes as the children they will have: lane `i` holds the branch of
rank `i // FANOUT` and takes action `i % FANOUT`. Nothing but the record of choices is written
before the end. The rules are those of the eager tier, `search_eager.beam`.
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

from branchrt_gym.kernels.keys_triton import fold_device
from branchrt_gym.kernels.order_triton import (
    EMPTY,
    NARROW,
    SOLVED,
    TERMINATED,
    TRUNCATED,
    WARP,
    exact_order,
    lane_of_rank,
    like,
    ranks_of_narrow,
    settle,
    take,
    where,
)

__all__ = ["beam_kernel", "expand", "own_key", "search_beam"]

_FORK = tl.constexpr(3 << 40)  # as `seeding.FORK`


@triton.jit
def own_key(key, action, SPLIT: tl.constexpr):
    """The key of a child that takes `action`, of a parent without forks."""
    if SPLIT:
        key = fold_device(fold_device(key, _FORK), action)
    return key


@triton.jit
def expand(
    shared,
    context,
    key,
    state,
    level,
    lane,
    action,
    transition: tl.constexpr,
    PARAMS: tl.constexpr,
    FIRST: tl.constexpr,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Returns each lane's child: its fields, its flags and its key."""
    step_key = key
    if USES_KEY:
        key = own_key(key, action, SPLIT)
        step_key = fold_device(key, level)
    fresh, _, terminated, truncated, solved = transition(
        shared, context + lane * 0, lane * 0 + level, step_key, state, action + FIRST, PARAMS
    )
    flags = terminated.to(tl.int32) * TERMINATED + truncated.to(tl.int32) * TRUNCATED
    return like(fresh, state), flags + solved.to(tl.int32) * SOLVED, key


@triton.jit
def _search(
    shared,
    context,
    key,
    state,
    choices,
    depth,
    lane,
    rank,
    action,
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
    GUESS: tl.constexpr,
):
    """Runs the levels of one root.

    What a level decided is written down while the next one waits for memory. So whether to go on
    is known a level late: the level too many carries every branch over, as is recorded of a root
    that is done. With GUESS, for one warp, levels are ordered as if scores were narrow and nothing
    was solved, without a branch in the loop; the last level is mended if that was wrong.

    Returns:
        The state, key and word of the branches held, in the lanes of their children; expansions;
        levels; and whether a guess before the last level was wrong.
    """
    CLOSED: tl.constexpr = TERMINATED | TRUNCATED | (SOLVED if STOP else 0)
    inside = lane < KEPT * FANOUT
    word = tl.where(rank == 0, 0, EMPTY)
    flags = lane * 0
    is_open = lane < 0
    valid = rank == 0
    wins = lane < 0
    odd = lane * 0
    ever = lane * 0
    source = lane
    place = lane
    before = state  # the candidates
    before_key = key
    row = choices - KEPT  # of the level before
    open_now = tl.full((), 1, tl.int32)
    total = tl.full((), 0, tl.int32)
    wrong = tl.full((), 0, tl.int32)
    level = 0
    while (level < depth) & (open_now > wrong * LANES):
        fresh, flags_now, key_now = expand(
            shared,
            context,
            key,
            state,
            level,
            lane,
            action,
            transition,
            PARAMS,
            FIRST,
            USES_KEY,
            SPLIT,
        )
        word = settle(
            word,
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
        if STOP:
            wrong = tl.max(odd, 0) if GUESS else wrong
        else:
            ever |= odd  # without a sum over the lanes at each level: there is no early end
        row += KEPT
        is_open = inside & (word >= 0) & ((word & CLOSED) == 0)
        open_now = tl.sum((is_open & (action == 0)).to(tl.int32), 0)
        total += open_now
        valid = inside & (word >= 0) & (is_open | (action == 0))
        bias = tl.where(valid, WARP - 1 - lane, -0x30000000 - lane)

        flags = flags_now
        before = where(is_open, fresh, state)
        if USES_KEY:
            before_key = tl.where(is_open, key_now, key)
        score = before[SCORE]
        wins = is_open & ((flags & SOLVED) != 0) & STOP
        if GUESS:
            odd = (wins | (score >= NARROW) | (score < -NARROW)).to(tl.int32)
            place = ranks_of_narrow(score, bias, lane)
            source = lane_of_rank(place, lane, rank, KEPT)
        else:
            valid, place, source = exact_order(score, valid, wins, lane, rank, KEPT, LANES, STOP)
        # What stands in an empty place is not looked at, but a transition may compute on it.
        state = take(before, source)
        if USES_KEY:
            key = tl.gather(before_key, source, 0)
        level += 1
    if GUESS:
        if not STOP:
            wrong = tl.max(ever, 0)
        if tl.max(odd, 0) > 0:
            valid, place, source = exact_order(
                before[SCORE], valid, wins, lane, rank, KEPT, LANES, STOP
            )
            state = take(before, source)
            if USES_KEY:
                key = tl.gather(before_key, source, 0)
    word = settle(
        word,
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
    return state, key, word, total, level - ((level > 0) & (open_now == 0)).to(tl.int32), wrong


@triton.jit(do_not_specialize=["depth"])
def beam_kernel(
    shared,
    context_index,
    root_key,
    root_state,
    state_out,
    key_out,
    word_out,
    choices,
    expanded,
    levels,
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
    """Searches from root `program_id(0)`.

    Args:
        shared: Pointers to the shared fields, in the contract's order, then to the tables.
        context_index: `[R] int64`.
        root_key: `[R] int64`; not read without USES_KEY.
        root_state: `[R]` each.
        state_out: `[R, KEPT]` each, written.
        key_out: `[R, KEPT] int64`, written with USES_KEY.
        word_out: `[R, KEPT] int32`, written: flags and births, or -1 in an empty place.
        choices: `[R, depth, KEPT] int32`, written.
        expanded: `[R] int64`, written: branches expanded.
        levels: `[R] int32`, written: levels in which any was.
        depth: Levels, at most.
        transition: The environment's device function; PARAMS its parameters.
        SCORE: Which field ranks.
    """
    root = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    rank = lane // FANOUT
    action = lane % FANOUT
    context = tl.load(context_index + root)
    start = ()
    for j in tl.static_range(len(root_state)):
        start = start + (tl.load(root_state[j] + root + lane * 0),)
    start_key = (lane * 0).to(tl.int64)
    if USES_KEY:
        start_key = tl.load(root_key + root + lane * 0)
    record = choices + root * depth * KEPT
    state, key, word, total, level, wrong = _search(
        shared,
        context,
        start_key,
        start,
        record,
        depth,
        lane,
        rank,
        action,
        transition,
        PARAMS,
        SCORE,
        KEPT,
        FANOUT,
        FIRST,
        LANES,
        USES_KEY,
        SPLIT,
        STOP,
        LANES == WARP,
    )
    if LANES == WARP:
        if wrong > 0:
            tl.debug_barrier()  # before other lanes write the same record
            state, key, word, total, level, wrong = _search(
                shared,
                context,
                start_key,
                start,
                record,
                depth,
                lane,
                rank,
                action,
                transition,
                PARAMS,
                SCORE,
                KEPT,
                FANOUT,
                FIRST,
                LANES,
                USES_KEY,
                SPLIT,
                STOP,
                False,
            )
    tl.store(expanded + root, total.to(tl.int64))
    tl.store(levels + root, level)
    mask = (lane < KEPT * FANOUT) & (action == 0)
    out = root * KEPT + rank
    for j in tl.static_range(len(state_out)):
        tl.store(state_out[j] + out, state[j], mask=mask)
    if USES_KEY:
        tl.store(key_out + out, key, mask=mask)
    tl.store(word_out + out, word, mask=mask)
    # A root that is done keeps its branches through the levels of the others.
    stays = tl.where(word >= 0, -2 - rank, EMPTY)
    while level < depth:
        tl.store(record + level * KEPT + rank, stays, mask=mask)
        level += 1


def search_beam(
    kernel: Any,
    shared: Sequence[Tensor],
    context_index: Tensor,
    root_key: Tensor,
    root_state: Sequence[Tensor],
    state: Sequence[Tensor],
    key: Tensor,
    word: Tensor,
    choices: Tensor,
    expanded: Tensor,
    levels: Tensor,
    *,
    score: int,
    fanout: int,
    first: int,
    uses_key: bool,
    split: bool,
    stop: bool,
) -> None:
    """Launches `beam_kernel`; see there. `kernel` is a `TransitionKernel`."""
    roots, depth, kept = choices.shape
    lanes = max(32, triton.next_power_of_2(kept * fanout))
    with torch.cuda.device_of(word):
        beam_kernel[(roots,)](
            (*shared, *kernel.tables),
            context_index,
            root_key,
            tuple(root_state),
            tuple(state),
            key,
            word,
            choices,
            expanded,
            levels,
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
