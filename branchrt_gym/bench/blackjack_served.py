"""`branchrt bench blackjack --env nemo`: the same over HTTP, several hands at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from branchrt_gym.bench.blackjack_figures import (
    FRONTIER,
    HOST,
    RUN_ALL,
    BlackjackComparison,
    BlackjackSizes,
    Outcome,
)
from branchrt_gym.bench.blackjack_servers import NemoPlayer, NemoServer
from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.measure import summarize
from branchrt_gym.evaluation.attempts import Attempt, Verdict, Verifier
from branchrt_gym.evaluation.eval_frontier import EvalFrontier
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.profile import Profile, layer
from branchrt_gym.evaluation.result import EvalResult

__all__ = ["Tape", "compare_served", "decide_again"]

CONNECTIONS = 8


class Tape:
    """Passes attempts on to a verifier, and keeps what came in order.

    Attributes:
        polled: What came, poll by poll.
    """

    def __init__(self, verifier: Verifier) -> None:
        """Has nothing yet."""
        self._verifier = verifier
        self.version, self.capacity = verifier.version, verifier.capacity
        self.polled: list[list[tuple[Attempt, Verdict]]] = []

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Submits."""
        self._verifier.submit(attempts)

    def poll(self, timeout: float | None) -> list[tuple[Attempt, Verdict]]:
        """Polls and keeps."""
        found = self._verifier.poll(timeout)
        self.polled.append(found)
        return found

    @property
    def failures(self) -> int:
        """Infrastructure failures among what came."""
        said = [verdict for polled in self.polled for _, verdict in polled]
        return sum(verdict.infrastructure is not None for verdict in said)

    def cancel(self, attempts: Sequence[Attempt]) -> None:
        """Cancels."""
        self._verifier.cancel(attempts)

    def close(self) -> None:
        """Closes."""
        self._verifier.close()


def compare_served(
    sizes: BlackjackSizes,
    python: str,
    *,
    connections: int = CONNECTIONS,
    repetitions: int = 1,
    progress: Progress = lambda stage, done, total: None,
) -> BlackjackComparison:
    """Runs all controllers by turns against NeMo Gym's server.

    It deals by itself, so each run meets other hands. What each frontier decided is decided again
    by the plain loop from the verdicts that it was given.

    Args:
        sizes: What is to be reached; the seed says nothing here.
        python: A Python with nemo-gym; see `NemoServer`.
        connections: Hands at a time.
        repetitions: Runs of each.
        progress: Called with the stage, the stages done, and all.
    """
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    calls: dict[str, Callable[[Tape, BlackjackSizes], tuple[Outcome, EvalResult | None]]] = {
        RUN_ALL: run_all,
        HOST: run_host,
        FRONTIER: run_frontier,
    }
    stages = 1 + repetitions * len(calls)
    progress("Starting the server", 0, stages)
    comparison = BlackjackComparison(sizes, "cpu")
    times: dict[str, list[float]] = {name: [] for name in calls}
    rates: dict[str, list[float]] = {name: [] for name in calls}
    failures = 0
    with NemoServer(python) as server, NemoPlayer(server.url) as player:
        for repetition in range(repetitions):
            for place, (name, call) in enumerate(calls.items()):
                done = 1 + repetition * len(calls) + place
                progress(f"Playing: {name}, repetition {repetition + 1}", done, stages)
                before = player.episodes
                with player.verifier(connections) as verifier, Profile() as profile:
                    tape = Tape(verifier)
                    outcome, result = call(tape, sizes)
                comparison.outcomes[name], comparison.profiles[name] = outcome, profile
                times[name].append(profile.wall)
                rates[name].append((player.episodes - before) / profile.wall)
                failures += tape.failures
                if result is not None:
                    _compare(comparison, tape, result)
        comparison.more = {
            "nemo_gym": server.version,
            "connections": connections,
            "requests_per_hand": player.requests / player.episodes,
            "infrastructure_failures": failures,
            "hands_per_second": {name: summarize(each) for name, each in rates.items()},
        }
    if comparison.equal:
        comparison.summarize(times)
    progress("Done", stages, stages)
    return comparison


def run_all(verifier: Tape, sizes: BlackjackSizes) -> tuple[Outcome, EvalResult | None]:
    """Plays every hand, and looks afterwards."""
    waiting = deque(Attempt(r, c) for c in range(sizes.candidates) for r in range(sizes.roots))
    held = episodes = 0
    won = set()
    while waiting or held:
        ready = [waiting.popleft() for _ in range(min(len(waiting), verifier.capacity - held))]
        with layer("environment"):
            verifier.submit(ready)
            found = verifier.poll(None)
        held += len(ready) - len(found)
        for attempt, verdict in found:
            if verdict.infrastructure is not None:
                waiting.append(attempt)
                continue
            episodes += 1
            if verdict.passed:
                won.add(attempt.root)
    return Outcome(episodes, None, len(won)), None


def run_host(verifier: Tape, sizes: BlackjackSizes) -> tuple[Outcome, EvalResult | None]:
    """Plays as the plain loop says, as many hands at a time as the verifier holds."""
    with layer("frontier"):
        host = HostController(sizes.roots, sizes.candidates, target=sizes.target)
    while host.done is None:
        with layer("frontier"):
            attempts = [*map(Attempt, *host.wave(verifier.capacity - host.in_flight))]
        with layer("environment"):
            verifier.submit(attempts)
            found = verifier.poll(None)
        with layer("frontier"):
            for attempt, verdict in found:
                _commit(host, attempt, verdict)
    return Outcome(host.attempts, host.attempts_to_target, host.solved_count), None


def run_frontier(verifier: Tape, sizes: BlackjackSizes) -> tuple[Outcome, EvalResult | None]:
    """Plays as `EvalFrontier` says, asynchronously."""
    frontier = EvalFrontier(
        sizes.roots,
        sizes.candidates,
        verifier,
        target=sizes.target,
        mode="async",
        in_flight=verifier.capacity,
    )
    result = frontier.run()
    outcome = Outcome(result.attempts, result.attempts_to_target, int(result.solved.sum()))
    return outcome, result


def decide_again(tape: Tape, sizes: BlackjackSizes, bound: int) -> HostController:
    """Decides by the plain loop from the verdicts on a tape, in the order in which they came.

    Raises:
        ValueError: For a verdict of an attempt that the loop would not have made by then.
    """
    host = HostController(sizes.roots, sizes.candidates, target=sizes.target)
    host.wave(bound)
    for polled in tape.polled:
        for attempt, verdict in polled:
            _commit(host, attempt, verdict)
        host.wave(bound - host.in_flight)
    return host


def _commit(host: HostController, attempt: Attempt, verdict: Verdict) -> None:
    root, candidate, _ = attempt
    failed = () if verdict.infrastructure is None else (0,)
    host.commit([root], [candidate], [verdict.passed], infrastructure=failed)


def _compare(comparison: BlackjackComparison, tape: Tape, found: EvalResult) -> None:
    """Compares a frontier's result with what the plain loop decides from the same verdicts."""
    differ = comparison.differ
    try:
        host = decide_again(tape, comparison.sizes, tape.capacity)
    except ValueError as error:
        differ(f"attempts ({error})", True, False)
        return
    differ("status", host.status(), found.status)
    differ("attempts", host.attempts, found.attempts)
    differ("attempts to target", host.attempts_to_target, found.attempts_to_target)
