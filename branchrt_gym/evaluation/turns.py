"""Which root tries which candidate next, for arrays of roots."""

from __future__ import annotations

from typing import Any

from branchrt_gym.evaluation.arrays import Arrays
from branchrt_gym.evaluation.attempts import ABSENT, ISSUED, PENDING

__all__ = ["Turns"]

Pairs = tuple[Any, Any]


class Turns:
    """The candidates' order, and the roots that are ready, by the round they stand in.

    Attributes:
        columns: `[C, R] int8`, the status of each attempt; `statuses` is the same, flat.
        open: `[R] bool`: the root is neither solved nor beyond solving.
        position: `[R] int64`, the round that is next.
        flight: `[R] int64`, attempts issued or waiting.
        queue: Of each round the ready roots, in arrays each ascending; also roots closed since.
        shared: The order where it is one for all roots, or None; then `orders: [C, R] int64` has
            the candidate of each round and root.
    """

    def __init__(self, arrays: Arrays, num_roots: int, per_root: int, order: Any, present: Any):
        """Begins with every present attempt pending and no root in the queue."""
        x = self.x = arrays
        self.num_roots, self.num_candidates = num_roots, order.shape[-1]
        self.per_root = per_root
        self.statuses = x.full(self.num_candidates * num_roots, PENDING, "int8")
        self.columns = self.statuses.reshape(self.num_candidates, num_roots)
        if present is not None:
            self.columns[~present.T] = ABSENT
        self.open = x.full(num_roots, 1, "bool")
        self.position = x.full(num_roots, 0, "int64")
        self.flight = x.full(num_roots, 0, "int64")
        self.queue: dict[int, list[Any]] = {}
        self.shared: list[int] | None = order.tolist() if order.ndim == 1 else None
        self.orders: Any = x.of(order.T, "int64") if order.ndim == 2 else None

    def add(self, turn: int, roots: Any) -> None:
        """Puts ascending roots into the queue of a round."""
        if len(roots):
            self.queue.setdefault(turn, []).append(roots)

    def ready(self, turn: int) -> Any:
        """Takes the open roots out of a round's queue, ascending."""
        parts = self.queue.pop(turn)
        roots = parts[0] if len(parts) == 1 else self.x.sort(self.x.join(parts))
        return roots[self.open[roots]]

    def candidates(self, turn: int, roots: Any) -> Any:
        """Returns which candidate each root tries in a round."""
        if self.shared is None:
            return self.orders[turn, roots]
        return self.x.full(len(roots), self.shared[turn], "int64")

    def turn_of(self, root: int, candidate: int) -> int:
        """Returns the round of an attempt."""
        order = self.shared if self.shared is not None else self.orders[:, root].tolist()
        return int(order.index(candidate))

    def issue(self, room: int) -> list[Pairs]:
        """Issues at most `room` attempts, one a root, the lowest round first, roots ascending.

        Where the candidate is absent the root sits out; where all that had a turn sat out, there
        is another turn.
        """
        while True:
            pieces, sat_out = self._pass(room)
            if pieces or not sat_out:
                return pieces

    def _pass(self, room: int) -> tuple[list[Pairs], bool]:
        pieces: list[Pairs] = []
        moved: list[tuple[int, Any]] = []
        sat_out = full = False
        for turn in sorted(self.queue):
            roots = self.ready(turn)
            candidates = self.candidates(turn, roots)
            flat = candidates * self.num_roots + roots
            places = self.x.nonzero(self.statuses[flat] != ABSENT)
            if len(places) > room:
                end = int(places[room])
                self.queue[turn], full = [roots[end:]], True
                roots, places = roots[:end], places[:room]
            sat_out |= len(places) < len(roots)
            room -= len(places)
            tried = roots[places]
            self.statuses[flat[places]] = ISSUED
            self.flight[tried] += 1
            self.position[roots] = turn + 1
            if len(places):
                pieces.append((tried, candidates[places]))
            if turn + 1 < self.num_candidates:
                moved.append((turn + 1, roots[self.flight[roots] < self.per_root]))
            if full:
                break
        for turn, roots in moved:
            self.add(turn, roots)
        return pieces, sat_out and not full

    def requeue(self, roots: Any) -> None:
        """Puts ascending roots into the queues of the rounds they stand in."""
        at = self.position[roots]
        if len(roots):
            for turn in range(int(at.min()), min(int(at.max()) + 1, self.num_candidates)):
                self.add(turn, roots[at == turn])

    def reorder(self, order: Any) -> None:
        """Sorts what each root has not tried by a new order, `[C]` or `[R, C]`."""
        x, ends = self.x, self.num_candidates
        old = self.orders
        if self.shared is not None:
            old = x.of(self.shared, "int64")[:, None] + x.full(self.num_roots, 0, "int64")
        rank = x.order(x.of(order, "int64"))  # the place of each candidate
        every = x.arange(self.num_roots)
        after = rank[old] if order.ndim == 1 else rank[every, old]
        rounds = x.arange(ends)[:, None]
        keys = x.where(rounds < self.position, rounds, ends + after)
        self.shared, self.orders = None, old[x.order(keys.T).T, every]

    def rest(self, turn: int) -> int:
        """Returns how many ready roots stand in this round or one before it, and have a try."""
        count = 0
        for at in [at for at in self.queue if at <= turn]:
            roots = self.ready(at)
            self.add(at, roots)
            flat = self.candidates(at, roots) * self.num_roots + roots
            count += int((self.statuses[flat] != ABSENT).sum())
        return count
