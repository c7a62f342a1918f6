"""Pictures of branchrt/SharedCounter-v0, drawn alike for the batched environment and its oracle."""

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.envs.deep_tree_render import (
    DONE,
    FONT,
    FRAME_SHAPE,
    GLYPH_PITCH,
    GROOVE,
    HERE,
    INK,
    PAPER,
)

__all__ = ["draw", "text"]

LEFT, RIGHT = 16, 304
GOALS = 8
ROW_TOP, ROW_HEIGHT = 76, 56
BIN_WIDTH = (RIGHT - LEFT) // GOALS


def draw(
    counter: int, score: int, depth: int, *, goal: int, target: int, depth_limit: int
) -> NDArray[np.uint8]:
    """Draws a branch: its depth, its counter's place in eight bins, its score over the target.

    Args:
        counter: In `0 .. 2**32 - 1`.
        score: Steps that scored.
        depth: Steps taken, in `0 .. depth_limit`.
        goal: The bin that scores, `0 .. 7`.
        target: Score that solves the root.
        depth_limit: Steps of an episode.

    Returns:
        `[200, 320, 3] uint8`, in new memory.
    """
    frame = np.empty(FRAME_SHAPE, np.uint8)
    frame[:] = PAPER
    _write(frame, f"DEPTH {depth}/{depth_limit}", LEFT, 14)
    _fill(frame, 30, depth, depth_limit, HERE)

    rows = slice(ROW_TOP, ROW_TOP + ROW_HEIGHT)
    for place in range(GOALS):
        begin = LEFT + place * BIN_WIDTH
        frame[rows, begin : begin + BIN_WIDTH - 2] = DONE if place == goal else GROOVE
    at = LEFT + (counter * GOALS * BIN_WIDTH >> 32)
    frame[ROW_TOP - 8 : ROW_TOP + ROW_HEIGHT + 8, at : at + 3] = INK

    _write(frame, f"SCORE {score}/{target}", LEFT, 164)
    _fill(frame, 180, min(score, target), target, DONE if score >= target else HERE)
    return frame


def text(counter: int, score: int, depth: int, *, goal: int, target: int, depth_limit: int) -> str:
    """Writes a branch in three lines; the arguments are those of `draw`."""
    filled = 32 * depth // depth_limit
    bins = ["." if place != goal else "o" for place in range(GOALS)]
    bins[counter >> 29] = "#" if counter >> 29 == goal else "x"
    return "\n".join(
        (
            f"depth {depth}/{depth_limit} |{'#' * filled}{'.' * (32 - filled)}|",
            f"counter {counter:08x} [{''.join(bins)}]",
            f"score {score}, target {target}{', reached' if score >= target else ''}",
        )
    )


def _fill(
    frame: NDArray[np.uint8], top: int, part: int, whole: int, colour: tuple[int, int, int]
) -> None:
    """Draws a bar, `part / whole` of it in colour."""
    frame[top : top + 6, LEFT:RIGHT] = GROOVE
    frame[top : top + 6, LEFT : LEFT + (RIGHT - LEFT) * part // whole] = colour


def _write(frame: NDArray[np.uint8], line: str, x: int, y: int) -> None:
    for char in line:
        dots = FONT[char]
        height, width = dots.shape
        frame[y : y + height, x : x + width][dots] = INK
        x += GLYPH_PITCH
