"""An ordering that learns from the verdicts paid so far: Thompson sampling, aware of cost."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.evaluation.attempts import Verdicts
from branchrt_gym.evaluation.orderings import CandidateTable, known

__all__ = ["Bandit"]

FIRST: Final = 32  # verdicts between two rankings, at least
GROWTH: Final = 8  # and then an eighth of all verdicts: rankings grow with their logarithm
PRIOR: Final = 2.0  # attempts that the belief in an untried candidate weighs as much as
LAST: Final = 1e-9  # what an empty patch's chance to pass is multiplied by: it is tried last


class Bandit:
    """Ranks each root's candidates by a sampled chance to pass against the attempt's price.

    The chance of candidate `c` has the posterior Beta(PRIOR m + passes, PRIOR (1 - m) + failures)
    of the verdicts seen, with `m` the pass rate of all candidates together (starting at 1/2,
    which makes it uniform): one that is untried is believed to be like the others.
    Each ranking draws a chance for each root and candidate, so a wave spreads over what may
    be best (Thompson, 1933), and ranks by

        chance / price ** cost_weight

    At `cost_weight` 0 this is passes per attempt, at 1 passes per dollar; 1/2, the default, is the
    geometric mean of the two.

    The price is what the attempt itself has cost, and an empty patch is tried last, its verdict
    teaching nothing: both are known once patches exist, before one is verified. Where patches are
    made on demand they are not; with `per_attempt=False` the price is the candidate's average,
    and patches are not looked at.

    It re-ranks after 32 verdicts, then whenever these have grown by an eighth, at least by 32.
    Equal for equal seeds and verdicts. Cost: a ranking draws and sorts R * C numbers.

    Args:
        seed: Of the draws.
        cost_weight: From 0 to 1.
        per_attempt: Whether patches exist, so that their own cost and emptiness are known.
    """

    def __init__(
        self, seed: int = 0, *, cost_weight: float = 0.5, per_attempt: bool = True
    ) -> None:
        """Checks the weight; see the class."""
        if not 0 <= cost_weight <= 1:
            raise ValueError(
                f"`cost_weight` is {cost_weight!r}; expected a number from 0, passes per attempt, "
                "to 1, passes per dollar"
            )
        self.seed = seed
        self.cost_weight = cost_weight
        self.per_attempt = per_attempt
        self.name = f"bandit({seed})" if per_attempt else f"bandit_by_source({seed})"
        self._seen, self._due = 0, FIRST

    @property
    def wave(self) -> int:
        """How many attempts may be issued before it wants their verdicts."""
        return max(self._due - self._seen, 1)

    def order(self, table: CandidateTable) -> NDArray[np.int64]:
        """Forgets all verdicts and returns the first ranking, `[R, C]`."""
        self._rng = np.random.default_rng(self.seed)
        self._worth = np.ones(table.shape)  # what a chance to pass is multiplied by
        if self.cost_weight:
            cost = known(table, "cost", "bandit")
            price = cost if self.per_attempt else np.broadcast_to(table.mean(cost), table.shape)
            # What cost nothing is worth more than all else, and still ranked by its chance.
            floor = price[price > 0].min(initial=1.0) * 1e-3
            self._worth = np.maximum(price, floor) ** -self.cost_weight
        without = table.without_patch if self.per_attempt else None
        self._empty = np.zeros(table.shape, dtype=bool) if without is None else without
        self._worth = np.where(self._empty, LAST * self._worth, self._worth)
        self._passes = np.zeros(len(table.names))
        self._failures = np.zeros(len(table.names))
        self._seen, self._due = 0, FIRST
        return self._rank()

    def update(self, roots: Any, candidates: Any, verdicts: Verdicts) -> NDArray[np.int64] | None:
        """Takes the verdicts of `M` attempts, any order; see `LearningOrdering`."""
        counted = np.ones(len(verdicts), dtype=bool)
        counted[list(verdicts.infrastructure)] = False
        root, candidate, passed = (
            np.asarray(each.cpu() if hasattr(each, "cpu") else each)[counted]
            for each in (roots, candidates, verdicts.passed)
        )
        told = ~self._empty[root, candidate]
        passes = np.bincount(candidate[told], passed[told], minlength=len(self._passes))
        self._passes += passes
        self._failures += np.bincount(candidate[told], minlength=len(self._passes)) - passes
        self._seen += len(root)
        if self._seen < self._due:
            return None
        self._due = self._seen + max(FIRST, self._seen // GROWTH)
        return self._rank()

    def _rank(self) -> NDArray[np.int64]:
        passes, failures = self._passes.sum(), self._failures.sum()
        rate = (passes + 1) / (passes + failures + 2)
        alpha = PRIOR * rate + self._passes
        beta = PRIOR * (1 - rate) + self._failures
        chance = self._rng.beta(alpha, beta, size=self._worth.shape)
        return np.argsort(-chance * self._worth, axis=1, kind="stable")
