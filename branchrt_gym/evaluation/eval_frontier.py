"""`EvalFrontier`: roots × candidates against a verifier, paying for no root that is decided."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from hashlib import sha256
from typing import Any, Literal

import torch

from branchrt_gym.evaluation.attempts import (
    BatchVerifier,
    Verifier,
    attempt_digest,
    target_count,
)
from branchrt_gym.evaluation.continuing import go_on
from branchrt_gym.evaluation.decisions import Decisions
from branchrt_gym.evaluation.drive import AttemptRun, EachOfBatch, run_batches
from branchrt_gym.evaluation.flight import Flight
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.journal import BATCH, Journal, JournalError
from branchrt_gym.evaluation.loop_decisions import LoopDecisions
from branchrt_gym.evaluation.orderings import (
    CandidateTable,
    LearningOrdering,
    Ordering,
    manifest_order,
)
from branchrt_gym.evaluation.progress import Show, live
from branchrt_gym.evaluation.result import EvalResult, Track, result_of
from branchrt_gym.evaluation.rules import check_order, check_rules
from branchrt_gym.evaluation.verifiers import CallableVerifier

__all__ = ["EvalFrontier"]

SMALL = 128  # roots below which a plain loop decides faster than arrays, but for the plainest rules

Names = Sequence[str] | int


class EvalFrontier:
    """Runs attempts until a target, a budget or the last root is decided, as `Decisions` says.

    Whole waves go to a `BatchVerifier`, in process. Any other verifier is given single attempts,
    `in_flight` at most: in waves, whose verdicts count in the order of issue, or asynchronously,
    in the order they come.

    With a journal, each issue and verdict is on the disk before anything follows from it. A run
    that ended anyhow goes on where it was when it is run again with the same arguments: no verdict
    in it is evaluated again, what was in flight is, and is counted as `repeated`. A run with other
    rules or with other contents begins anew, and takes what is known of equal attempts for nothing.

    Example:
        >>> frontier = EvalFrontier(3, 2, lambda task, candidate: candidate >= task)
        >>> result = frontier.run()
        >>> result.reason, result.attempts, result.solved.tolist()
        ('exhausted', 5, [True, True, False])
    """

    def __init__(
        self,
        tasks: Names,
        candidates: Names,
        verifier: Verifier | BatchVerifier | Callable[[Any, Any], object],
        *,
        ordering: Ordering = manifest_order,
        table: CandidateTable | None = None,
        needed: int = 1,
        target: float | None = None,
        max_attempts: int | None = None,
        max_cost: float | None = None,
        max_seconds: float | None = None,
        mode: Literal["waves", "async"] = "waves",
        in_flight: int | None = None,
        in_flight_per_root: int = 1,
        retries: int = 2,
        backoff: float = 1.0,
        journal: str | os.PathLike[str] | None = None,
        content: Callable[[int, int], str] | None = None,
        device: torch.device | str = "cpu",
        progress: bool = False,
    ) -> None:
        """Checks the arguments; nothing is started.

        Args:
            tasks: The roots' ids, or how many there are.
            candidates: The candidates' names, or how many.
            verifier: A callable `f(task, candidate)` is run in a thread; it is given indices where
                there are no names.
            ordering: Which candidate is tried first; see `branchrt_gym.evaluation.orderings`.
            table: What the ordering goes by, and which attempts there are; by default the names.
            needed: Passes that solve a root.
            target: Roots to solve, a count or, as a float, a share of all.
            max_attempts: Attempts that may be spent.
            max_cost: Cost that may be spent, apart from what is in flight when it is.
            max_seconds: Seconds of verifiers, added up, likewise.
            mode: "waves" or "async".
            in_flight: Attempts with the verifier at a time; its capacity if None.
            in_flight_per_root: Attempts of one root at a time, in async mode.
            retries: How often an attempt is tried again after infrastructure failures.
            backoff: Seconds before the first of these; doubled each time, a minute at most.
            journal: A file that keeps issues and verdicts.
            content: `content(root, candidate)`, the digest of what is verified, such as a patch's.
            device: Where decisions are made, for a `BatchVerifier`.
            progress: Whether to show how it goes on the standard error stream.
        """
        self.tasks, self.candidates = tasks, candidates
        self.num_roots = tasks if isinstance(tasks, int) else len(tasks)
        self.num_candidates = candidates if isinstance(candidates, int) else len(candidates)
        self.rules: dict[str, Any] = {
            "needed": needed,
            "max_attempts": max_attempts,
            "max_cost": max_cost,
            "max_seconds": max_seconds,
            "in_flight_per_root": in_flight_per_root,
            "retries": retries,
        }
        shape = {"num_roots": self.num_roots, "num_candidates": self.num_candidates}
        check_rules({**shape, **self.rules})
        self.target = target_count(target, self.num_roots)
        if mode not in ("waves", "async"):
            raise ValueError(f'`mode` is {mode!r}; expected "waves" or "async"')
        if in_flight is not None and in_flight < 1:
            raise ValueError(f"`in_flight` is {in_flight}; expected 1 or more, or None")
        if not backoff >= 0:
            raise ValueError(f"`backoff` is {backoff!r}; expected seconds, 0 or more")
        if table is None:
            names = [self._name(candidates, each) for each in range(self.num_candidates)]
            table = CandidateTable(tuple(names), self.num_roots)
        if table.shape != (self.num_roots, self.num_candidates):
            raise ValueError(
                f"`table` is of {table.shape[0]} roots × {table.shape[1]} candidates; expected "
                f"{self.num_roots} × {self.num_candidates}"
            )
        self.batches = isinstance(verifier, BatchVerifier)
        if self.batches and (mode == "async" or in_flight_per_root > 1):
            raise ValueError(
                '`verifier` verifies whole waves; expected the mode "waves" and one attempt of a '
                "root at a time, or a `Verifier` of single attempts"
            )
        if torch.device(device).type != "cpu" and (not self.batches or journal is not None):
            raise ValueError(
                f"`device` is {device}; expected cpu where attempts are verified or journaled one "
                "by one"
            )
        if not self.batches and not isinstance(verifier, Verifier) and not callable(verifier):
            raise TypeError(
                f"`verifier` is {type(verifier).__name__}; expected a `Verifier`, a "
                "`BatchVerifier` or a callable f(task, candidate)"
            )
        self.verifier, self.ordering, self.table = verifier, ordering, table
        self.mode, self.in_flight, self.backoff = mode, in_flight, backoff
        self.journal, self.content = journal, content
        self.device, self.progress = device, progress
        self.learner = ordering if isinstance(ordering, LearningOrdering) else None
        self._version = ""

    @staticmethod
    def _name(names: Names, place: int) -> str:
        return str(place) if isinstance(names, int) else str(names[place])

    def digest(self, root: int, candidate: int) -> str:
        """Returns the content address of an attempt, while a journal is kept; else nothing."""
        if self.journal is None:
            return ""
        content = "" if self.content is None else self.content(root, candidate)
        task, name = self._name(self.tasks, root), self._name(self.candidates, candidate)
        return attempt_digest(task, name, content, self._version)

    def run(self) -> EvalResult:
        """Runs, or goes on with what the journal has, until there is nothing more to decide.

        Raises:
            JournalError: If the journal is of other tasks or candidates, is being written to, or
                cannot be written.
        """
        self.order = check_order(
            self.ordering.order(self.table), self.num_roots, self.num_candidates
        )
        self.track = Track()
        with ExitStack() as stack:
            self._show: Show = stack.enter_context(live(self.progress, self.num_roots, self.target))
            if self.batches and self.journal is None:
                return self._run_batches()
            verifier = self._single()
            if verifier is not self.verifier:
                stack.callback(verifier.close)
            self._version = verifier.version
            journal = None
            if self.journal is not None:
                journal = stack.enter_context(Journal(self.journal))
            return self._run_attempts(verifier, journal)

    def resume(self) -> EvalResult:
        """Goes on with the run in the journal, as `run` does; an error where there is none."""
        if self.journal is None:
            raise ValueError("`journal` is None; expected the file of the run to go on with")
        with Journal(self.journal, write=False) as journal:
            if not journal.run:
                raise JournalError(f"`{self.journal}` has no run to go on with; call `run`")
        return self.run()

    def _single(self) -> Verifier:
        if isinstance(self.verifier, BatchVerifier):
            return EachOfBatch(self.verifier)
        if isinstance(self.verifier, Verifier):
            return self.verifier
        tasks, candidates = (
            None if isinstance(each, int) else each for each in (self.tasks, self.candidates)
        )
        # As many as a transaction takes: calls go on while the one before them is written.
        return CallableVerifier(self.verifier, tasks=tasks, candidates=candidates, capacity=BATCH)

    def _run_batches(self) -> EvalResult:
        assert isinstance(self.verifier, BatchVerifier)
        plainest = self.rules["needed"] == 1 and self.table.present is None
        decisions: Decisions | LoopDecisions
        given = {**self.rules, "target": self.target, "present": self.table.present}
        shape = (self.num_roots, self.num_candidates, self.order)
        if self.num_roots < SMALL and not plainest and torch.device(self.device).type == "cpu":
            decisions = LoopDecisions(*shape, **given)
        else:
            decisions = Decisions(*shape, device=self.device, **given)

        def note() -> None:
            self._note(decisions.attempts, decisions.solved_count, decisions.cost)

        run_batches(decisions, self.verifier, self.learner, note)
        return result_of(decisions, decisions.status, None, self.track, self.order)

    def _run_attempts(self, verifier: Verifier, journal: Journal | None) -> EvalResult:
        present = self.table.present
        decisions = HostController(
            self.num_roots,
            self.num_candidates,
            self.order.tolist(),
            target=self.target,
            present=None if present is None or present.all() else present.tolist(),
            **self.rules,
        )

        def note() -> None:
            self._note(decisions.attempts, decisions.solved_count, decisions.cost)

        waves = self.mode == "waves"
        bound = min(self.in_flight or verifier.capacity, verifier.capacity)
        flight = Flight(verifier, bound, self.backoff, self.digest, journal, at_once=not waves)
        run = AttemptRun(decisions, flight, None if waves else bound, self.learner, note)
        if journal is not None:
            go_on(journal, self._settings(), run, self.digest)
        run.run()
        if journal is not None:
            journal.end(decisions.done or "")
        return result_of(decisions, decisions.status(), flight, self.track, self.order)

    def _settings(self) -> dict[str, Any]:
        """Returns what makes two runs the same."""
        tasks, candidates = (
            sha256(json.dumps(each if isinstance(each, int) else list(each)).encode()).hexdigest()
            for each in (self.tasks, self.candidates)
        )
        return {
            "tasks": tasks,
            "candidates": candidates,
            "num_tasks": self.num_roots,
            "num_candidates": self.num_candidates,
            "ordering": self.ordering.name,
            "order": sha256(self.order.tobytes()).hexdigest(),
            "mode": self.mode,
            "target": self.target,
            **self.rules,
        }

    def _note(self, attempts: int, solved: int, cost: float) -> None:
        self.track.add(attempts, solved, cost)
        self._show(attempts, solved, cost)
