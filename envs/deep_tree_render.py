"""Pictures of branchrt/DeepTree-v0, drawn alike for the batched environment and its oracle."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["FRAME_SHAPE", "draw", "text"]

Colour = tuple[int, int, int]

FRAME_SHAPE = (200, 320, 3)
PAPER: Colour = (250, 249, 246)
GROOVE: Colour = (228, 226, 220)
INK: Colour = (62, 66, 74)
GAIN: Colour = (138, 178, 184)
LOSS: Colour = (218, 170, 148)
HERE: Colour = (38, 92, 140)
DONE: Colour = (96, 154, 100)

LEFT, RIGHT = 16, 304
BAR_PITCH, BAR_WIDTH = 5, 4
BARS_EACH_SIDE = 28
BAR_HEIGHT = 42
AXIS = 96

# 3 x 5 pixels a glyph: five rows from the top, each an octal digit.
GLYPHS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711",
    "5": "74717", "6": "74757", "7": "71111", "8": "75757", "9": "75717",
    "A": "25755", "C": "34443", "D": "65556", "E": "74647", "G": "34553", "H": "55755",
    "O": "25552", "P": "65644", "R": "65655", "S": "34216", "T": "72222",
    "-": "00700", "/": "11244", " ": "00000",
}  # fmt: skip
GLYPH_SCALE = 2
GLYPH_PITCH = 4 * GLYPH_SCALE
FONT = {
    char: np.kron(
        [[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in rows],
        np.ones((GLYPH_SCALE, GLYPH_SCALE), int),
    ).astype(bool)
    for char, rows in GLYPHS.items()
}


def draw(
    context_row: NDArray[np.int16],
    position: int,
    score: int,
    depth: int,
    *,
    depth_limit: int,
    value_range: int,
    target: int,
) -> NDArray[np.uint8]:
    """Draws a branch: its depth, the context around its position, its score against the target.

    Args:
        context_row: `[W] int16`, the entries of the branch's context.
        position: Where the branch is in the context, in `0 .. W - 1`.
        score: Sum of the entries it has collected.
        depth: Steps it has taken, in `0 .. depth_limit`.
        depth_limit: Steps of an episode.
        value_range: Largest absolute value of an entry.
        target: Score that solves the root.

    Returns:
        `[200, 320, 3] uint8`, in new memory.

    Cost: about 0.5 ms, whatever the width of the context.
    """
    frame = np.empty(FRAME_SHAPE, np.uint8)
    frame[:] = PAPER

    _write(frame, f"DEPTH {depth}/{depth_limit}", LEFT, 14)
    frame[30:36, LEFT:RIGHT] = GROOVE
    frame[30:36, LEFT : LEFT + (RIGHT - LEFT) * depth // depth_limit] = HERE

    _draw_entries(frame, context_row, position, value_range)
    place = str(position)
    _write(frame, place, (LEFT + RIGHT - len(place) * GLYPH_PITCH) // 2 + 1, 144)

    goal = f"TARGET {target}"
    _write(frame, f"SCORE {score}", LEFT, 164)
    _write(frame, goal, RIGHT - len(goal) * GLYPH_PITCH + GLYPH_SCALE, 164)
    zero, here, there = (
        LEFT + (RIGHT - LEFT) * (amount + value_range * depth_limit)
        // (2 * value_range * depth_limit)
        for amount in (0, score, target)
    )  # fmt: skip
    frame[180:186, LEFT:RIGHT] = GROOVE
    frame[180:186, min(zero, here) : max(zero, here)] = DONE if score >= target else HERE
    frame[178:188, zero] = GROOVE
    frame[178:188, min(there, RIGHT - 1)] = INK
    return frame


def text(
    context_row: NDArray[np.int16],
    position: int,
    score: int,
    depth: int,
    *,
    depth_limit: int,
    value_range: int,
    target: int,
) -> str:
    """Writes a branch in three lines; the arguments are those of `draw`.

    The third line has the entries around the position, the one at it in brackets; nothing is
    written for places outside the context.
    """
    filled = 32 * depth // depth_limit
    cells = []
    for place in range(max(position - 4, 0), min(position + 5, len(context_row))):
        entry = str(int(context_row[place]))
        cells.append((f"[{entry}]" if place == position else f"{entry} ").rjust(8))
    return "\n".join(
        (
            f"depth {depth}/{depth_limit} |{'#' * filled}{'.' * (32 - filled)}|",
            f"score {score}, target {target}{', reached' if score >= target else ''}",
            f"at {position}:{''.join(cells)}",
        )
    )


def _draw_entries(
    frame: NDArray[np.uint8], context_row: NDArray[np.int16], position: int, value_range: int
) -> None:
    """Draws a bar per entry, up for a gain and down for a loss, the position in the middle."""
    centre = (LEFT + RIGHT - BAR_WIDTH) // 2
    first = max(position - BARS_EACH_SIDE, 0)
    entries = context_row[first : position + BARS_EACH_SIDE + 1].tolist()
    for place, entry in enumerate(entries, first):
        x = centre + (place - position) * BAR_PITCH
        height = -(-abs(entry) * BAR_HEIGHT // value_range)
        if entry > 0:
            colour, rows = GAIN, slice(AXIS - height, AXIS)
        else:
            colour, rows = LOSS, slice(AXIS + 1, AXIS + 1 + height)
        frame[rows, x : x + BAR_WIDTH] = HERE if place == position else colour
        frame[AXIS, x - 1 : x + BAR_WIDTH] = GROOVE
    frame[AXIS, centre : centre + BAR_WIDTH] = INK


def _write(frame: NDArray[np.uint8], line: str, x: int, y: int) -> None:
    """Writes a line of `GLYPHS` with its upper left corner at `x`, `y`."""
    for char in line:
        glyph = FONT[char]
        height, width = glyph.shape
        frame[y : y + height, x : x + width][glyph] = INK
        x += GLYPH_PITCH
