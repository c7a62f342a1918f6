"""Pictures of branchrt/Blackjack-v0, drawn alike for the batched environment and its oracle."""

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.envs.deep_tree_render import (
    DONE,
    FONT,
    FRAME_SHAPE,
    GROOVE,
    HERE,
    INK,
    LOSS,
    PAPER,
    Colour,
)

__all__ = ["draw", "text"]

FELT: Colour = (220, 230, 222)
CARD_HEIGHT, CARD_WIDTH = 64, 46
LEFT, GAP = 40, 14
DEALER_TOP, PLAYER_TOP = 24, 112
SUM_LEFT = 200
BIG, SMALL = 4, 2
BAR = slice(190, 196)

RESULTS = {-2: "lost", 0: "drawn", 2: "won", 3: "won with a natural"}


def draw(
    total: int, *, usable: bool, face_up: int, dealer: int | None, score: int
) -> NDArray[np.uint8]:
    """Draws a hand: the dealer's cards above, the player's sum below.

    Args:
        total: The player's sum.
        usable: Whether an ace in it counts as 11.
        face_up: The dealer's visible card, 1 … 10.
        dealer: The dealer's sum once the hand is over, else None.
        score: Twice the reward so far; colours the line at the bottom.

    Returns:
        `[200, 320, 3] uint8`, in new memory.
    """
    frame = np.empty(FRAME_SHAPE, np.uint8)
    frame[:] = FELT
    _card(frame, LEFT, DEALER_TOP, _rank(face_up))
    _card(frame, LEFT + CARD_WIDTH + GAP, DEALER_TOP, None)
    if dealer is not None:
        _write(frame, str(dealer), SUM_LEFT, DEALER_TOP + 18, 2 * BIG)
    if usable:
        _card(frame, LEFT, PLAYER_TOP, "A")
    _write(frame, str(total), SUM_LEFT, PLAYER_TOP + 12, 2 * BIG)
    frame[96:98, LEFT : FRAME_SHAPE[1] - LEFT] = GROOVE
    if dealer is None:
        colour: Colour = HERE
    else:
        colour = LOSS if score < 0 else DONE if score > 0 else GROOVE
    frame[BAR, LEFT : FRAME_SHAPE[1] - LEFT] = colour
    return frame


def text(total: int, *, usable: bool, face_up: int, dealer: int | None, score: int) -> str:
    """Writes a hand in two lines, and a third when it is over; the arguments are `draw`'s."""
    shown = "an ace" if face_up == 1 else f"a {face_up}"
    lines = [
        f"dealer shows {shown}" + ("" if dealer is None else f", has {dealer}"),
        f"player has {total}" + (" with a usable ace" if usable else ""),
    ]
    return "\n".join([*lines, RESULTS[score]] if dealer is not None else lines)


def _rank(card: int) -> str:
    return "A" if card == 1 else str(card)


def _card(frame: NDArray[np.uint8], x: int, y: int, rank: str | None) -> None:
    """Draws a card with its upper left corner at `x`, `y`; face down if it has no rank."""
    frame[y : y + CARD_HEIGHT, x : x + CARD_WIDTH] = INK
    inside = frame[y + 2 : y + CARD_HEIGHT - 2, x + 2 : x + CARD_WIDTH - 2]
    inside[:] = PAPER
    if rank is None:
        rows, columns = np.indices(inside.shape[:2])
        inside[(rows // 4 + columns // 4) % 2 == 0] = GROOVE
    else:
        width = len(rank) * 4 * BIG - BIG
        _write(frame, rank, x + (CARD_WIDTH - width) // 2, y + (CARD_HEIGHT - 5 * BIG) // 2, BIG)


def _write(frame: NDArray[np.uint8], line: str, x: int, y: int, scale: int) -> None:
    """Writes digits and letters with the upper left corner at `x`, `y`, `scale` pixels a dot."""
    for char in line:
        dots = FONT[char].repeat(scale // SMALL, 0).repeat(scale // SMALL, 1)
        height, width = dots.shape
        frame[y : y + height, x : x + width][dots] = INK
        x += 4 * scale
