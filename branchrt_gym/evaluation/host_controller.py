"""The rules of `Decisions` as plain loops over lists: the oracle, and the baseline of benches.

Written for itself, from the rules in words; nothing of it is shared with the vectorised form.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from branchrt_gym.evaluation.attempts import (
    ABSENT,
    CANCELLED,
    FAILED,
    GIVEN_UP,
    ISSUED,
    PASSED,
    PENDING,
    SKIPPED,
    UNITS,
    target_count,
)
from branchrt_gym.evaluation.host_in_step import commit_in_step, settle, wave_in_step

__all__ = ["HostController"]

NEVER: Final = 1 << 62  # a budget that nothing reaches

Order = Sequence[int] | Sequence[Sequence[int]]
Pairs = tuple[list[int], list[int]]


class HostController:
    """Decides which candidate each root tries next, and when to stop, one attempt at a time.

    The arguments are those of `Decisions`; roots and candidates come and go as lists. Where all
    roots stand in the same round and one pass is enough, which is the common case, a shorter loop
    runs. An attempt that was not issued raises where it stands: the rows before it are committed.

    Attributes:
        done: Why the run is over, or None.
        attempts: Verdicts that came, also of attempts that were not wanted any more.
        solved: Of each root, whether it is.
        solved_count: How many are.
        in_flight: Attempts that are issued.
        waiting: Attempts to be tried again after an infrastructure failure, oldest first.
        infrastructure: Infrastructure failures.
        attempts_to_target: Attempts up to the one that reached the target.
        attempts_full_rounds: These, with the rest of their round.
    """

    def __init__(
        self,
        num_roots: int,
        num_candidates: int,
        order: Order | None = None,
        *,
        needed: int = 1,
        target: float | None = None,
        max_attempts: int | None = None,
        max_cost: float | None = None,
        max_seconds: float | None = None,
        present: Sequence[Sequence[bool]] | None = None,
        in_flight_per_root: int = 1,
        retries: int = 2,
    ) -> None:
        """Begins with every present attempt pending."""
        self.num_roots, self.num_candidates = num_roots, num_candidates
        self.needed, self.per_root, self.retries = needed, in_flight_per_root, retries
        self.target = target_count(target, num_roots) or NEVER
        self.max_attempts = NEVER if max_attempts is None else max_attempts
        self.max_cost = NEVER if max_cost is None else round(max_cost * UNITS)
        self.max_seconds = NEVER if max_seconds is None else round(max_seconds * UNITS)
        self.columns = [[PENDING] * num_roots for _ in range(num_candidates)]
        self.left = [num_candidates] * num_roots  # verdicts that may still come
        for root, row in enumerate(present or ()):
            for candidate, there in enumerate(row):
                if not there:
                    self.columns[candidate][root] = ABSENT
                    self.left[root] -= 1
        self.passes = [0] * num_roots
        self.flight = [0] * num_roots  # issued or waiting
        self.position = [0] * num_roots
        self.open = [left >= needed for left in self.left]
        self.open_count = sum(self.open)
        self.solved = [False] * num_roots
        self.queue = {0: [root for root in range(num_roots) if self.open[root]]}  # a list a round
        self.waiting: dict[tuple[int, int], None] = {}
        self.failures: dict[tuple[int, int], int] = {}
        self.attempts = self.solved_count = self.in_flight = self.infrastructure = 0
        self.cost_units = self.seconds_units = 0
        self.attempts_to_target: int | None = None
        self.attempts_full_rounds: int | None = None
        self.done: str | None = None if self.open_count else "exhausted"
        self.shared: list[int] | None = None
        self.orders: list[list[int]] = []
        order = range(num_candidates) if order is None else order
        if isinstance(order[0], Sequence):
            self.orders = [list(row) for row in order]  # type: ignore[arg-type]
        else:
            self.shared = list(order)  # type: ignore[arg-type]
        limited = present is not None or max_cost is not None or max_seconds is not None
        self.plain = not limited and needed == in_flight_per_root == 1
        self.in_step: tuple[list[int], list[int], int] | None = None  # a wave in one round

    def reorder(self, order: Order) -> None:
        """Sorts what each root has not tried by a new order; what it tried keeps its place."""
        settle(self)
        shared = not isinstance(order[0], Sequence)
        orders: list[list[int]] = []
        for root in range(self.num_roots):
            tried = self._order(root)[: self.position[root]]
            new: Sequence[int] = order if shared else order[root]  # type: ignore[assignment]
            orders.append(tried + [candidate for candidate in new if candidate not in tried])
        self.shared, self.orders = None, orders

    def _order(self, root: int) -> list[int]:
        return self.orders[root] if self.shared is None else self.shared

    def wave(self, limit: int | None = None) -> Pairs:
        """Issues the next attempt of each open root: see `Decisions.wave`."""
        roots: list[int] = []
        candidates: list[int] = []
        if self.done is not None:
            return roots, candidates
        room = self.max_attempts - self.attempts - self.in_flight
        room = room if limit is None else min(room, limit)
        if self.plain and self.shared is not None and len(self.queue) == 1 and not self.in_flight:
            ((turn, queue),) = self.queue.items()
            if len(queue) <= room and not self.waiting:
                return wave_in_step(self, turn, queue, self.shared[turn])
        settle(self)
        for root, candidate in list(self.waiting)[: max(room, 0)]:
            del self.waiting[root, candidate]
            self.columns[candidate][root] = ISSUED
            roots.append(root)
            candidates.append(candidate)
        again = len(roots)
        while self._turns(room, roots, candidates) and len(roots) == again:
            pass
        self.in_flight += len(roots)
        return roots, candidates

    def _turns(self, room: int, roots: list[int], candidates: list[int]) -> bool:
        """Gives each queued root a turn, lowest round first; returns whether only some sat out."""
        moved: list[tuple[int, list[int]]] = []
        sat_out = full = False
        for turn in sorted(self.queue):
            queue = sorted(self.queue.pop(turn))
            after: list[int] = []
            moved.append((turn + 1, after))
            for place, root in enumerate(queue):
                if not self.open[root]:
                    continue
                candidate = self._order(root)[turn]
                if self.columns[candidate][root] == ABSENT:
                    sat_out = True
                elif len(roots) >= room:
                    self.queue[turn] = queue[place:]
                    full = True
                    break
                else:
                    self.columns[candidate][root] = ISSUED
                    self.flight[root] += 1
                    roots.append(root)
                    candidates.append(candidate)
                self.position[root] = turn + 1
                if self.flight[root] < self.per_root and turn + 1 < self.num_candidates:
                    after.append(root)
            if full:
                break
        for turn, after in moved:
            if after:
                self.queue.setdefault(turn, []).extend(after)
        return sat_out and not full

    def commit(
        self,
        roots: Sequence[int],
        candidates: Sequence[int],
        passed: Sequence[bool],
        cost: Sequence[float] | None = None,
        seconds: Sequence[float] | None = None,
        infrastructure: Collection[int] = (),
    ) -> Pairs:
        """Counts verdicts in the order given: see `Decisions.commit`."""
        if self.in_step is not None and not infrastructure:
            same = roots is self.in_step[0] and candidates is self.in_step[1]
            if same and len(roots) == len(passed) <= self.max_attempts - self.attempts:
                return commit_in_step(self, passed, cost, seconds)
        settle(self)
        cancelled: set[tuple[int, int]] = set()
        for place, (root, candidate) in enumerate(zip(roots, candidates, strict=True)):
            column = self.columns[candidate]
            was = column[root]
            if was not in (ISSUED, CANCELLED):
                raise ValueError(f"attempt ({root}, {candidate}) is not issued")
            self.in_flight -= was == ISSUED
            cancelled.discard((root, candidate))
            if place in infrastructure:
                self.infrastructure += 1
                if was == CANCELLED or self._again(root, candidate):
                    continue
            else:
                self.attempts += 1
                self.cost_units += round(cost[place] * UNITS) if cost is not None else 0
                self.seconds_units += round(seconds[place] * UNITS) if seconds is not None else 0
                column[root] = PASSED if passed[place] else FAILED
                self.passes[root] += was == ISSUED and bool(passed[place])
            if was == ISSUED:
                self.left[root] -= 1
                self.flight[root] -= 1
                if self.passes[root] >= self.needed:
                    self.solved[root] = True
                    self.solved_count += 1
                    self._close(root, cancelled)
                elif self.passes[root] + self.left[root] < self.needed:
                    self._close(root, cancelled)
                elif self.flight[root] == self.per_root - 1:
                    if self.position[root] < self.num_candidates:
                        self.queue.setdefault(self.position[root], []).append(root)
            if self.done is None:
                self._stop(root, candidate, cancelled)
        pairs = sorted(cancelled)
        return [root for root, _ in pairs], [candidate for _, candidate in pairs]

    def _again(self, root: int, candidate: int) -> bool:
        """Notes an infrastructure failure; returns whether the attempt is to be tried again."""
        failures = self.failures.get((root, candidate), 0) + 1
        self.failures[root, candidate] = failures
        if failures > self.retries:
            self.columns[candidate][root] = GIVEN_UP
            return False
        self.columns[candidate][root] = PENDING
        self.waiting[root, candidate] = None
        return True

    def _close(self, root: int, cancelled: set[tuple[int, int]]) -> None:
        """Ends a root: what it has in flight or waiting is not wanted any more."""
        self.open[root] = False
        self.open_count -= 1
        if self.flight[root] == 0:
            return
        for candidate, column in enumerate(self.columns):
            if column[root] == ISSUED:
                column[root] = CANCELLED
                cancelled.add((root, candidate))
                self.in_flight -= 1
            elif (root, candidate) in self.waiting:
                column[root] = CANCELLED
                del self.waiting[root, candidate]

    def _stop(self, root: int, candidate: int, cancelled: set[tuple[int, int]]) -> None:
        """Ends the run where the attempt just counted, (root, candidate), is the last one."""
        if self.solved_count >= self.target:
            self.done = "target"
            self.attempts_to_target = self.attempts
            self.attempts_full_rounds = self.attempts + self._rest(root, candidate)
        elif self.attempts >= self.max_attempts:
            self.done = "attempts"
        elif self.cost_units >= self.max_cost:
            self.done = "cost"
        elif self.seconds_units >= self.max_seconds:
            self.done = "seconds"
        elif self.open_count == 0:
            self.done = "exhausted"
        for each in range(self.num_roots) if self.done else ():
            if self.open[each]:
                self._close(each, cancelled)

    def _rest(self, root: int, candidate: int) -> int:
        """Returns how many attempts are left of the round that an attempt belongs to."""
        turn = self._order(root).index(candidate)
        rest = self.in_flight + len(self.waiting)
        for at, queue in self.queue.items():
            for each in queue if at <= turn else ():
                if self.open[each]:
                    rest += self.columns[self._order(each)[at]][each] != ABSENT
        return rest

    @property
    def cost(self) -> float:
        """The cost of all verdicts."""
        return self.cost_units / UNITS

    @property
    def seconds(self) -> float:
        """Their seconds."""
        return self.seconds_units / UNITS

    def status(self) -> list[list[int]]:
        """Returns the status of each attempt, a list a root."""
        return [
            [
                SKIPPED if column[root] == PENDING and not self.open[root] else column[root]
                for column in self.columns
            ]
            for root in range(self.num_roots)
        ]
