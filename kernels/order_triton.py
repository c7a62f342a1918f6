"""What searches share on the device: the order of candidates, and what is written of a level.

The candidates of a root are lanes of one program: lane `i` is the child by action `i % FANOUT` of
the branch of rank `i // FANOUT`, or that branch itself if it is carried over.
"""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

__all__ = [
    "EMPTY",
    "NARROW",
    "SOLVED",
    "TERMINATED",
    "TRUNCATED",
    "WARP",
    "exact_order",
    "lane_of_rank",
    "like",
    "ranks_of_narrow",
    "settle",
    "take",
    "where",
]

# A branch's word: its flags, and above them its birth, `level * KEPT + rank`.
TERMINATED = tl.constexpr(1)
TRUNCATED = tl.constexpr(2)
SOLVED = tl.constexpr(4)
_FLAGS = tl.constexpr(7)  # all of them
_BIRTH = tl.constexpr(3)  # the bits below
_NEWBORN = tl.constexpr(1 << 30)  # instead of a birth, until its rank is known
EMPTY = tl.constexpr(-1)
WARP = tl.constexpr(32)
NARROW = tl.constexpr(1 << 23)  # below it, a score and a lane's index fit in 29 bits
_INDEX_BITS = tl.constexpr(5)  # of a lane of a warp
_INDICES = tl.constexpr(6)  # of those in one 31-bit word


@triton.jit
def _count_bits(word):
    """How many of the 32 bits of each word are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return (((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24


@triton.jit
def ranks_of_narrow(score, bias, lane):
    """Ranks 32 candidates with scores below `NARROW`; every rank is taken once.

    Every lane counts who is ahead of it among all others, whose words come round by shuffles. The
    `bias` makes words unique and puts those that do not compete last.
    """
    word = score.to(tl.int32) * WARP + bias
    even = tl.zeros_like(lane)
    odd = tl.zeros_like(lane)
    for turn in tl.static_range(1, WARP):
        rival = tl.gather(word, (lane + turn) & (WARP - 1), 0)
        # The sign of the difference, which 32 bits hold; two chains of sums are sooner done.
        ahead = ((word - rival).to(tl.uint32, bitcast=True) >> 31).to(tl.int32, bitcast=True)
        if turn % 2 == 0:
            even += ahead
        else:
            odd += ahead
    return even + odd


@triton.jit
def _ranks_of_any(score, valid, lane):
    """As `ranks_of_narrow`, for any scores."""
    LOWEST: tl.constexpr = -(2 ** (score.dtype.primitive_bitwidth - 1))
    score = tl.where(valid, score, LOWEST)
    place = tl.zeros_like(lane)
    for turn in tl.static_range(1, WARP):
        other = (lane + turn) & (WARP - 1)
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
def lane_of_rank(place, lane, rank, KEPT: tl.constexpr):
    """Inverts `place` for ranks below KEPT: sums pack the lanes of six ranks into a word each."""
    source = tl.zeros_like(lane)
    for first in tl.static_range(0, KEPT, _INDICES):
        shift = (place - first) * _INDEX_BITS
        here = (place >= first) & (place < first + _INDICES)
        packed = tl.sum(tl.where(here, lane << (shift & 31), 0), 0)
        wanted = ((rank - first) * _INDEX_BITS) & 31
        mine = (rank >= first) & (rank < first + _INDICES)
        source = tl.where(mine, (packed >> wanted) & (WARP - 1), source)
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
def take(fields, source):
    """Returns each field's entries at the lanes `source`."""
    taken = ()
    for j in tl.static_range(len(fields)):
        taken = taken + (tl.gather(fields[j], source, 0),)
    return taken


@triton.jit
def like(fields, others):
    """Returns the fields in the dtypes of `others`."""
    cast = ()
    for j in tl.static_range(len(fields)):
        cast = cast + (fields[j].to(others[j].dtype),)
    return cast


@triton.jit
def where(mask, fields, others):
    """Returns the fields where `mask` is set, elsewhere the others."""
    merged = ()
    for j in tl.static_range(len(fields)):
        merged = merged + (tl.where(mask, fields[j], others[j]),)
    return merged


@triton.jit
def settle(
    word,
    flags,
    is_open,
    choice,
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
        choice: What to record of each candidate.
        source: The lane that each branch comes from.
        valid: Candidates that competed.
        place: Each candidate's rank, or the candidate of each rank where LANES is not a warp.
        row: Where the choices go; nothing is written at level 0.
        level: How often was expanded.
    """
    choice = tl.where(valid, choice, EMPTY)
    kept = tl.where(level > 0, KEPT, 0)
    if LANES == WARP:
        tl.store(row + place, choice, mask=place < kept)
    else:
        tl.store(row + lane, tl.gather(choice, place, 0), mask=lane < kept)
    # Each rank is some candidate's; a place is empty where that one did not compete.
    word = tl.where(valid, tl.where(is_open, flags + _NEWBORN, word), EMPTY)
    word = tl.gather(word, source, 0)
    born = ((level * KEPT + rank) << _BIRTH) + (word & _FLAGS)
    return tl.where(word >= _NEWBORN, born, word)


@triton.jit
def exact_order(
    score, valid, wins, lane, rank, KEPT: tl.constexpr, LANES: tl.constexpr, STOP: tl.constexpr
):
    """Who competes where some may solve the root, their order, and the lane of each rank."""
    if STOP:
        valid &= wins | (tl.max(wins.to(tl.int32), 0) == 0)
    if LANES == WARP:
        place = _ranks_of_any(score, valid, lane)
        source = lane_of_rank(place, lane, rank, KEPT)
    else:
        place, source = _order_by_sort(score, valid, lane, rank, LANES)
    return valid, place, source
