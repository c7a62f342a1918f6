"""What an evaluation came to, and how it went."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.evaluation.decisions import Decisions
from branchrt_gym.evaluation.flight import Flight
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.loop_decisions import LoopDecisions

__all__ = ["EvalResult", "Track", "result_of"]

POINTS = 4096  # of a track, at most


class Track:
    """How far a run had come, at moments: thinned by half whenever it is full."""

    def __init__(self) -> None:
        """Begins now."""
        self.begin = time.perf_counter()
        self.points: list[tuple[float, int, int, float]] = []
        self.every = self.skipped = 1

    def add(self, attempts: int, solved: int, cost: float) -> None:
        """Notes how far the run is."""
        if self.skipped < self.every:
            self.skipped += 1
            return
        self.skipped = 1
        self.points.append((time.perf_counter() - self.begin, attempts, solved, cost))
        if len(self.points) == POINTS:
            del self.points[::2]
            self.every *= 2

    def array(self, attempts: int, solved: int, cost: float) -> NDArray[np.float64]:
        """Returns `[P, 4] float64` with the end as its last point."""
        end = (time.perf_counter() - self.begin, attempts, solved, cost)
        return np.array([*self.points, end], dtype=np.float64)


@dataclass(frozen=True)
class EvalResult:
    """What a run came to.

    Attributes:
        reason: Why it ended: "target", "attempts", "cost", "seconds" or "exhausted".
        attempts: Verdicts that came: what is spent.
        attempts_to_target: Attempts up to the one that reached the target; None if none did.
        attempts_full_rounds: These, with the last round charged in full.
        solved: `[R] bool`.
        status: `[R, C] int8`, see `branchrt_gym.evaluation.attempts`.
        order: The sequence of candidates it began with, `[C]` or `[R, C] int64`.
        cost: Of all verdicts that this run paid for. seconds: likewise, of verifiers.
        cancelled: Attempts that a verifier had when they were not wanted any more.
        infrastructure: Infrastructure failures, and how often each of their `causes` came.
        reused: Attempts whose verdict the journal had from an earlier run; they cost nothing.
        repeated: Attempts that were in flight when an earlier process died, and ran again.
        timeline: `[P, 4] float64`: seconds since the begin, attempts, solved roots and cost; at
            most 4,096 points, the last at the end.
        wall: Seconds of this process.
    """

    reason: str
    attempts: int
    attempts_to_target: int | None
    attempts_full_rounds: int | None
    solved: NDArray[np.bool_]
    status: NDArray[np.int8]
    order: NDArray[np.int64]
    cost: float
    seconds: float
    cancelled: int
    infrastructure: int
    causes: dict[str, int]
    reused: int
    repeated: int
    timeline: NDArray[np.float64]
    wall: float

    @property
    def budget_share(self) -> float:
        """Attempts, up to the target if it was reached, over all there are."""
        used = self.attempts if self.attempts_to_target is None else self.attempts_to_target
        return used / self.status.size

    def row(self) -> dict[str, Any]:
        """Returns the figures as plain values."""
        arrays = ("solved", "status", "order", "timeline")
        return {
            **{name: value for name, value in vars(self).items() if name not in arrays},
            "solved": int(self.solved.sum()),
            "budget_share": self.budget_share,
        }


def result_of(
    decisions: Decisions | LoopDecisions | HostController,
    status: Any,
    flight: Flight | None,
    track: Track,
    order: NDArray[np.int64],
) -> EvalResult:
    """Returns what decisions that are over came to.

    Args:
        decisions: The decisions.
        status: Theirs, `[R, C]`.
        flight: What single attempts went through, if they did.
        track: Of the run.
        order: What the run began with.
    """
    status, solved = (
        np.array(each.cpu() if hasattr(each, "cpu") else each)
        for each in (status, decisions.solved)
    )
    return EvalResult(
        reason=decisions.done or "",
        attempts=decisions.attempts,
        attempts_to_target=decisions.attempts_to_target,
        attempts_full_rounds=decisions.attempts_full_rounds,
        solved=solved,
        status=status.astype(np.int8),
        order=order,
        cost=decisions.cost,
        seconds=decisions.seconds,
        cancelled=flight.cancelled if flight else 0,
        infrastructure=decisions.infrastructure,
        causes=dict(flight.causes) if flight else {},
        reused=flight.reused if flight else 0,
        repeated=flight.repeated if flight else 0,
        timeline=track.array(decisions.attempts, decisions.solved_count, decisions.cost),
        wall=time.perf_counter() - track.begin,
    )
