"""Replays: what an ordering would have spent, by verdicts that are on record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.evaluation.attempts import BatchVerifier
from branchrt_gym.evaluation.decisions import Decisions
from branchrt_gym.evaluation.orderings import (
    CandidateTable,
    FixedOrdering,
    LearningOrdering,
    Ordering,
)

__all__ = ["Band", "Replay", "band", "replay"]


@dataclass(frozen=True, eq=False)
class Replay:
    """What one ordering spent until the target, or without reaching it.

    Attributes:
        ordering: Its name.
        order: The candidates' names in its sequence; where that differs by root, those with the
            most attempts first.
        per_root: Whether the sequence differs by root.
        needs_labels: Whether the ordering was made with the verdicts.
        roots, candidates: How many.
        target: Roots to solve, None for no target.
        reached: Whether they were solved.
        attempts: Up to the one that reached the target; all that were made if none did.
        attempts_full_rounds: The same with the round of that attempt charged in full.
        cost: Dollars of `attempts`.
        cost_full_rounds: With that round in full; None where a round is issued piece by piece.
        calls: Model calls of `attempts`; None where they are not on record.
        longest_calls: The longest attempt's calls of each wave, added up: how long it takes with
            a machine for each attempt, in calls one after another.
        waves: How many waves were issued.
        solved_at: `[attempts] int64`, the roots solved after each attempt.
        cost_at: `[attempts] float64`, the dollars spent after each attempt.
        attempts_by_candidate: `[C] int64`, how many of `attempts` each candidate had.
    """

    ordering: str
    order: tuple[str, ...]
    per_root: bool
    needs_labels: bool
    roots: int
    candidates: int
    target: int | None
    reached: bool
    attempts: int
    attempts_full_rounds: int
    cost: float
    cost_full_rounds: float | None
    calls: int | None
    longest_calls: int | None
    waves: int
    solved_at: NDArray[np.int64]
    cost_at: NDArray[np.float64]
    attempts_by_candidate: NDArray[np.int64]

    @property
    def solved(self) -> int:
        """Roots solved when it stopped."""
        return int(self.solved_at[-1]) if len(self.solved_at) else 0

    @property
    def budget(self) -> int:
        """Attempts of running everything: roots × candidates."""
        return self.roots * self.candidates

    @property
    def budget_share(self) -> float:
        """Attempts as a share of running everything."""
        return self.attempts / self.budget


@dataclass(frozen=True)
class Band:
    """How a figure spreads over seeds: its mean, median, and the 10 % and 90 % quantiles."""

    mean: float
    median: float
    low: float
    high: float


def band(values: Sequence[float]) -> Band:
    """Returns the spread of values, quantiles between two of them by linear interpolation."""
    low, median, high = np.quantile(values, [0.1, 0.5, 0.9])
    return Band(float(np.mean(values)), float(median), float(low), float(high))


def replay(
    table: CandidateTable,
    verifier: BatchVerifier,
    ordering: Ordering,
    target: float | None = None,
    *,
    device: str = "cpu",
) -> Replay:
    """Runs an ordering over recorded verdicts until the target.

    Candidates are tried round by round in the ordering's sequence, roots ascending within a
    round. A solved root is not tried again. The run stops at the attempt that reaches the target.
    An ordering that learns is told its verdicts every `ordering.wave` attempts.

    Args:
        table: What is known of the attempts before any is verified.
        verifier: Has the verdicts.
        ordering: Which sequence.
        target: Roots to solve: a count, or as a float a share of all, rounded up. None for all
            that can be.
        device: Where decisions are made.
    """
    order = ordering.order(table)
    decisions = Decisions(*table.shape, order, target=target, present=table.present, device=device)
    learner = ordering if isinstance(ordering, LearningOrdering) else None
    waves: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = []
    while decisions.done is None:
        roots, candidates = decisions.wave(None if learner is None else learner.wave)
        verdicts = verifier.verify(roots, candidates)
        waves.append((_host(roots), _host(candidates), _host(verdicts.passed)))
        decisions.commit(roots, candidates, verdicts)
        if learner is not None:
            new = learner.update(roots, candidates, verdicts)
            if new is not None and decisions.done is None:
                decisions.reorder(new)
    columns = zip(*waves, strict=True) if waves else ([np.zeros(0, np.int64)],) * 3
    root, candidate, passed = (np.concatenate(list(each)) for each in columns)
    attempts = decisions.attempts_to_target or decisions.attempts
    used = slice(0, attempts)
    cost = np.zeros(len(root)) if table.cost is None else table.cost[root, candidate]
    calls = None if table.calls is None else table.calls[root, candidate]
    begins = np.cumsum([0, *(len(each[0]) for each in waves)])[:-1]
    counts = np.bincount(candidate[used], minlength=len(table.names))
    sequence = np.argsort(-counts, kind="stable") if order.ndim == 2 else order
    return Replay(
        ordering=ordering.name,
        order=tuple(table.names[each] for each in sequence),
        per_root=order.ndim == 2,
        needs_labels=isinstance(ordering, FixedOrdering) and ordering.needs_labels,
        roots=table.num_roots,
        candidates=len(table.names),
        target=decisions.target,
        reached=decisions.done == "target",
        attempts=attempts,
        attempts_full_rounds=decisions.attempts_full_rounds or attempts,
        cost=float(cost[used].sum()),
        cost_full_rounds=float(cost.sum()) if learner is None else None,
        calls=None if calls is None else int(calls[used].sum()),
        longest_calls=None if calls is None else int(np.maximum.reduceat(calls, begins).sum()),
        waves=len(waves),
        solved_at=np.cumsum(passed[used]),
        cost_at=np.cumsum(cost[used]),
        attempts_by_candidate=counts,
    )


def _host(values: Any) -> NDArray[Any]:
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)
