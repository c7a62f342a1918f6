"""`Decisions`: which candidate each root tries next, and when to stop."""

from __future__ import annotations

from typing import Any, Final

import torch

from branchrt_gym.evaluation.arrays import arrays_on
from branchrt_gym.evaluation.attempts import (
    ISSUED,
    PASSED,
    PENDING,
    SKIPPED,
    UNITS,
    Verdicts,
    target_count,
)
from branchrt_gym.evaluation.ledger import Ledger
from branchrt_gym.evaluation.rules import check_order, check_present, check_rules
from branchrt_gym.evaluation.standing import Standing
from branchrt_gym.evaluation.turns import Turns

__all__ = ["Decisions"]

SPARSE: Final = 1 << 9  # below it a mask picks rows faster than their places do

Pairs = tuple[Any, Any]


class Decisions(Standing):
    """The rules of an evaluation.

    - A root tries its candidates in `order`, one after another. Its place in the order is its
      round. Where the candidate of a round is absent, the root sits out, and the next is its round.
    - It is solved at `needed` passes, and closed when it can no more come to that many.
    - A wave gives each open root with room one attempt: the lowest round first, roots ascending
      within a round. So where `limit` cuts, a slow root holds up no other.
    - An infrastructure failure counts as no attempt. It is issued again by a later wave, before
      all others and in the order they failed, at most `retries` times, then given up; meanwhile it
      keeps its root's place in flight.
    - The run is over at the very verdict, in the order they are committed, that solves the
      `target`-th root, uses up a budget, or closes the last root. Whatever is committed later,
      in the same call too, counts as spent and changes nothing else.
    - What a closed root, or the end, leaves in flight is cancelled; where its verdict still comes,
      it counts as spent.

    The same verdicts give the same decisions on every device: costs and seconds are added in whole
    billionths, so exactly. Loop while `done` is None: commit what `wave` gives. A wave may be
    empty while attempts are in flight.

    While all open roots stand in one round and one pass is enough, they are `front`, and a wave
    does no more than drop from it what passed: `log` keeps such waves until something asks root by
    root. That takes a few microseconds and a few nanoseconds a root. What else there is takes
    some hundred microseconds at least: for few attempts at a time `LoopDecisions` is quicker.
    """

    def __init__(
        self,
        num_roots: int,
        num_candidates: int,
        order: Any = None,
        *,
        needed: int = 1,
        target: float | None = None,
        max_attempts: int | None = None,
        max_cost: float | None = None,
        max_seconds: float | None = None,
        present: Any = None,
        in_flight_per_root: int = 1,
        retries: int = 2,
        device: torch.device | str = "cpu",
    ) -> None:
        """Begins with every present attempt pending.

        Args:
            num_roots: Roots, `R`.
            num_candidates: Candidates of each, `C`.
            order: `[C]` for all roots or `[R, C]`, each a permutation of the candidates; None for
                0, 1, 2, …
            needed: Passes that solve a root.
            target: Roots to solve, a count or, as a float, a share of all.
            max_attempts: Attempts that may be spent; no more are ever issued.
            max_cost: Cost that may be spent. What is in flight when it is used up comes on top.
            max_seconds: Seconds of verifiers, all added up; likewise.
            present: `[R, C] bool`, or None for all: whether there is such a candidate.
            in_flight_per_root: Attempts of one root at a time.
            retries: Infrastructure failures of one attempt after which it is tried again.
            device: Where arrays are: NumPy's for "cpu", tensors else.
        """
        check_rules(locals())
        order = check_order(order, num_roots, num_candidates)
        x = arrays_on(device)
        there = None if present is None else check_present(present, num_roots, num_candidates)
        there = None if there is None or there.all() else x.of(there, "bool")
        super().__init__(
            x,
            Turns(x, num_roots, in_flight_per_root, order, there),
            Ledger(x, max_attempts, max_cost, max_seconds),
            there,
            needed=needed,
            target=target_count(target, num_roots),
            retries=retries,
        )
        self.num_roots, self.num_candidates = num_roots, num_candidates
        self.steps = there is None and needed == in_flight_per_root == 1
        self.front: Any = None
        self.turn, self.issued = 0, False
        self.log: list[tuple[Any, int, Any]] = []
        self.last: Pairs | None = None  # the last wave, until a commit
        self.full_of, self.filled = -1, self.nothing
        self._fall_in()

    def reorder(self, order: Any) -> None:
        """Sorts what each root has not tried by a new order, `[C]` or `[R, C]`.

        What is tried or in flight keeps its round.
        """
        order = check_order(order, self.num_roots, self.num_candidates)
        shared = self.turns.shared
        if self.front is not None and shared is not None and order.ndim == 1:
            # All stand in one round and have tried the same.
            tried = shared[: self.turn + self.issued]
            self.turns.shared = tried + [each for each in order.tolist() if each not in tried]
        else:
            self.settle()
            self.turns.reorder(order)

    def wave(self, limit: int | None = None) -> Pairs:
        """Issues the next attempt of every open root that has room.

        Args:
            limit: Attempts at most.

        Returns:
            Roots and candidates, each `[M] int64`, not to be written to.
        """
        if self.done is not None:
            return self.nothing, self.nothing
        room = self.ledger.max_attempts - self.ledger.attempts - self.in_flight
        if limit is not None and limit < room:
            room = limit
        if self.front is None:
            self._fall_in()
        front, shared = self.front, self.turns.shared
        if front is not None and shared is not None and not self.issued and len(front) <= room:
            candidate, size = shared[self.turn], len(front)
            if self.full_of != candidate:
                self.full_of, self.filled = candidate, self.x.full(size, candidate, "int64")
            self.in_flight, self.issued = size, True
            self.last = front, self.filled[:size]
            return self.last
        self.settle()
        self.last = self._issue(max(room, 0))
        self.in_flight += len(self.last[0])
        return self.last

    def _issue(self, room: int) -> Pairs:
        x = self.x
        pieces: list[Pairs] = []
        again = list(self.waiting)[:room]
        if again:
            for each in again:
                del self.waiting[each]
            roots, candidates = (x.of(each, "int64") for each in zip(*again, strict=True))
            self.turns.columns[candidates, roots] = ISSUED
            pieces.append((roots, candidates))
        pieces += self.turns.issue(room - len(again)) if self.turns.queue else []
        if not pieces:
            return self.nothing, self.nothing
        if len(pieces) == 1:
            return pieces[0]
        roots, candidates = (x.join(each) for each in zip(*pieces, strict=True))
        return roots, candidates

    def _fall_in(self) -> None:
        """Sees whether all open roots stand in one round."""
        turns = self.turns
        if not self.steps or turns.shared is None or self.in_flight:
            return
        if len(turns.queue) == 1 and not self.waiting:
            (self.turn,) = turns.queue
            self.front, self.issued = turns.ready(self.turn), False

    def settle(self) -> None:
        """Writes down, root by root, what is known of roots in step."""
        front, turns = self.front, self.turns
        if front is None:
            return
        assert turns.shared is not None
        for roots, candidate, lost in self.log:
            turns.columns[candidate][roots] = PASSED + lost.view(turns.statuses.dtype)
        self.log.clear()
        self.won |= turns.open
        self.won[front] = False
        turns.open[:] = False
        turns.open[front] = True
        turns.position[front] = self.turn + self.issued
        self.left[front] = self.num_candidates - self.turn
        turns.flight[front] = int(self.issued)
        if self.issued:
            turns.columns[turns.shared[self.turn]][front] = ISSUED
        elif self.turn < self.num_candidates:
            turns.add(self.turn, front)
        self.front = None

    def commit(self, roots: Any, candidates: Any, verdicts: Verdicts) -> Pairs:
        """Counts verdicts, in the order given.

        Args:
            roots: `[M] int64`, of attempts that were issued. Quickest is a whole wave: the very
                arrays that `wave` returned.
            candidates: `[M] int64`, likewise.
            verdicts: Of these attempts.

        Returns:
            Roots and candidates of what that cancels, ascending.

        Raises:
            ValueError: For an attempt that is not in flight. Nothing is changed.
        """
        if len(verdicts.passed) != len(roots):
            raise ValueError(
                f"`verdicts` are of {len(verdicts.passed)} attempts, for {len(roots)} roots; "
                "expected one for each"
            )
        last, self.last = self.last, None
        whole = last is not None and roots is last[0] and candidates is last[1]
        if whole and self.front is not None and not verdicts.infrastructure:
            if len(roots) <= self.ledger.max_attempts - self.ledger.attempts:
                return self._commit_in_step(roots, verdicts)
        self.settle()
        return self.commit_rows(roots, candidates, verdicts, whole)

    def _commit_in_step(self, roots: Any, verdicts: Verdicts) -> Pairs:
        """Commits a whole wave of roots in step."""
        x, ledger, shared = self.x, self.ledger, self.turns.shared
        assert shared is not None
        size = len(roots)
        lost = ~verdicts.passed
        front = roots[lost] if size < SPARSE else roots[x.nonzero(lost)]
        used_up = None
        spent: tuple[Any, Any] = (None, None)
        if verdicts.cost is not None or verdicts.seconds is not None:
            spent = ledger.columns(verdicts)
            used_up = ledger.used_up(x.full(size, 1, "bool"), spent)
        stop = (size, 2, "") if used_up is None else (used_up[0], 1, used_up[1])
        if self.solved_count + size - len(front) >= self.goal:
            row = int(x.nonzero(verdicts.passed)[self.goal - self.solved_count - 1])
            stop = min(stop, (row, 0, "target"))
        self.log.append((roots, shared[self.turn], lost))
        if stop[0] < size:
            front = roots[lost | (x.arange(size) > stop[0])]  # what comes later solves nothing
            self.done = stop[2]
            if self.done == "target":
                self.attempts_to_target = ledger.attempts + stop[0] + 1
                self.attempts_full_rounds = ledger.attempts + size
        ledger.spend(size, spent)
        self.solved_count += size - len(front)
        self.front, self.turn, self.in_flight, self.issued = front, self.turn + 1, 0, False
        self.open_count = len(front) if self.turn < self.num_candidates else 0
        if self.done is None:
            if ledger.attempts >= ledger.max_attempts:
                self.done = "attempts"
            elif self.open_count == 0:
                self.done = "exhausted"
        return self.nothing, self.nothing

    @property
    def attempts(self) -> int:
        """Verdicts that came: what is spent."""
        return self.ledger.attempts

    @property
    def cost(self) -> float:
        """The cost of these."""
        return int(self.ledger.cost) / UNITS

    @property
    def seconds(self) -> float:
        """The seconds of these."""
        return int(self.ledger.seconds) / UNITS

    @property
    def solved(self) -> Any:
        """`[R] bool`: the roots that are solved."""
        self.settle()
        return self.won

    @property
    def status(self) -> Any:
        """`[R, C] int8`: the status of each attempt."""
        self.settle()
        over = ~self.turns.open if self.done is None else self.x.full(self.num_roots, 1, "bool")
        columns = self.turns.columns
        skipped = self.x.full(1, SKIPPED, "int8")
        return self.x.where((columns == PENDING) & over, skipped, columns).T
