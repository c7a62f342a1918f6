"""The loops of an evaluation: whole waves in process, or attempts in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby

import numpy as np

from branchrt_gym.evaluation.attempts import ISSUED, Attempt, BatchVerifier, Verdict, Verdicts
from branchrt_gym.evaluation.decisions import Decisions
from branchrt_gym.evaluation.flight import Flight, Pair, Said
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.journal import Event, JournalError
from branchrt_gym.evaluation.loop_decisions import LoopDecisions
from branchrt_gym.evaluation.orderings import LearningOrdering
from branchrt_gym.evaluation.profile import layer

__all__ = ["AttemptRun", "EachOfBatch", "run_batches"]


def run_batches(
    decisions: Decisions | LoopDecisions,
    verifier: BatchVerifier,
    learner: LearningOrdering | None,
    note: Callable[[], None],
) -> None:
    """Verifies wave after wave, each in one call, until the decisions are over."""
    while decisions.done is None:
        with layer("frontier"):
            roots, candidates = decisions.wave(None if learner is None else learner.wave)
        with layer("environment"):
            verdicts = verifier.verify(roots, candidates)
        if not isinstance(verdicts, Verdicts):
            raise TypeError(
                f"`verifier.verify` returned {type(verdicts).__name__}; expected `Verdicts`"
            )
        with layer("frontier"):
            decisions.commit(roots, candidates, verdicts)
            if learner is not None and decisions.done is None:
                order = learner.update(roots, candidates, verdicts)
                if order is not None:
                    decisions.reorder(order)
            note()


class EachOfBatch:
    """A batch verifier as one of single attempts, so that they can be journaled."""

    capacity = 1 << 30

    def __init__(self, verifier: BatchVerifier) -> None:
        """Holds nothing."""
        self.batch = verifier
        self.version = verifier.version
        self.held: list[Attempt] = []

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """See `Verifier`."""
        self.held += attempts

    def poll(self, timeout: float | None) -> list[tuple[Attempt, Verdict]]:
        """Verifies what is held."""
        held, self.held = self.held, []
        if not held:
            return []
        roots, candidates, _ = zip(*held, strict=True)
        verdicts = self.batch.verify(np.array(roots), np.array(candidates))
        return [(attempt, verdicts[row]) for row, attempt in enumerate(held)]

    def cancel(self, attempts: Iterable[Attempt]) -> None:
        """See `Verifier`."""
        gone = set(attempts)
        self.held = [attempt for attempt in self.held if attempt not in gone]

    def close(self) -> None:
        """See `Verifier`."""


class AttemptRun:
    """Verifies single attempts, in waves or as they come.

    In waves all attempts of a wave come to an end before the next one begins, and verdicts are
    committed in the order of their issue, as soon as those before them are there: so verdicts
    that come in another order decide the same. Else they are committed as they come.
    """

    def __init__(
        self,
        decisions: HostController,
        flight: Flight,
        in_flight: int | None,
        learner: LearningOrdering | None,
        note: Callable[[], None],
    ) -> None:
        """Begins where the decisions stand; waves if `in_flight` is None."""
        self.decisions, self.flight, self.in_flight = decisions, flight, in_flight
        self.learner, self.note = learner, note
        self.wave = 0
        self.expected: deque[Pair] = deque()
        self.arrived: dict[Pair, Verdict] = {}
        self.told: list[Said] = []  # of the wave, for the learner

    def run(self) -> None:
        """Goes on until the decisions are over."""
        with layer("frontier"):
            try:
                while self.decisions.done is None:
                    self._issue()
                    self._commit(self.flight.turn())
                    self.note()
            except BaseException:
                with suppress(JournalError):
                    self.flight.save()  # what came is not to be paid for again
                raise
            # What came out of turn, or too late, is spent as well.
            self._count([each for each in self.arrived.items()] + self.flight.end())
            self.note()

    def _issue(self) -> None:
        if self.in_flight is None:
            if not self.expected:
                self.expected.extend(self._wave(self.learner.wave if self.learner else None))
        else:  # a root may have several in flight, which takes several waves
            while (room := self.in_flight - self.flight.count) > 0 and self._wave(room):
                pass

    def _wave(self, limit: int | None) -> list[Pair]:
        pairs = list(zip(*self.decisions.wave(limit), strict=True))
        if pairs:
            self.wave += 1
            self.flight.add(pairs, self.wave)
        return pairs

    def _commit(self, said: list[Said]) -> None:
        if self.in_flight is None:
            self.arrived.update(said)
            said = []
            while self.expected and self.expected[0] in self.arrived:
                pair = self.expected.popleft()
                said.append((pair, self.arrived.pop(pair)))
            self._count(said)
            self.told += said
            if self.learner is not None and not self.expected:
                self._learn(self.told)
            if not self.expected:
                self.told = []
        elif self.learner is None:
            self._count(said)
        else:
            # One by one: what is learned must not depend on which came together.
            for each in said:
                self._count([each])
                self._learn([each])

    def _count(self, said: list[Said]) -> None:
        if said:
            pairs, verdicts = zip(*said, strict=True)
            roots, candidates = map(list, zip(*pairs, strict=True))
            passed, _, cost, seconds, causes = zip(*verdicts, strict=True)
            lost = {row for row, cause in enumerate(causes) if cause is not None}
            gone = self.decisions.commit(roots, candidates, passed, cost, seconds, lost)
            self.flight.drop(zip(*gone, strict=True))

    def _learn(self, said: list[Said]) -> None:
        if self.learner is None or self.decisions.done is not None or not said:
            return
        pairs, verdicts = zip(*said, strict=True)
        roots, candidates = (np.array(each) for each in zip(*pairs, strict=True))
        order = self.learner.update(roots, candidates, Verdicts.of(verdicts))
        if order is not None:
            self.decisions.reorder(order.tolist())

    def replay(self, events: Iterable[Event]) -> None:
        """Brings the decisions to where a process died, from what it wrote.

        In waves verdicts are kept until their wave asks for them. Else every issue and commit
        happens again in its order.
        """
        open_: dict[Pair, None] = {}
        by_kind = groupby(events, lambda each: (each.verdict is None, each.again, each.wave))
        for (issue, again, wave), group in by_kind:
            rows = list(group)
            pairs = [event.attempt[:2] for event in rows]
            if issue:
                open_.update(dict.fromkeys(pairs))
                if self.in_flight is not None and not again:
                    self._issue_again(pairs)
                    self.wave = wave
                continue
            for pair, event in zip(pairs, rows, strict=True):
                assert event.verdict is not None
                open_.pop(pair, None)
                if self.in_flight is None:
                    self.flight.past.setdefault(pair, deque()).append(event.verdict)
                else:
                    self._commit([(pair, self.flight.counted(pair, event.verdict))])
        columns = self.decisions.columns
        if self.in_flight is None:
            self.flight.lost = set(open_)
        else:
            lost = [each for each in open_ if columns[each[1]][each[0]] == ISSUED]
            self.flight.lost = set(lost)
            self.flight.add(lost, self.wave)

    def _issue_again(self, pairs: list[Pair]) -> None:
        decided = list(zip(*self.decisions.wave(len(pairs)), strict=True))
        if decided != pairs:
            raise JournalError(
                f"the journal has {pairs[:3]} … issued where {decided[:3]} … are to be; it is of "
                "another run, or of another version of the rules"
            )
