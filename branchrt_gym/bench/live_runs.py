"""Runs of live verifier calls: by nobody, by a plain loop, by `EvalFrontier`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from branchrt_gym.evaluation.attempts import Attempt, Verdict
from branchrt_gym.evaluation.docker.swebench import SweBenchVerifier
from branchrt_gym.evaluation.docker.swebench_plan import SweBenchPlan
from branchrt_gym.evaluation.eval_frontier import EvalFrontier
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.orderings import (
    FixedOrdering,
    manifest_order,
    nonempty_patch_first,
)

__all__ = ["FORMS", "NONEMPTY", "RUN_ALL", "LiveRun", "Watched", "measure"]

RUN_ALL = "run all"
NONEMPTY = nonempty_patch_first.name


class Watched:
    """A verifier that notes what it is asked, what it says, and how long it is waited for.

    Attributes:
        calls: Attempts that it was given. said: Verdicts, in the order in which they came.
        inside: Seconds in its methods.
    """

    def __init__(self, verifier: SweBenchVerifier) -> None:
        """Has been asked nothing yet."""
        self._verifier = verifier
        self.version, self.capacity = verifier.version, verifier.capacity
        self.calls: list[tuple[int, int]] = []
        self.said: list[tuple[Attempt, Verdict]] = []
        self.inside = 0.0

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Submits."""
        begin = time.perf_counter()
        self.calls += [attempt[:2] for attempt in attempts]
        self._verifier.submit(attempts)
        self.inside += time.perf_counter() - begin

    def poll(self, timeout: float | None) -> list[tuple[Attempt, Verdict]]:
        """Polls."""
        begin = time.perf_counter()
        found = self._verifier.poll(timeout)
        self.said += found
        self.inside += time.perf_counter() - begin
        return found

    def cancel(self, attempts: Sequence[Attempt]) -> None:
        """Cancels."""
        begin = time.perf_counter()
        self._verifier.cancel(attempts)
        self.inside += time.perf_counter() - begin

    def close(self) -> None:
        """Leaves the verifier open for the next run."""


Form = Callable[[SweBenchPlan, Watched], tuple[int, ...]]  # returns the solved roots


@dataclass(frozen=True)
class LiveRun:
    """One run of one controller.

    Attributes:
        calls: The attempts that it made, in their order.
        verdicts: Of each of these, whether it passed.
        solved: The roots that are solved.
        seconds: Wall time.
        overhead: Milliseconds of these that were not the verifier's.
        failures: Infrastructure failures.
    """

    calls: tuple[tuple[int, int], ...]
    verdicts: dict[tuple[int, int], bool]
    solved: tuple[int, ...]
    seconds: float
    overhead: float
    failures: int


def measure(form: Form, plan: SweBenchPlan, verifier: Watched) -> LiveRun:
    """Runs a controller and times it."""
    begin = time.perf_counter()
    solved = form(plan, verifier)
    seconds = time.perf_counter() - begin
    verdicts = {
        attempt[:2]: verdict.passed
        for attempt, verdict in verifier.said
        if verdict.infrastructure is None
    }
    failures = len(verifier.said) - len(verdicts)
    overhead = (seconds - verifier.inside) * 1e3
    return LiveRun(tuple(verifier.calls), verdicts, solved, seconds, overhead, failures)


def run_all(plan: SweBenchPlan, verifier: Watched) -> tuple[int, ...]:
    """Makes every attempt, and looks afterwards."""
    waiting = [
        Attempt(root, candidate)
        for root, row in enumerate(plan.predictions)
        for candidate, prediction in enumerate(row)
        if prediction is not None
    ]
    held, solved = 0, set()
    while waiting or held:
        free = verifier.capacity - held
        verifier.submit(waiting[:free])
        held += len(waiting[:free])
        del waiting[:free]
        for attempt, verdict in verifier.poll(None):
            held -= 1
            if verdict.passed:
                solved.add(attempt.root)
    return tuple(sorted(solved))


def run_host(ordering: FixedOrdering, plan: SweBenchPlan, verifier: Watched) -> tuple[int, ...]:
    """Does what the plain loop says, wave by wave."""
    table = plan.table
    host = HostController(
        len(plan.tasks),
        len(plan.models),
        ordering.order(table).tolist(),
        present=None if table.present is None else table.present.tolist(),
    )
    while host.done is None:
        wave = [Attempt(*pair) for pair in zip(*host.wave(verifier.capacity), strict=True)]
        verifier.submit(wave)
        said: dict[tuple[int, int], Verdict] = {}
        while len(said) < len(wave):
            said.update((attempt[:2], verdict) for attempt, verdict in verifier.poll(None))
        verdicts = [said[attempt[:2]] for attempt in wave]
        host.commit(
            [attempt.root for attempt in wave],
            [attempt.candidate for attempt in wave],
            [verdict.passed for verdict in verdicts],
            infrastructure={
                row for row, each in enumerate(verdicts) if each.infrastructure is not None
            },
        )
    return tuple(root for root, solved in enumerate(host.solved) if solved)


def run_frontier(ordering: FixedOrdering, plan: SweBenchPlan, verifier: Watched) -> tuple[int, ...]:
    """Does what `EvalFrontier` says."""
    frontier = EvalFrontier(plan.names, plan.models, verifier, ordering=ordering, table=plan.table)
    return tuple(frontier.run().solved.nonzero()[0].tolist())


FORMS: dict[str, Form] = {
    RUN_ALL: run_all,
    **{
        f"{name}, {ordering.name}": partial(run, ordering)
        for ordering in (manifest_order, nonempty_patch_first)
        for name, run in (("host controller", run_host), ("EvalFrontier", run_frontier))
    },
}
