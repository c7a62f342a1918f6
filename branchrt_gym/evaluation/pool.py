"""A verifier that works in processes, which a time limit ends whatever they do."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pickle import dumps
from selectors import BaseSelector, DefaultSelector
from typing import IO, Any

from branchrt_gym.errors import ClosedError
from branchrt_gym.evaluation.answers import (
    check_room,
    check_sizes,
    failure,
    function_name,
    read_verdict,
)
from branchrt_gym.evaluation.attempts import Attempt, Verdict
from branchrt_gym.evaluation.closing import Closing
from branchrt_gym.evaluation.pool_process import CRASH, Worker

__all__ = ["PoolVerifier"]


class PoolVerifier(Closing):
    """Verifies by calling a function in processes of its own; a context manager.

    A call that takes longer than `timeout` is an infrastructure failure, and its process is killed
    with everything in its process group; a new one takes its place. So it is when a process
    crashes (the cause says how and what it wrote last), when the function raises, and when it
    returns garbage. What it prints is read and dropped.

    The processes are started as programs: the function, its tasks and its candidates are sent to
    them by `cloudpickle`, which takes functions of a script, lambdas and closures along by value.
    So a script needs no `if __name__ == "__main__"`, and no process is forked from this one. They
    end when this object is closed or goes away, and when this process is killed.

    Limits are kept in `poll`, as is everything else: there is no thread. Submit, poll, cancel and
    close from one thread.

    Attributes:
        version: Part of each attempt's content address.
        capacity: Attempts held at once.

    Args:
        function: `function(task, candidate)` returns a bool, a number (which passes from 1.0 on)
            or a `Verdict`.
        tasks: What stands for a root: `tasks[root]`; its index if None.
        candidates: What stands for a candidate, likewise.
        workers: Processes, started as they are needed; one a processor if None.
        timeout: Seconds that a call may take; None for no limit.
        capacity: Attempts held at once, those that wait included; twice the workers if None.
        version: What verdicts depend on; by default the function's name.
        start_timeout: Seconds that a process may take to start and to load the function.
        kill_cancelled: End the process whose attempt is cancelled. If False, it goes on, and the
            attempt is reported: better where a call takes less time than loading the function.

    Raises:
        ValueError: If the function cannot be sent to a process or loaded there; it says why.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], object],
        *,
        tasks: Sequence[Any] | None = None,
        candidates: Sequence[Any] | None = None,
        workers: int | None = None,
        timeout: float | None = 600.0,
        capacity: int | None = None,
        version: str | None = None,
        start_timeout: float = 60.0,
        kill_cancelled: bool = True,
    ) -> None:
        """Starts one process and waits until it has loaded the function."""
        most = (os.cpu_count() or 1) if workers is None else workers
        check_sizes("workers", most, capacity, timeout)
        if os.name != "posix":
            raise OSError("`PoolVerifier` needs a POSIX system, whose process groups it ends")
        self.version = function_name(function) if version is None else version
        self.capacity = 2 * most if capacity is None else capacity
        self._most, self._start_timeout = most, start_timeout
        self._timeout = math.inf if timeout is None else timeout
        self._kill_cancelled = kill_cancelled
        self._numbers = count()
        self._jobs: dict[int, Attempt] = {}  # the wanted ones, waiting or not
        self._late: dict[int, Attempt] = {}  # cancelled, while a worker goes on with them
        self._waiting: deque[int] = deque()
        self._finished: list[tuple[Attempt, Verdict]] = []
        self._workers: list[Worker] = []
        self._payload = _write_payload((function, tasks, candidates))
        self._selector = DefaultSelector()
        everything = self._workers, self._selector, self._payload
        self._finalizer = weakref.finalize(self, _end, os.getpid(), *everything)
        try:
            first = self._start()
            while not (first.ready or first.broken):
                self._read(first.deadline)
                self._expire()
            if first.broken:
                raise ValueError(f"`function` cannot be loaded in a process: {first.broken}")
        except BaseException:
            self.close()
            raise

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Takes attempts; see `Verifier`."""
        if not self._finalizer.alive:
            raise ClosedError("`submit` came after `close`; make a new verifier")
        check_room(len(attempts), len(self._jobs), self.capacity)
        for attempt in attempts:
            number = next(self._numbers)
            self._jobs[number] = attempt
            self._waiting.append(number)
        self._feed()

    def poll(self, timeout: float | None) -> list[tuple[Attempt, Verdict]]:
        """Returns what was decided since; see `Verifier`."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        until = 0.0
        while self._finalizer.alive:
            self._read(until)  # before any limit: what has come in time counts
            self._expire()
            self._feed()
            if self._finished or not self._jobs or time.monotonic() >= end:
                break
            until = min(end, *(worker.deadline for worker in self._workers))
        found, self._finished = self._finished, []
        return found

    def cancel(self, attempts: Sequence[Attempt]) -> None:
        """Drops attempts; see `Verifier`."""
        if not self._finalizer.alive:
            return
        self._read(0.0)
        unwanted = set(attempts)
        for number in [job for job, attempt in self._jobs.items() if attempt in unwanted]:
            attempt = self._jobs.pop(number)
            worker = next((worker for worker in self._workers if worker.job == number), None)
            if worker is None:
                self._waiting.remove(number)
            elif self._kill_cancelled:
                self._bury(worker, "cancelled")
            else:
                self._late[number] = attempt

    def close(self) -> None:
        """Kills the processes; may be called again."""
        self._finalizer()
        self._jobs.clear()
        self._late.clear()
        self._waiting.clear()

    def _start(self) -> Worker:
        worker = Worker(self._selector, self._payload.fileno(), self._start_timeout)
        self._workers.append(worker)
        return worker

    def _feed(self) -> None:
        """Gives jobs to workers that are free, and starts more where jobs are left."""
        for worker in self._workers:
            if self._waiting and worker.ready and worker.job is None:
                number = self._waiting.popleft()
                root, candidate, _ = self._jobs[number]
                worker.give(number, root, candidate, self._timeout)
        starting = sum(not worker.ready for worker in self._workers)
        for _ in range(min(len(self._waiting) - starting, self._most - len(self._workers))):
            self._start()

    def _read(self, until: float) -> None:
        """Takes what workers wrote, waiting for something until then."""
        wait = None if until == math.inf else max(0.0, until - time.monotonic())
        told = [key.data for key, _ in self._selector.select(wait)]
        for worker in dict.fromkeys(told):
            for message in worker.read():
                self._take(worker, message)
            if worker.broken:
                self._bury(worker, worker.broken)

    def _take(self, worker: Worker, message: dict[str, Any]) -> None:
        """Takes one message of a worker."""
        job, seconds = message.get("job"), message.get("seconds")
        if "unloadable" in message:
            worker.broken = f"{message['unloadable']}"
        elif message.get("ready") is True:
            worker.ready, worker.deadline = True, math.inf
        elif job is None or job != worker.job or not isinstance(seconds, float):
            worker.broken = "garbage: the worker answered for what it was not given"
        else:
            if "error" in message:
                verdict = failure(f"{message['error']}", seconds)
            else:
                verdict = read_verdict(message.get("value"), seconds)
            attempt = self._jobs.pop(job, None) or self._late.pop(job)
            self._finished.append((attempt, verdict))
            worker.job, worker.deadline = None, math.inf

    def _expire(self) -> None:
        """Kills workers past their deadline."""
        now = time.monotonic()
        for worker in [each for each in self._workers if each.deadline <= now]:
            limit = f"no verdict after {self._timeout} s"
            if not worker.ready:
                limit = f"not ready after {self._start_timeout} s"
            self._bury(worker, f"{limit}: the worker was killed")

    def _bury(self, worker: Worker, cause: str) -> None:
        """Ends a worker, and reports its job, or the next if it could not even start."""
        how = worker.kill()
        worker.broken = (how if cause == CRASH else cause) + worker.told
        self._workers.remove(worker)
        job = worker.job
        if not worker.ready and self._waiting:
            job = self._waiting.popleft()
        if job is not None:
            self._late.pop(job, None)
            attempt = self._jobs.pop(job, None)
            if attempt is not None:
                self._finished.append((attempt, failure(worker.broken)))


def _write_payload(parts: tuple[Any, ...]) -> IO[bytes]:
    """Writes what every worker reads into a file without a name."""
    import cloudpickle  # type: ignore[import-untyped]

    try:
        pickled = cloudpickle.dumps(parts)
    except Exception as error:
        raise ValueError(
            f"`function`, `tasks` or `candidates` cannot be pickled: {error}"
        ) from error
    file = tempfile.TemporaryFile()
    file.write(dumps((sys.path, pickled)))
    file.flush()
    return file


def _end(owner: int, workers: list[Worker], selector: BaseSelector, payload: IO[bytes]) -> None:
    """Ends everything, unless this is a process that was forked from the owner."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.kill()
    workers.clear()
    selector.close()
    payload.close()
