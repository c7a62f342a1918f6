"""Attempts between the decisions and a verifier: bounded, journaled, tried again after a while."""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

from branchrt_gym.evaluation.answers import describe, failure, read_verdict
from branchrt_gym.evaluation.attempts import Attempt, Verdict, Verifier
from branchrt_gym.evaluation.journal import Journal
from branchrt_gym.evaluation.profile import layer

__all__ = ["Flight"]

LONGEST: Final = 60.0  # seconds between two tries, at most

Pair = tuple[int, int]
Said = tuple[Pair, Verdict]


class Flight:
    """What is decided and not yet verified.

    An attempt waits here until the verifier has room, with which `bound` are at most. One that
    failed for infrastructure reasons waits `backoff` seconds first, twice as long each time.

    Attributes:
        known: Verdicts of earlier runs by their digests, which are not paid for again.
        past: Verdicts of this run from before its process died.
        lost: What was in flight when it died.
        cancelled: Attempts that the verifier had when they were not wanted any more.
        reused: Attempts whose verdict was known.
        repeated: Attempts of `lost` that were given out again.
        causes: Infrastructure failures by their causes.
    """

    def __init__(
        self,
        verifier: Verifier,
        bound: int,
        backoff: float,
        digest: Callable[[int, int], str],
        journal: Journal | None,
        *,
        at_once: bool,
    ) -> None:
        """Begins empty; `at_once` journals what is decided before it is ready to be verified."""
        self.verifier, self.backoff, self.digest, self.journal = verifier, backoff, digest, journal
        self.bound = min(bound, verifier.capacity)
        self.at_once = at_once
        self.ready: deque[Pair] = deque()
        self.later: list[tuple[float, Pair]] = []
        self.answers: list[Said] = []  # without the verifier
        self.out: set[Pair] = set()  # with the verifier
        self.unwanted: set[Pair] = set()  # with it, perhaps
        self.wave = 0
        self.fresh: list[tuple[int, Attempt]] = []  # to be journaled, with their waves
        self.unsaid: list[tuple[Attempt, Verdict]] = []  # likewise
        self.failures: Counter[Pair] = Counter()
        self.known: dict[str, Verdict] = {}
        self.past: dict[Pair, deque[Verdict]] = {}
        self.lost: set[Pair] = set()
        self.cancelled = self.reused = self.repeated = 0
        self.causes: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Attempts that are here or with the verifier, and wanted."""
        return len(self.ready) + len(self.later) + len(self.out) + len(self.answers)

    def add(self, pairs: Sequence[Pair], wave: int) -> None:
        """Takes attempts that a wave decided."""
        self.wave = wave
        reused: list[tuple[Attempt, Verdict]] = []
        for pair in pairs:
            attempt = self._attempt(pair)
            failures, past = self.failures[pair], self.past.get(pair)
            verdict = None if past else self.known.get(attempt.digest)
            if self.at_once or verdict is not None:
                self.fresh.append((wave, attempt))
            if past:
                self.answers.append((pair, self.counted(pair, past.popleft())))
            elif verdict is not None:  # an earlier run paid for it
                reused.append((attempt, verdict._replace(cost=0.0, seconds=0.0)))
            elif failures and self.backoff:
                wait = min(self.backoff * 2.0 ** (failures - 1), LONGEST)
                heapq.heappush(self.later, (time.monotonic() + wait, pair))
            else:
                self.ready.append(pair)
        if reused:
            self.save()
            self.unsaid += reused
            self.answers += [(attempt[:2], verdict) for attempt, verdict in reused]
            self.reused += len(reused)

    def _attempt(self, pair: Pair) -> Attempt:
        return Attempt(*pair, self.digest(*pair))

    def turn(self) -> list[Said]:
        """Gives the verifier what it has room for, and returns what came, in that order.

        What is known already comes first, since it may make the rest needless. Waits where nothing
        came yet; returns at once where nothing is here.
        """
        if self.answers:
            said, self.answers = self.answers, []
            return said
        given = self._give()
        self.save()
        said = []
        if given:
            try:
                self.verifier.submit(given)
            except Exception as error:
                cause = f"submit: {describe(error)}"
                said = [self._heard(attempt, failure(cause)) for attempt in given]
        wait = None if not self.later else max(self.later[0][0] - time.monotonic(), 0.0)
        with layer("environment"):
            if self.out:
                said += self._listen(0.0 if said else wait)
            elif wait is not None and not said:
                time.sleep(wait)
        return said

    def _give(self) -> list[Attempt]:
        """Takes from what is ready what the verifier is to have."""
        now = time.monotonic()
        while self.later and self.later[0][0] <= now:
            self.ready.append(heapq.heappop(self.later)[1])
        given: list[Attempt] = []
        while self.ready and len(self.out) < self.bound:
            pair = self.ready.popleft()
            self.out.add(pair)
            given.append(self._attempt(pair))
        if not self.at_once:
            self.fresh += [(self.wave, attempt) for attempt in given]
        return given

    def save(self) -> None:
        """Writes down what came, and what is about to be given out."""
        if self.journal is not None:
            groups = groupby(self.fresh, lambda each: (each[0], each[1][:2] in self.lost))
            for (wave, again), group in groups:
                attempts = [attempt for _, attempt in group]
                self.journal.record(self.unsaid, attempts, wave, again)
                self.unsaid.clear()
                if again:
                    self.repeated += len(attempts)
                    self.lost.difference_update(attempt[:2] for attempt in attempts)
            if self.unsaid:
                self.journal.record(self.unsaid, ())
        self.fresh.clear()
        self.unsaid.clear()

    def _listen(self, timeout: float | None) -> list[Said]:
        said = []
        for attempt, answer in self.verifier.poll(timeout):
            if attempt[:2] not in self.out and attempt[:2] not in self.unwanted:
                raise ValueError(
                    f"`verifier` reports {attempt}, which it was not given or has reported; "
                    "expected each attempt once"
                )
            said.append(self._heard(attempt, read_verdict(answer, 0.0)))
        return said

    def _heard(self, attempt: Attempt, verdict: Verdict) -> Said:
        pair = attempt[:2]
        self.out.discard(pair)
        self.unwanted.discard(pair)
        self.unsaid.append((attempt, verdict))
        return pair, self.counted(pair, verdict)

    def counted(self, pair: Pair, verdict: Verdict) -> Verdict:
        """Returns a verdict; notes it if it is an infrastructure failure."""
        if verdict.infrastructure is not None:
            self.failures[pair] += 1
            self.causes[verdict.infrastructure] += 1
        return verdict

    def drop(self, pairs: Iterable[Pair]) -> None:
        """Gives up attempts that are not wanted any more; some may still be reported."""
        gone = set(pairs)
        if gone:
            self.ready = deque(pair for pair in self.ready if pair not in gone)
            self.later = [each for each in self.later if each[1] not in gone]
            heapq.heapify(self.later)
            self.answers = [each for each in self.answers if each[0] not in gone]
            out = self.out & gone
            self.out -= out
            self.unwanted |= out
            self.cancelled += len(out)
            if out:
                self.verifier.cancel([self._attempt(pair) for pair in sorted(out)])

    def end(self) -> list[Said]:
        """Returns what has come for attempts that are not wanted any more, without waiting."""
        said = [(pair, verdicts.popleft()) for pair, verdicts in self.past.items() if verdicts]
        if self.unwanted:
            said += self._listen(0.0)
        self.save()
        return said
