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

__all__ = ["beam_kernel", "search_beam"]

# A branch's word: its flags, and above them its birth, `level * KEPT + rank`.
_TERMINATED = tl.constexpr(1)
_TRUNCATED = tl.constexpr(2)
_SOLVED = tl.constexpr(4)
_FLAGS = tl.constexpr(7)  # all of them
_BIRTH = tl.constexpr(3)  # the bits below
_NEWBORN = tl.constexpr(1 << 30)  # instead of a birth, until its rank is known
_EMPTY = tl.constexpr(-1)
_FORK = tl.constexpr(3 << 40)  # as `seeding.FORK`
_WARP = tl.constexpr(32)
_NARROW = tl.constexpr(1 << 24)  # below it, a score and a lane's index fit in 30 bits
_INDEX_BITS = tl.constexpr(5)  # of a lane of a warp
_INDICES = tl.constexpr(6)  # of those in one 31-bit word


@triton.jit
def _count_bits(word):
    """How many of the 32 bits of each word are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return (((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24


@triton.jit
def _ranks_of_narrow(score, bias, lane):
    """Ranks 32 candidates with scores of `_NARROW` bits; every rank is taken once.

    Every lane counts who is ahead of it among all others, whose words come round by shuffles. The
    `bias` makes words unique and puts those that do not compete last.
    """
    word = score.to(tl.int32) * _WARP + bias
    even = tl.zeros_like(lane)
    odd = tl.zeros_like(lane)
    for turn in tl.static_range(1, _WARP):
        rival = tl.gather(word, (lane + turn) & (_WARP - 1), 0)
        # The sign of the difference, which 32 bits hold; two chains of sums are sooner done.
        ahead = ((word - rival).to(tl.uint32, bitcast=True) >> 31).to(tl.int32, bitcast=True)
        if turn % 2 == 0:
            even += ahead
        else:
            odd += ahead
    return even + odd


@triton.jit
def _ranks_of_any(score, valid, lane):
    """As `_ranks_of_narrow`, for any scores."""
    LOWEST: tl.constexpr = -(2 ** (score.dtype.primitive_bitwidth - 1))
    score = tl.where(valid, score, LOWEST)
    place = tl.zeros_like(lane)
    for turn in tl.static_range(1, _WARP):
        other = (lane + turn) & (_WARP - 1)
        rival = tl.gather(score, other, 0)
        ahead = (rival > score) | ((rival == score) & (other < lane))
        place += ahead.to(tl.int32)
    # Who does not compete stands with the lowest score; no valid one may wait behind them.
    bits = tl.sum(valid.to(tl.uint32) << lane.to(tl.uint32), 0)
    below = (tl.full((), 1, tl.uint32) << lane.to(tl.uint32)) - 1
    absent = _count_bits(below & (bits ^ 0xFFFFFFFF)).to(tl.int32)
    place -= tl.where(score == LOWEST, absent, 0)
    return tl.where(valid, place, tl.sum(valid.to(tl.int32), 0) + absent)


@triton.jit
def _lane_of_rank(place, lane, rank, KEPT: tl.constexpr):
    """Inverts `place` for ranks below KEPT: sums pack the lanes of six ranks into a word each."""
    source = tl.zeros_like(lane)
    for first in tl.static_range(0, KEPT, _INDICES):
        shift = (place - first) * _INDEX_BITS
        here = (place >= first) & (place < first + _INDICES)
        packed = tl.sum(tl.where(here, lane << (shift & 31), 0), 0)
        wanted = ((rank - first) * _INDEX_BITS) & 31
        mine = (rank >= first) & (rank < first + _INDICES)
        source = tl.where(mine, (packed >> wanted) & (_WARP - 1), source)
    return source


@triton.jit
def _order_by_sort(score, valid, lane, rank, LANES: tl.constexpr):
    """Sorts more candidates with 32-bit scores; returns whose lane has rank `lane`, and `rank`."""
    tl.static_assert(score.dtype.primitive_bitwidth == 32, "sorted scores are 32-bit")
    LOWEST: tl.constexpr = -(2**63)
    # The low 16 bits name the lane. Those that do not compete are below every score.
    word = (score.to(tl.int64) << 32) | (~lane).to(tl.uint32).to(tl.int64)
    word = tl.where(valid, word, LOWEST + (0xFFFF - lane).to(tl.int64))
    order = (~tl.sort(word, descending=True)).to(tl.int32) & 0xFFFF
    return order, tl.gather(order, rank, 0)


@triton.jit
def _take(fields, source):
    """Returns each field's entries at the lanes `source`."""
    taken = ()
    for j in tl.static_range(len(fields)):
        taken = taken + (tl.gather(fields[j], source, 0),)
    return taken


@triton.jit
def _like(fields, others):
    """Returns the fields in the dtypes of `others`."""
    cast = ()
    for j in tl.static_range(len(fields)):
        cast = cast + (fields[j].to(others[j].dtype),)
    return cast


@triton.jit
def _where(mask, fields, others):
    """Returns the fields where `mask` is set, elsewhere the others."""
    merged = ()
    for j in tl.static_range(len(fields)):
        merged = merged + (tl.where(mask, fields[j], others[j]),)
    return merged


@triton.jit
def _expand(
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
        if SPLIT:
            key = fold_device(fold_device(key, _FORK), action)
        step_key = fold_device(key, level)
    fresh, _, terminated, truncated, solved = transition(
        shared, context + lane * 0, lane * 0 + level, step_key, state, action + FIRST, PARAMS
    )
    flags = terminated.to(tl.int32) * _TERMINATED + truncated.to(tl.int32) * _TRUNCATED
    return _like(fresh, state), flags + solved.to(tl.int32) * _SOLVED, key


@triton.jit
def _settle(
    word,
    flags,
    is_open,
    source,
    valid,
    place,
    row,
    level,
    lane,
    rank,
    KEPT: tl.constexpr,
    LANES: tl.constexpr,
):
    """Records a level's choices and returns the words of the branches that it kept.

    Args:
        word: The words of the branches that the candidates come from.
        flags: The flags of fresh children.
        is_open: Whether a candidate is a fresh child, not a branch carried over.
        source: The lane that each branch comes from.
        valid: Candidates that competed.
        place: Each candidate's rank, or the candidate of each rank where LANES is not a warp.
        row: Where the choices go; nothing is written at level 0.
        level: How often was expanded.
    """
    choice = tl.where(valid, tl.where(is_open, lane, -2 - rank), _EMPTY)
    kept = tl.where(level > 0, KEPT, 0)
    if LANES == _WARP:
        tl.store(row + place, choice, mask=place < kept)
    else:
        tl.store(row + lane, tl.gather(choice, place, 0), mask=lane < kept)
    # Each rank is some candidate's; a place is empty where that one did not compete.
    word = tl.where(valid, tl.where(is_open, flags + _NEWBORN, word), _EMPTY)
    word = tl.gather(word, source, 0)
    born = ((level * KEPT + rank) << _BIRTH) + (word & _FLAGS)
    return tl.where(word >= _NEWBORN, born, word)


@triton.jit
def _exact_order(
    score, valid, wins, lane, rank, KEPT: tl.constexpr, LANES: tl.constexpr, STOP: tl.constexpr
):
    """Who competes where some may solve the root, their order, and the lane of each rank."""
    if STOP:
        valid &= wins | (tl.max(wins.to(tl.int32), 0) == 0)
    if LANES == _WARP:
        place = _ranks_of_any(score, valid, lane)
        source = _lane_of_rank(place, lane, rank, KEPT)
    else:
        place, source = _order_by_sort(score, valid, lane, rank, LANES)
    return valid, place, source


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
    CLOSED: tl.constexpr = _TERMINATED | _TRUNCATED | (_SOLVED if STOP else 0)
    inside = lane < KEPT * FANOUT
    word = tl.where(rank == 0, 0, _EMPTY)
    flags = lane * 0
    is_open = lane < 0
    valid = rank == 0
    wins = lane < 0
    odd = lane * 0
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
        fresh, flags_now, key_now = _expand(
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
        word = _settle(
            word, flags, is_open, source, valid, place, row, level, lane, rank, KEPT, LANES
        )
        if GUESS:
            wrong = tl.max(odd, 0)
        row += KEPT
        is_open = inside & (word >= 0) & ((word & CLOSED) == 0)
        open_now = tl.sum((is_open & (action == 0)).to(tl.int32), 0)
        total += open_now
        valid = inside & (word >= 0) & (is_open | (action == 0))
        bias = tl.where(valid, _WARP - 1 - lane, -0x40000000 - lane)

        flags = flags_now
        before = _where(is_open, fresh, state)
        if USES_KEY:
            before_key = tl.where(is_open, key_now, key)
        score = before[SCORE]
        wins = is_open & ((flags & _SOLVED) != 0) & STOP
        if GUESS:
            odd = (wins | (score >= _NARROW) | (score < -_NARROW)).to(tl.int32)
            place = _ranks_of_narrow(score, bias, lane)
            source = _lane_of_rank(place, lane, rank, KEPT)
        else:
            valid, place, source = _exact_order(score, valid, wins, lane, rank, KEPT, LANES, STOP)
        # What stands in an empty place is not looked at, but a transition may compute on it.
        state = _take(before, source)
        if USES_KEY:
            key = tl.gather(before_key, source, 0)
        level += 1
    if GUESS:
        if tl.max(odd, 0) > 0:
            valid, place, source = _exact_order(
                before[SCORE], valid, wins, lane, rank, KEPT, LANES, STOP
            )
            state = _take(before, source)
            if USES_KEY:
                key = tl.gather(before_key, source, 0)
    word = _settle(word, flags, is_open, source, valid, place, row, level, lane, rank, KEPT, LANES)
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
        LANES == _WARP,
    )
    if LANES == _WARP:
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
    stays = tl.where(word >= 0, -2 - rank, _EMPTY)
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
