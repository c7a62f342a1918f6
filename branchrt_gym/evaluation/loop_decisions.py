"""`LoopDecisions`: the same decisions by the plain loop, which is quicker for few attempts."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.evaluation.attempts import CANCELLED, ISSUED, Verdicts, target_count
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.rules import (
    NOT_IN_FLIGHT,
    check_order,
    check_present,
    check_rules,
)

__all__ = ["LoopDecisions"]

NOTHING: Final = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

Pairs = tuple[Any, Any]


class LoopDecisions:
    """The plain loop behind the calls of `Decisions`, NumPy arrays in and out; see there."""

    def __init__(
        self,
        num_roots: int,
        num_candidates: int,
        order: Any = None,
        *,
        target: float | None = None,
        present: Any = None,
        **rules: Any,
    ) -> None:
        """Begins with every present attempt pending; `rules` are those of `Decisions`."""
        budgets = dict.fromkeys(("max_attempts", "max_cost", "max_seconds"))
        rules = {"needed": 1, "in_flight_per_root": 1, "retries": 2, **budgets, **rules}
        check_rules({"num_roots": num_roots, "num_candidates": num_candidates, **rules})
        self.num_roots, self.num_candidates = num_roots, num_candidates
        self.target = target_count(target, num_roots)
        if present is not None:
            present = check_present(present, num_roots, num_candidates)
            present = None if present.all() else present.tolist()
        self._loop = HostController(
            num_roots,
            num_candidates,
            check_order(order, num_roots, num_candidates).tolist(),
            target=self.target,
            present=present,
            **rules,
        )
        self._issued: tuple[Pairs, Pairs] | None = None  # the last wave, as arrays and as lists

    def reorder(self, order: Any) -> None:
        """Sorts what each root has not tried by a new order."""
        self._loop.reorder(check_order(order, self.num_roots, self.num_candidates).tolist())

    def wave(self, limit: int | None = None) -> Pairs:
        """Issues the next attempt of every open root that has room."""
        found = self._loop.wave(limit)
        if not found[0]:
            return NOTHING
        issued = np.array(found[0]), np.array(found[1])
        self._issued = issued, found
        return issued

    def commit(self, roots: Any, candidates: Any, verdicts: Verdicts) -> Pairs:
        """Counts verdicts, in the order given; returns what that cancels."""
        if len(verdicts.passed) != len(roots):
            raise ValueError(
                f"`verdicts` are of {len(verdicts.passed)} attempts, for {len(roots)} roots; "
                "expected one for each"
            )
        issued, self._issued = self._issued, None
        if issued is not None and roots is issued[0][0] and candidates is issued[0][1]:
            pairs = issued[1]
        else:
            pairs = np.asarray(roots).tolist(), np.asarray(candidates).tolist()
            self._check_in_flight(*pairs)
        cost, seconds = verdicts.cost, verdicts.seconds
        gone = self._loop.commit(
            *pairs,
            verdicts.passed.tolist(),
            None if cost is None else cost.tolist(),
            None if seconds is None else seconds.tolist(),
            verdicts.infrastructure,
        )
        return (np.array(gone[0]), np.array(gone[1])) if gone[0] else NOTHING

    def _check_in_flight(self, roots: list[int], candidates: list[int]) -> None:
        pairs = {*zip(roots, candidates, strict=True)}
        known = {self._loop.columns[candidate][root] for root, candidate in pairs}
        if known - {ISSUED, CANCELLED} or len(pairs) < len(roots):
            raise ValueError(NOT_IN_FLIGHT)

    @property
    def done(self) -> str | None:
        """Why the run is over, or None."""
        return self._loop.done

    @property
    def attempts(self) -> int:
        """Verdicts that came."""
        return self._loop.attempts

    @property
    def cost(self) -> float:
        """The cost of these."""
        return self._loop.cost

    @property
    def seconds(self) -> float:
        """The seconds of these."""
        return self._loop.seconds

    @property
    def attempts_to_target(self) -> int | None:
        """Attempts up to the one that reached the target, or None."""
        return self._loop.attempts_to_target

    @property
    def attempts_full_rounds(self) -> int | None:
        """These, and what was left of that attempt's round."""
        return self._loop.attempts_full_rounds

    @property
    def solved_count(self) -> int:
        """How many roots are solved."""
        return self._loop.solved_count

    @property
    def in_flight(self) -> int:
        """Attempts that are issued and not committed."""
        return self._loop.in_flight

    @property
    def infrastructure(self) -> int:
        """Infrastructure failures."""
        return self._loop.infrastructure

    @property
    def waiting(self) -> dict[tuple[int, int], None]:
        """Attempts to be tried again after one, the oldest first."""
        return self._loop.waiting

    @property
    def solved(self) -> NDArray[np.bool_]:
        """`[R] bool`: the roots that are solved."""
        return np.array(self._loop.solved)

    @property
    def status(self) -> NDArray[np.int8]:
        """`[R, C] int8`: the status of each attempt."""
        return np.array(self._loop.status(), dtype=np.int8)
