"""Decisions of a random program, drawn from bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


class Word:
    """Decisions drawn from a few bytes; zeros, to which they shrink, are the plainest ones."""

    def __init__(self, given: bytes) -> None:
        self.rest = int.from_bytes(given, "little")

    def take(self, n: int) -> int:
        self.rest, drawn = divmod(self.rest, n)
        return drawn

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[self.take(len(choices))]

    def few(self, choices: Sequence[Any], most: int) -> list[Any]:
        """Up to `most` of the choices, in any order, repetition allowed."""
        return [self.one(choices) for _ in range(self.take(most + 1))] if choices else []

    def some(self, choices: Sequence[Any]) -> list[Any]:
        """A subset, in order."""
        return [choice for choice in choices if self.take(2)]

    def shaped(self, values: list[Any]) -> Any:
        """The same values as one of the types that callers use."""
        kind = self.take(3)
        if kind == 1:
            return torch.tensor(values, dtype=None if values else torch.int64)
        return np.array(values, dtype=None if values else np.int32) if kind else values
