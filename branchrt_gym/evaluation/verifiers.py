"""Verifiers that work in threads."""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from branchrt_gym.errors import BranchRTError, ClosedError
from branchrt_gym.evaluation.answers import (
    Names,
    check_room,
    check_sizes,
    describe,
    failure,
    function_name,
    read_verdict,
)
from branchrt_gym.evaluation.attempts import Attempt, Verdict
from branchrt_gym.evaluation.closing import Closing

__all__ = ["CallableVerifier", "ThreadedVerifier"]

MOST_LEFT = 64  # threads left behind by calls that never returned
GRACE = 1.0  # seconds that `close` waits for calls that run


class _Job:
    """An attempt between `submit` and `poll`."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.deadline = math.inf
        self.thread: threading.Thread | None = None
        self.wanted = True  # until it was reported or cancelled


class ThreadedVerifier(Closing):
    """Base of verifiers whose attempts each keep a thread busy; a context manager.

    Submit, poll, cancel and close from one thread. `cancel` drops what no thread has taken yet; a
    call that runs goes on, and is reported if its verdict comes before `close`.

    Attributes:
        version: Part of each attempt's content address.
        capacity: Attempts held at once.

    Args:
        threads: Attempts verified at once.
        capacity: Attempts held at once, those that wait included; twice the threads if None.
        timeout: Seconds that one attempt may take. Then it is an infrastructure failure and its
            thread is left behind, since a thread cannot be ended: after 64 of these that have not
            returned `poll` raises. `PoolVerifier` ends processes.
        version: What verdicts depend on besides the attempt.
    """

    def __init__(
        self, *, threads: int, capacity: int | None, timeout: float | None, version: str
    ) -> None:
        """Starts no thread yet."""
        check_sizes("threads", threads, capacity, timeout)
        self.version = version
        self.capacity = 2 * threads if capacity is None else capacity
        self._most, self._timeout = threads, timeout
        self._lock = threading.Lock()
        self._work, self._done = threading.Condition(self._lock), threading.Condition(self._lock)
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._finished: list[tuple[Attempt, Verdict]] = []
        self._threads: list[threading.Thread] = []
        self._left: list[threading.Thread] = []
        self._closed = threading.Event()

    @abstractmethod
    def verify_one(self, attempt: Attempt) -> Verdict:
        """Returns one verdict, in a thread of its own; an exception is a failure too."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Takes attempts; see `Verifier`."""
        with self._lock:
            if self._closed.is_set():
                raise ClosedError("`submit` came after `close`; make a new verifier")
            check_room(len(attempts), self._held(), self.capacity)
            self._waiting.extend(map(_Job, attempts))
            self._start_threads()
            self._work.notify(len(attempts))

    def poll(self, timeout: float | None) -> list[tuple[Attempt, Verdict]]:
        """Returns what was decided since; see `Verifier`."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._finished and self._held():
                now, last = time.monotonic(), end
                for job in self._running:
                    last = min(last, job.deadline)
                if now < last:
                    self._done.wait(None if last == math.inf else last - now)
                elif not self._expire(now):
                    break
            found, self._finished = self._finished, []
        return found

    def cancel(self, attempts: Sequence[Attempt]) -> None:
        """Drops attempts; see `Verifier`."""
        unwanted = set(attempts)
        with self._lock:
            for job in (*self._waiting, *self._running):
                if job.attempt in unwanted:
                    job.wanted = False
            self._waiting = deque(job for job in self._waiting if job.wanted)

    def close(self) -> None:
        """Drops what waits, and gives calls that run a second to return."""
        with self._lock:
            self._closed.set()
            self._waiting.clear()
            for job in self._running:
                job.wanted = False
            self._work.notify_all()
        end = time.monotonic() + GRACE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _held(self) -> int:
        return len(self._waiting) + sum(job.wanted for job in self._running)

    def _start_threads(self) -> None:
        for _ in range(min(len(self._waiting), self._most - len(self._threads))):
            thread = threading.Thread(target=self._serve, daemon=True, name="branchrt verifier")
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        """Verifies one attempt after the other, until it is closed or took too long."""
        while True:
            with self._lock:
                while not self._waiting and not self._closed.is_set():
                    self._work.wait()
                if self._closed.is_set():
                    return
                job = self._waiting.popleft()
                job.thread = threading.current_thread()
                self._running.append(job)
                if self._timeout is not None:
                    job.deadline = time.monotonic() + self._timeout
                    self._done.notify()  # who waits did not know of this deadline
            try:
                verdict = self.verify_one(job.attempt)
            except BaseException as error:  # SystemExit as well: it is no verdict either
                verdict = failure(describe(error))
            with self._lock:
                if job not in self._running:
                    return  # it took too long, and another thread has this one's place
                self._running.remove(job)
                if not self._closed.is_set():
                    self._finished.append((job.attempt, verdict))
                    self._done.notify()

    def _expire(self, now: float) -> bool:
        """Gives up calls past their deadline; returns whether there were any."""
        late = [job for job in self._running if job.deadline <= now]
        for job in late:
            self._running.remove(job)
            assert job.thread is not None and self._timeout is not None
            self._threads.remove(job.thread)
            self._left.append(job.thread)
            if job.wanted:
                cause = f"no verdict after {self._timeout} s; the call is left behind in a thread"
                self._finished.append((job.attempt, failure(cause, self._timeout)))
        self._left = [thread for thread in self._left if thread.is_alive()]
        if len(self._left) > MOST_LEFT:
            raise BranchRTError(
                f"{len(self._left)} calls have not returned long after their {self._timeout} s; a "
                "thread cannot be ended: let a `PoolVerifier` verify, which ends processes"
            )
        self._start_threads()
        return bool(late)


class CallableVerifier(ThreadedVerifier):
    """Verifies by calling a function in threads.

    An exception, or an answer that `read_verdict` does not know, is an infrastructure failure.

    Args:
        function: `function(task, candidate)` returns a bool, a number or a `Verdict`.
        tasks: What stands for a root: `tasks[root]`; its index if None.
        candidates: What stands for a candidate, likewise.
        threads, capacity, timeout: See `ThreadedVerifier`.
        version: What verdicts depend on; by default the function's name, so that another function
            is another verifier. Change it when the function is changed.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], object],
        *,
        tasks: Sequence[Any] | None = None,
        candidates: Sequence[Any] | None = None,
        threads: int = 1,
        capacity: int | None = None,
        timeout: float | None = None,
        version: str | None = None,
    ) -> None:
        """Keeps the function; calls come with `submit`."""
        super().__init__(
            threads=threads,
            capacity=capacity,
            timeout=timeout,
            version=function_name(function) if version is None else version,
        )
        self._function = function
        self._names = Names(tasks, candidates)

    def verify_one(self, attempt: Attempt) -> Verdict:
        """Calls the function."""
        task, candidate = self._names.of(attempt)
        begin = time.perf_counter()
        answer = self._function(task, candidate)
        return read_verdict(answer, time.perf_counter() - begin)
