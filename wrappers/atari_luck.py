"""The random sources inside an ALE state: read to find the sticky action, written for new luck.

A serialised state of ale-py holds two Mersenne Twisters as text, 624 words and the position each:
the console's, then the one that sticky actions draw from. That one draws two words at each `act`,
one for either player; the action is taken where the word is large enough, else the one before goes
on. Which one goes on is not in the state, but the words that decided it are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from branchrt_gym.wrappers.kinds import Refusal

__all__ = ["taken", "with_luck", "with_next_taken"]

TWISTER = re.compile(rb"(?:\d+ ){624}\d+")
WORDS_PER_ACT = 2


def _temper(word: int) -> int:
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return (word ^ word >> 18) & 0xFFFFFFFF


def _untemper(draw: int) -> int:
    """Finds the word that `_temper` makes a draw from: it is linear, bit by bit."""
    columns = [_temper(1 << bit) for bit in range(32)]
    word = 0
    rows = [(columns[bit], 1 << bit) for bit in range(32)]
    for bit in range(32):
        mask = 1 << bit
        pivot = next(row for row in rows if row[0] & mask)
        rows.remove(pivot)
        rows = [(a ^ pivot[0], b ^ pivot[1]) if a & mask else (a, b) for a, b in rows]
        if draw & mask:
            draw ^= pivot[0]
            word ^= pivot[1]
    return word


_LARGEST = _untemper(0xFFFFFFFF)


def _twisters(raw: bytes) -> list[re.Match[bytes]]:
    found = list(TWISTER.finditer(raw))
    if len(found) != 2:
        raise Refusal(
            f"is an emulator whose saved state holds {len(found)} random sources as text; expected "
            "2, as ale-py 0.12 writes them"
        )
    return found


def _replaced(raw: bytes, found: re.Match[bytes], words: Sequence[int], position: int) -> bytes:
    """Writes a source over another one, in the same number of bytes."""
    room = found.end() - found.start()
    texts = [str(word) for word in words]
    over = sum(map(len, texts)) + 624 + len(str(position)) - room
    for i in range(623, 0, -1):  # the last digits of the last words
        if over <= 0:
            break
        cut = min(over, len(texts[i]) - 1)
        texts[i] = texts[i][: len(texts[i]) - cut]
        over -= cut
    text = " ".join([*texts, str(position)]).encode().ljust(room)
    return raw[: found.start()] + text + raw[found.end() :]


def _state(kind: Any, raw: bytes) -> Any:
    state = kind.__new__(kind)
    state.__setstate__(raw)
    return state


def taken(state: Any, acts: Sequence[Any], probability: float) -> Any:
    """Returns which of the last acts is in force, the newest first; None if none of them was taken.

    Args:
        state: The state after them, with its random sources.
        acts: The acts, the newest first.
        probability: Of an action to be repeated.
    """
    words = _twisters(state.__getstate__())[1].group().split()
    position = int(words[624])
    for act in acts:
        position -= WORDS_PER_ACT
        # The words of the generation before are gone; almost always this act was taken.
        if position < 0 or _temper(int(words[position])) / 0xFFFFFFFF >= probability:
            return act
    return None


def with_next_taken(state: Any) -> Any:
    """Returns a state in which the next action is taken for certain."""
    raw = state.__getstate__()
    return _state(type(state), _replaced(raw, _twisters(raw)[1], [_LARGEST] * 2 + [0] * 622, 0))


def with_luck(state: Any, seeds: Sequence[int]) -> Any:
    """Returns a state with both random sources seeded anew."""
    raw = state.__getstate__()
    for found, seed in zip(_twisters(raw), seeds, strict=True):
        words = np.random.MT19937(seed).state["state"]["key"].tolist()
        raw = _replaced(raw, found, words, 624)
    return _state(type(state), raw)
