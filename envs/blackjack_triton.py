"""Blackjack's rules as Triton device functions, for fused searches and steps.

The tables of `blackjack` are worked out here instead, card by card: the next digit of a shoe in
base 13**3 is its next three in base 13.
"""
# Triton ships no types; what runs on the device is not typed.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from branchrt_gym.kernels.keys_triton import fold_device

__all__ = ["initial", "observation", "transition"]

# As in `blackjack`.
_FACES = tl.constexpr(13)
_FRACTION = tl.constexpr(51)
_LOW_BITS = tl.constexpr((1 << 51) - 1)
_STICK = tl.constexpr(0)
_DEALER_STANDS = tl.constexpr(17)
_DEALER_CARDS = tl.constexpr(10)  # the most that a dealer draws
_SUM = tl.constexpr(31)
_USABLE = tl.constexpr(32)
_NATURAL = tl.constexpr(64)


@triton.jit
def _shoe(key):
    return fold_device(key, 0) & _LOW_BITS


@triton.jit
def _draw(shoe):
    """Returns the next card, `0 … 12`, and the shoe without it."""
    cards = shoe * _FACES
    return (cards >> _FRACTION).to(tl.int32), cards & _LOW_BITS


@triton.jit
def _with_card(hand, face):
    """Returns hands after one more card, an ace counting as 11 where that keeps it at 21."""
    usable = hand & _USABLE
    low = (hand & _SUM) - tl.where(usable != 0, 10, 0) + tl.minimum(face + 1, 10)
    eleven = ((usable != 0) | (face == 0)) & (low <= 11)
    return tl.where(eleven, (low + 10) | _USABLE, low & _SUM)


@triton.jit
def _two_cards(shoe):
    """Returns a hand of two cards, the first of these, and the shoe without them."""
    first, shoe = _draw(shoe)
    second, shoe = _draw(shoe)
    hand = _with_card(_with_card(first * 0, first), second)
    return hand | tl.where((hand & _SUM) == 21, _NATURAL, 0), first, shoe


@triton.jit
def _play_dealer(hand, shoe):
    """Returns the dealers' hands after they have drawn; an ace among two cards is a usable one."""
    ace = (hand & _USABLE) != 0
    low = (hand & _SUM) - tl.where(ace, 10, 0)  # every ace as 1
    for _ in tl.static_range(_DEALER_CARDS):
        face, shoe = _draw(shoe)
        draws = low + tl.where(ace & (low <= 11), 10, 0) < _DEALER_STANDS
        low = tl.where(draws, low + tl.minimum(face + 1, 10), low)
        ace = ace | (draws & (face == 0))
    drawn = tl.where(ace & (low <= 11), (low + 10) | _USABLE, low & _SUM)
    return tl.where((hand & _SUM) < _DEALER_STANDS, drawn, hand)


@triton.jit
def initial(shared, context, key, params: tl.constexpr):
    """`Blackjack.initial` for a block of roots; see `BranchEnv.initial_kernel`."""
    player, _, shoe = _two_cards(_shoe(key))
    dealer, first, _ = _two_cards(shoe)
    return player, dealer, tl.minimum(first + 1, 10), first < 0, first * 0


@triton.jit
def transition(shared, context, depth, key, state, action, params: tl.constexpr):
    """`Blackjack.transition` for a block of branches; see `BranchEnv.transition_kernel`."""
    natural: tl.constexpr = params[0]
    sab: tl.constexpr = params[1]
    player = state[0].to(tl.int32)
    dealer = state[1].to(tl.int32)
    sticks = action == _STICK
    shoe = _shoe(key)
    face, _ = _draw(shoe)
    player = tl.where(sticks, player, _with_card(player, face))
    dealer = tl.where(sticks, _play_dealer(dealer, shoe), dealer)

    total = player & _SUM
    theirs = dealer & _SUM
    over = sticks | (total > 21)
    theirs = tl.where(theirs > 21, 0, theirs)
    score = tl.where(total > theirs, 2, tl.where(total < theirs, -2, 0))
    score = tl.where(total > 21, -2, score)
    if sab:
        wins = ((player & _NATURAL) != 0) & ((dealer & _NATURAL) == 0)
        score = tl.where(wins, 2, score)
    elif natural:
        score = tl.where(((player & _NATURAL) != 0) & (score == 2), 3, score)
    score = tl.where(over, score, 0)
    fresh = (player, dealer, state[2], over, score)
    return fresh, score.to(tl.float32) * 0.5, over, over & False, score > 0


@triton.jit
def observation(shared, context, depth, state, params: tl.constexpr):
    """`Blackjack.observation` for a block of branches; see `BranchEnv.observation_kernel`."""
    player = state[0].to(tl.int32)
    return player & _SUM, state[2], (player & _USABLE) >> 5
