"""What is known of each root, and how verdicts change it."""

from __future__ import annotations

from typing import Any

from branchrt_gym.evaluation.arrays import Arrays
from branchrt_gym.evaluation.attempts import (
    CANCELLED,
    FAILED,
    GIVEN_UP,
    ISSUED,
    PENDING,
    Verdicts,
)
from branchrt_gym.evaluation.ledger import NEVER, Ledger
from branchrt_gym.evaluation.rules import NOT_IN_FLIGHT
from branchrt_gym.evaluation.segments import Segments
from branchrt_gym.evaluation.turns import Turns

__all__ = ["Standing"]


class Standing:
    """The roots of an evaluation as arrays, and commits of any verdicts.

    Attributes:
        done: Why the run is over: "target", "attempts", "cost", "seconds", "exhausted"; or None.
        solved_count: Roots that are solved.
        in_flight: Attempts that are issued and not committed.
        infrastructure: Infrastructure failures.
        target: Roots to solve, or None.
        waiting: Attempts to be tried again after one, the oldest first.
        attempts_to_target: Attempts up to the one that reached the target, or None.
        attempts_full_rounds: These, and what was left of that attempt's round.
    """

    def __init__(
        self,
        arrays: Arrays,
        turns: Turns,
        ledger: Ledger,
        present: Any,
        *,
        needed: int,
        target: int | None,
        retries: int,
    ) -> None:
        """Begins with every present attempt pending; `present` is `[R, C] bool` or None."""
        x = self.x = arrays
        self.turns, self.ledger = turns, ledger
        self.needed, self.retries = needed, retries
        self.target = target
        self.goal = NEVER if target is None else target
        self.left = x.full(turns.num_roots, turns.num_candidates, "int64")  # that may still come
        if present is not None:
            self.left = present.sum(1)
        self.passes = x.full(turns.num_roots, 0, "int64")
        self.won = x.full(turns.num_roots, 0, "bool")
        turns.open = self.left >= needed
        ready = x.nonzero(turns.open)
        turns.add(0, ready)
        self.open_count = len(ready)
        self.waiting: dict[tuple[int, int], None] = {}
        self.failures: dict[tuple[int, int], int] = {}
        self.solved_count = self.in_flight = self.infrastructure = 0
        self.attempts_to_target: int | None = None
        self.attempts_full_rounds: int | None = None
        self.done: str | None = None if self.open_count else "exhausted"
        self.nothing = x.full(0, 0, "int64")

    def commit_rows(
        self, roots: Any, candidates: Any, verdicts: Verdicts, whole: bool
    ) -> tuple[Any, Any]:
        """Counts verdicts of any attempts; see `Decisions.commit`.

        Args:
            roots: `[M] int64`. They are in flight for sure if they are a `whole` wave.
            candidates: `[M] int64`.
            verdicts: Of these.
            whole: See `roots`.
        """
        x = self.x
        roots, candidates = x.of(roots, "int64"), x.of(candidates, "int64")
        flat = candidates * self.turns.num_roots + roots
        was = self.turns.statuses[flat]
        fits = whole or bool(((was == ISSUED) | (was == CANCELLED)).all())
        if not whole and len(flat) > 1:
            ascending = x.sort(flat)
            fits &= not bool((ascending[1:] == ascending[:-1]).any())
        if not fits:
            raise ValueError(NOT_IN_FLIGHT)
        if not len(flat):
            return self.nothing, self.nothing
        counted = x.full(len(flat), 1, "bool")
        spent = self.ledger.columns(verdicts)
        lost = sorted(verdicts.infrastructure)
        if lost:
            self.infrastructure += len(lost)
            counted[lost] = False
            cost, seconds = (None if each is None else each * counted for each in spent)
            spent = cost, seconds
        batch = (roots, candidates, x.of(verdicts.passed, "bool"), counted, *spent)
        gone = self._commit(batch, lost)
        if len(gone):
            gone = gone[~x.among(gone, flat)]
        roots, candidates = gone % self.turns.num_roots, gone // self.turns.num_roots
        by = x.order(roots * self.turns.num_candidates + candidates)
        return roots[by], candidates[by]

    def _commit(self, batch: tuple[Any, ...], lost: list[int]) -> Any:
        """Commits rows; returns what they cancel, as places in the statuses.

        Args:
            batch: Roots, candidates, passed, counted (not lost), cost and seconds in units.
            lost: The rows without a verdict.
        """
        x, turns = self.x, self.turns
        roots, candidates, passed, counted, *costs = batch
        spent = (costs[0], costs[1])
        flat = candidates * turns.num_roots + roots
        live = turns.statuses[flat] == ISSUED
        ended = live & counted
        given_up = [row for row in lost if live[row] and self._failures(roots, candidates, row)]
        ended[given_up] = True
        rows = Segments(x, roots)
        by, won = rows.by, (ended & counted & passed)[rows.by]
        ended = ended[by]
        passes = self.passes[rows.roots] + rows.count(won)
        left = self.left[rows.roots] - rows.count(ended)
        solves = won & (passes == self.needed)
        closes = solves | (ended & ~won & (passes + left == self.needed - 1))
        stop = self._stop(by[solves], by[closes], counted, spent) if self.done is None else None
        if stop is not None and stop[0] + 1 < len(flat):
            end = stop[0] + 1
            head, tail = (
                tuple(None if each is None else each[part] for each in batch)
                for part in (slice(end), slice(end, None))
            )
            gone = self._commit(head, [row for row in lost if row < end])
            self._commit(tail, [])
            return gone

        turns.statuses[flat[counted]] = (FAILED - passed.view(turns.statuses.dtype))[counted]
        r, ends = rows.roots[rows.last], rows.last
        self.passes[r], self.left[r] = passes[ends], left[ends]
        before = turns.flight[r]
        turns.flight[r] = before - rows.count(ended)[ends]
        self.in_flight -= int(live.sum())
        closed, solved = rows.roots[closes], rows.roots[solves]
        turns.open[closed] = False
        self.won[solved] = True
        self.open_count -= len(closed)
        self.solved_count += len(solved)
        if lost:
            late = (rows.count(closes) - closes * 1)[x.order(by)] > 0  # after its root was closed
            self._put_back([row for row in lost if live[row]], given_up, late, roots, candidates)
        ready = turns.open[r] & (before == turns.per_root) & (turns.flight[r] < turns.per_root)
        turns.requeue(r[ready])
        self.ledger.spend(int(counted.sum()), spent)
        gone = self._cancel(closed)
        if stop is not None:
            gone = x.join([gone, self._end(stop[1], int(roots[-1]), int(candidates[-1]))])
        return gone

    def _failures(self, roots: Any, candidates: Any, row: int) -> bool:
        """Says whether another infrastructure failure would be one too many."""
        attempt = int(roots[row]), int(candidates[row])
        return self.failures.get(attempt, 0) >= self.retries

    def _put_back(
        self, lost: list[int], given_up: list[int], late: Any, roots: Any, candidates: Any
    ) -> None:
        """Lets what has no verdict wait to be tried again, or gives it up."""
        for row in lost:
            root, candidate = attempt = int(roots[row]), int(candidates[row])
            self.failures[attempt] = self.failures.get(attempt, 0) + 1
            if row in given_up and not late[row]:
                self.turns.columns[candidate, root] = GIVEN_UP
            elif self.turns.open[root]:
                self.turns.columns[candidate, root] = PENDING
                self.waiting[attempt] = None
            else:
                self.turns.columns[candidate, root] = CANCELLED

    def _stop(self, solving: Any, closing: Any, counted: Any, spent: Any) -> tuple[int, str] | None:
        """Returns the row that ends the run, and why, or None."""
        found: list[tuple[int, int, str]] = []
        if self.solved_count + len(solving) >= self.goal:
            place = self.goal - self.solved_count - 1
            found.append((int(self.x.sort(solving)[place]), 0, "target"))
        used_up = self.ledger.used_up(counted, spent)
        if used_up is not None:
            found.append((used_up[0], 1, used_up[1]))
        if len(closing) == self.open_count:
            found.append((int(closing.max()), 2, "exhausted"))
        return (min(found)[0], min(found)[2]) if found else None

    def _end(self, reason: str, root: int, candidate: int) -> Any:
        """Ends the run with an attempt; returns what that cancels."""
        turns = self.turns
        if reason == "target":
            rest = self.in_flight + len(self.waiting) + turns.rest(turns.turn_of(root, candidate))
            self.attempts_to_target = self.ledger.attempts
            self.attempts_full_rounds = self.ledger.attempts + rest
        self.done = reason
        turns.open[:] = False
        return self._cancel(None)

    def _cancel(self, closed: Any) -> Any:
        """Cancels what closed roots, or all, have in flight or waiting."""
        turns = self.turns
        for root, candidate in [each for each in self.waiting if not turns.open[each[0]]]:
            del self.waiting[root, candidate]
            turns.columns[candidate, root] = CANCELLED
        if closed is None:
            gone = self.x.nonzero(turns.statuses == ISSUED)
        elif turns.per_root == 1 or not len(closed):
            return self.nothing
        else:
            every = self.x.arange(turns.num_candidates)[:, None] * turns.num_roots
            flat = (every + closed).reshape(-1)
            gone = flat[turns.statuses[flat] == ISSUED]
        turns.statuses[gone] = CANCELLED
        self.in_flight -= len(gone)
        return gone
