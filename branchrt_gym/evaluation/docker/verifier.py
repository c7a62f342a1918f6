"""A verifier that runs untrusted candidates, each in a container of its own."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from branchrt_gym.evaluation.answers import check_sizes, failure, function_name, read_verdict
from branchrt_gym.evaluation.attempts import Attempt, Verdict
from branchrt_gym.evaluation.docker.container import Container, Outcome, Stopped
from branchrt_gym.evaluation.docker.engine import Engine, EngineError
from branchrt_gym.evaluation.docker.evaluation import Candidate, DockerTask, evaluate
from branchrt_gym.evaluation.docker.limits import Limits
from branchrt_gym.evaluation.docker.warm import WarmPool
from branchrt_gym.evaluation.verifiers import ThreadedVerifier

if TYPE_CHECKING:
    from docker import DockerClient  # type: ignore[import-untyped]

__all__ = ["DockerVerifier", "exit_zero"]

STOPPED = Verdict(False, infrastructure="cancelled")  # never reported
LEAVE = 60.0  # seconds that `close` gives its threads to remove their containers


def exit_zero(outcome: Outcome) -> bool:
    """Returns whether the command ended with exit code 0."""
    return outcome.exit_code == 0


class _Flight:
    """An attempt that a thread works on, and how to tell it to stop."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.listen, self._tell = socket.socketpair()
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        with suppress(OSError):  # it has ended already
            self._tell.send(b"x")

    def end(self) -> None:
        self.listen.close()
        self._tell.close()


class DockerVerifier(ThreadedVerifier):
    """Verifies attempts in hardened containers, one for each; a context manager.

    A clean container of the task's image is made or taken from the warm pool, the patch is
    applied, hidden files are written over it, the command runs, and the container is removed.

    A patch that does not apply, a command past its time, and one that prints without end have
    failed; so has an empty candidate, which is not run. Where a command ended by itself, `grade`
    decides, also if processes of it were killed for memory (`Outcome.memory_kills`). What goes
    wrong with the engine (a restart, a lost connection, no room, a container that somebody
    removed) is tried again up to `retries` times and then is an infrastructure failure.

    At the start everything that dead processes left in the engine is removed, and at `close`
    everything of this run. `cancel` stops an attempt at once and nothing is reported of it.

    Attributes:
        version: Part of each attempt's content address: a digest of images, commands, hidden
            files, limits and the graders' names.
        capacity: Attempts held at once.
        engine: The connection, with the name of the run.

    Args:
        tasks: One for each root.
        candidates: `candidates[root][candidate]`, or a function of both numbers: a patch as text,
            files to write by path, or "" or None for an empty candidate.
        grade: `grade(outcome)` returns a bool, a number (which passes from 1.0 on) or a `Verdict`;
            called in a worker's thread.
        seconds: What a command may take.
        limits: What a container may do; a task's own take precedence.
        workers: Containers at work at once.
        capacity: Attempts held at once; twice the workers if None.
        warm: Containers kept ready beyond those at work.
        retries: How often an attempt is tried again after a failure of the engine.
        run_empty: Run empty candidates too.
        observe: `observe(attempt, outcome, verdict)` is called after each, one at a time.
        engine: A connection to share; it is not closed here.
        client: The SDK's client for a connection of its own; from the environment if None.
        version: Instead of the digest.

    Raises:
        ValueError: If an image is not in the engine.
        EngineError: If the engine does not answer, or its disk is full.
        MissingExtraError: If the Docker SDK is not installed.
    """

    def __init__(
        self,
        tasks: Sequence[DockerTask],
        candidates: Sequence[Sequence[Candidate]] | Callable[[int, int], Candidate],
        *,
        grade: Callable[[Outcome], object] = exit_zero,
        seconds: float = 1800.0,
        limits: Limits | None = None,
        workers: int = 1,
        capacity: int | None = None,
        warm: int = 0,
        retries: int = 2,
        run_empty: bool = False,
        observe: Callable[[Attempt, Outcome, Verdict], None] | None = None,
        engine: Engine | None = None,
        client: DockerClient | None = None,
        version: str | None = None,
    ) -> None:
        """Checks the engine and the images, and removes what dead runs left."""
        check_sizes("workers", workers, capacity, seconds)
        self._tasks, self._grade = tasks, grade
        self._limits = Limits() if limits is None else limits
        self._seconds, self._retries, self._run_empty = seconds, retries, run_empty
        self._observe, self._observing = observe, threading.Lock()
        if callable(candidates):
            self._candidate = candidates
        else:
            self._candidate = lambda root, candidate: candidates[root][candidate]
        self.engine = Engine(client) if engine is None else engine
        self._own = engine is None
        ids = self.engine.check_images(task.image for task in tasks)
        self.engine.check_disk()
        self.engine.reap()
        super().__init__(
            threads=workers,
            capacity=capacity,
            timeout=None,
            version=self._digest(ids) if version is None else version,
        )
        self._flights: list[_Flight] = []
        seeds: dict[tuple[str, str], bytes] = {}
        self._seeds = seeds
        self._pool = WarmPool(self.engine, warm, seeds)
        self._pool.want(dict.fromkeys(task.spec(self._limits) for task in reversed(tasks[:warm])))

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Takes attempts; see `Verifier`."""
        super().submit(attempts)
        specs = [self._tasks[attempt.root].spec(self._limits) for attempt in attempts]
        self._pool.want(reversed(dict.fromkeys(specs)))

    def poll(self, timeout: float | None) -> list[tuple[Attempt, Verdict]]:
        """Returns what was decided since; see `Verifier`."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            answers = super().poll(left)
            found = [each for each in answers if each[1] is not STOPPED]
            if found or not answers:
                return found

    def cancel(self, attempts: Sequence[Attempt]) -> None:
        """Stops attempts at once; see `Verifier`."""
        super().cancel(attempts)
        unwanted = set(attempts)
        with self._lock:
            for flight in self._flights:
                if flight.attempt in unwanted:
                    flight.stop()

    def close(self) -> None:
        """Stops what runs and removes every container of the run; may be called again."""
        if self._closed.is_set():
            return
        with self._lock:
            self._closed.set()
            for flight in self._flights:
                flight.stop()
        super().close()
        end = time.monotonic() + LEAVE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._pool.close()
        try:
            self.engine.reap(self.engine.run)
        finally:
            if self._own:
                self.engine.close()

    def verify_one(self, attempt: Attempt) -> Verdict:
        """Returns one verdict, or what came in its way."""
        flight = _Flight(attempt)
        with self._lock:
            # It may have been cancelled, or all be closed, since this thread took it.
            jobs = [job for job in self._running if job.thread is threading.current_thread()]
            flight.stopped = self._closed.is_set() or not all(job.wanted for job in jobs)
            self._flights.append(flight)
        try:
            return self._verify(flight)
        except Stopped:
            return STOPPED
        finally:
            with self._lock:
                self._flights.remove(flight)
                flight.end()

    def _verify(self, flight: _Flight) -> Verdict:
        root, candidate, _ = flight.attempt
        task, content = self._tasks[root], self._candidate(root, candidate)
        if not self._run_empty and (
            not content or (isinstance(content, str) and content.isspace())
        ):
            return Verdict(False)
        begin, causes = time.monotonic(), []
        for _ in range(self._retries + 1):
            try:
                outcome = self._try(flight, task, content)
            except EngineError as error:
                causes.append(str(error))
                self.engine.wait(lambda: flight.stopped)
                continue
            verdict = self._judge(task, outcome)
            if self._observe is not None:
                with self._observing:
                    self._observe(flight.attempt, outcome, verdict)
            return verdict
        cause = f"given up after {len(causes)} tries: {'; '.join(dict.fromkeys(causes))}"
        return failure(cause, time.monotonic() - begin)

    def _try(self, flight: _Flight, task: DockerTask, content: Candidate) -> Outcome:
        """Runs an attempt in a container that is gone afterwards."""
        if flight.stopped:
            raise Stopped
        spec = task.spec(self._limits)
        container = self._pool.take(spec)
        if container is None:
            what = f"{flight.attempt.root}-{flight.attempt.candidate}"
            container = Container(self.engine, spec, what, self._seeds)
        try:
            if flight.stopped:
                raise Stopped
            seconds = self._seconds if task.seconds is None else task.seconds
            return evaluate(container, task, content, seconds, flight.listen)
        finally:
            with suppress(EngineError):  # the reaper finds it
                container.remove()

    def _judge(self, task: DockerTask, outcome: Outcome) -> Verdict:
        if not outcome.finished or outcome.flooded:
            return Verdict(False, seconds=outcome.seconds)
        return read_verdict((task.grade or self._grade)(outcome), outcome.seconds)

    def _digest(self, ids: dict[str, str]) -> str:
        digest = hashlib.sha256()
        for task in self._tasks:
            files = sorted(task.files.items())
            parts = (ids[task.image], task.script(), task.workdir, files, sorted(task.env.items()))
            grade = function_name(task.grade or self._grade)
            seconds = self._seconds if task.seconds is None else task.seconds
            rest = (task.limits or self._limits, seconds, list(task.apply), task.clean, grade)
            digest.update(repr((*parts, *rest)).encode("utf-8", "surrogatepass"))
        return f"docker {digest.hexdigest()[:16]}"
