"""What an evaluation has spent, and the attempt at which a budget is used up."""

from __future__ import annotations

from typing import Any, Final

from branchrt_gym.evaluation.arrays import Arrays
from branchrt_gym.evaluation.attempts import UNITS, Verdicts

__all__ = ["NEVER", "Ledger"]

NEVER: Final = 1 << 62  # a budget that nothing reaches


class Ledger:
    """Attempts, cost and seconds, counted in whole units, beside their budgets.

    Attributes:
        attempts: Verdicts that came.
        cost: In units, see `UNITS`. seconds: likewise.
    """

    def __init__(
        self,
        arrays: Arrays,
        max_attempts: int | None,
        max_cost: float | None,
        max_seconds: float | None,
    ) -> None:
        """Begins with nothing spent."""
        self.x = arrays
        self.max_attempts = NEVER if max_attempts is None else max_attempts
        self.limits = tuple(
            NEVER if each is None else round(each * UNITS) for each in (max_cost, max_seconds)
        )
        self.attempts = 0
        self.cost: Any = 0
        self.seconds: Any = 0

    def columns(self, verdicts: Verdicts) -> tuple[Any, Any]:
        """Returns cost and seconds of verdicts in units, None for zeros."""
        cost, seconds = verdicts.cost, verdicts.seconds
        return (
            None if cost is None else self.x.units(self.x.of(cost, "float64"), UNITS),
            None if seconds is None else self.x.units(self.x.of(seconds, "float64"), UNITS),
        )

    def used_up(self, counted: Any, spent: tuple[Any, Any]) -> tuple[int, str] | None:
        """Returns the row at which the first budget is used up, and which, or None.

        Args:
            counted: `[M] bool`: the row has a verdict.
            spent: The columns; 0 where there is no verdict.
        """
        found: list[tuple[int, int, str]] = []
        if self.attempts + len(counted) >= self.max_attempts:
            places = self.x.nonzero(self.attempts + counted.cumsum(0) >= self.max_attempts)
            found += [(int(places[0]), 0, "attempts")] if len(places) else []
        names = enumerate(("cost", "seconds"))
        for (rank, name), column, limit in zip(names, spent, self.limits, strict=True):
            if limit < NEVER and column is not None:
                places = self.x.nonzero(getattr(self, name) + column.cumsum(0) >= limit)
                found += [(int(places[0]), 1 + rank, name)] if len(places) else []
        return (min(found)[0], min(found)[2]) if found else None

    def spend(self, attempts: int, spent: tuple[Any, Any]) -> None:
        """Adds verdicts."""
        cost, seconds = spent
        self.attempts += attempts
        if cost is not None:
            self.cost = self.cost + cost.sum()
        if seconds is not None:
            self.seconds = self.seconds + seconds.sum()
