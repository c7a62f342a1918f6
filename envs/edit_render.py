"""Pictures of branchrt/Edit-v0, drawn alike for the batched environment and its oracle."""

from collections.abc import Iterable, Sequence

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
    LOSS,
    PAPER,
    Colour,
)

__all__ = ["diff", "draw"]

LEFT, RIGHT = 16, 304
STRIP = slice(56, 84)
CELLS, CELL = 48, 6  # bytes around the cursor, a cell each
TEXT_TOP, TARGET_TOP, CELL_HEIGHT = 104, 130, 24


def diff(
    text: NDArray[np.uint8],
    target: NDArray[np.uint8],
    positions: Iterable[int],
    lengths: Iterable[int],
    *,
    cursor: int,
    score: int,
    distance: int,
    depth: int,
    depth_limit: int,
) -> str:
    """Writes the spans in which the text differs from the target, as a unified diff does.

    Args:
        text: `[W] uint8`, the branch's text.
        target: `[W] uint8`.
        positions: Where the spans begin.
        lengths: How many bytes they have.
        cursor: Where the last edit began.
        score: By how much the distance has fallen.
        distance: Bytes that differ.
        depth: Steps taken, in `0 .. depth_limit`.
        depth_limit: Steps of an episode.

    Returns:
        Two lines about the branch, the two lines that head a diff, and for each span that differs
        its position and length, what the text has there (`-`) and what the target has (`+`). Bytes
        that are not printable are written as full stops.
    """
    filled = 32 * depth // depth_limit
    lines = [
        f"depth {depth}/{depth_limit} |{'#' * filled}{'.' * (32 - filled)}|",
        f"distance {distance} of {score + distance}, cursor {cursor}",
        "--- text",
        "+++ target",
    ]
    for begin, length in zip(positions, lengths, strict=True):
        old, new = text[begin : begin + length], target[begin : begin + length]
        differ = np.count_nonzero(old != new)
        if differ:
            lines += [f"@@ {begin},{length} @@ {differ} differ", f"-{_line(old)}", f"+{_line(new)}"]
    return "\n".join(lines)


def draw(
    text: NDArray[np.uint8],
    target: NDArray[np.uint8],
    positions: Sequence[int] | NDArray[np.int32],
    lengths: Sequence[int] | NDArray[np.int32],
    *,
    cursor: int,
    score: int,
    distance: int,
    depth: int,
    depth_limit: int,
) -> NDArray[np.uint8]:
    """Draws a branch; the arguments are those of `diff`.

    From above: the depth; the document from left to right with its spans, green where they are as
    the target's, and the cursor; the bytes around the cursor, in the text and below in the target,
    darker for higher ones and red where they differ; the score.

    Returns:
        `[200, 320, 3] uint8`, in new memory.
    """
    width = len(text)
    frame = np.empty(FRAME_SHAPE, np.uint8)
    frame[:] = PAPER
    _write(frame, f"DEPTH {depth}/{depth_limit}", LEFT, 14)
    _fill(frame, 30, depth, depth_limit, HERE)

    frame[STRIP, LEFT:RIGHT] = GROOVE
    for colour, differs in ((DONE, False), (LOSS, True)):  # a span that differs is never hidden
        for begin, length in zip(positions, lengths, strict=True):
            begin, end = int(begin), int(begin) + int(length)
            if np.array_equal(text[begin:end], target[begin:end]) is not differs:
                left = LEFT + (RIGHT - LEFT) * begin // width
                frame[STRIP, left : max(left + 2, LEFT + (RIGHT - LEFT) * end // width)] = colour
    at = LEFT + (RIGHT - LEFT) * cursor // width
    frame[STRIP.start - 6 : STRIP.stop + 6, at : at + 2] = INK

    first = max(min(cursor - CELLS // 2, width - CELLS), 0)
    for cell, place in enumerate(range(first, min(first + CELLS, width))):
        x = slice(LEFT + cell * CELL, LEFT + (cell + 1) * CELL - 1)
        for top, letters in ((TEXT_TOP, text), (TARGET_TOP, target)):
            shade = 250 - int(letters[place]) * 3 // 5
            red = top == TEXT_TOP and text[place] != target[place]
            frame[top : top + CELL_HEIGHT, x] = LOSS if red else (shade, shade, shade)

    _write(frame, f"SCORE {score}/{score + distance}", LEFT, 164)
    _fill(frame, 180, score, max(score + distance, 1), HERE if distance else DONE)
    return frame


def _line(letters: NDArray[np.uint8]) -> str:
    return "".join(chr(letter) if 32 <= letter < 127 else "." for letter in letters.tolist())


def _fill(frame: NDArray[np.uint8], top: int, part: int, whole: int, colour: Colour) -> None:
    """Draws a bar, `part / whole` of it in colour."""
    frame[top : top + 6, LEFT:RIGHT] = GROOVE
    frame[top : top + 6, LEFT : LEFT + (RIGHT - LEFT) * part // whole] = colour


def _write(frame: NDArray[np.uint8], line: str, x: int, y: int) -> None:
    for char in line:
        dots = FONT[char]
        height, width = dots.shape
        frame[y : y + height, x : x + width][dots] = INK
        x += GLYPH_PITCH
