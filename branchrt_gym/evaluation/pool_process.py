"""A process of `PoolVerifier`, seen from the parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, BaseSelector
from typing import Any

from branchrt_gym.evaluation import pool_worker

__all__ = ["CRASH", "Worker"]

CRASH = "crash"

PIECE = 65_536  # bytes read at a time, and the longest line that is not garbage
TAIL = 1000  # bytes of its own output that are kept, for the cause of a crash


class Worker:
    """A process in a group and session of its own, which can be ended whatever it does.

    Attributes:
        ready: Whether it has loaded the function.
        job: The number of the job that it works on, or None.
        deadline: When it must be ready or have answered, by `time.monotonic`.
        broken: Why it is of no more use, or None.
    """

    def __init__(self, selector: BaseSelector, payload: int, start_timeout: float) -> None:
        """Starts it; the selector tells from then on when there is something to `read`."""
        self.ready = False
        self.job: int | None = None
        self.deadline = time.monotonic() + start_timeout
        self.broken: str | None = None
        self._selector = selector
        self._line, self._tail = b"", b""
        self._open: list[int] = []
        jobs, self._jobs = self._pipe()
        self._answers, answers = self._pipe()
        self._output, output = self._pipe()
        theirs = (jobs, answers, payload)
        try:
            # A program of its own, no fork: it inherits no thread, lock or CUDA context, and
            # -P keeps this folder off its path.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(pool_worker.__file__)), *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=theirs,
                start_new_session=True,
            )
        except BaseException:
            for descriptor in self._open:
                os.close(descriptor)
            raise
        for descriptor in (jobs, answers, output):
            os.close(descriptor)
            self._open.remove(descriptor)
        for descriptor in (self._answers, self._output):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, EVENT_READ, self)
        self._tells_end = hasattr(os, "pidfd_open")
        if self._tells_end:  # the pipes do not, where a process that it forked keeps them open
            self._open.append(os.pidfd_open(self.pid))
            selector.register(self._open[-1], EVENT_READ, self)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open += ends
        return ends

    @property
    def pid(self) -> int:
        """The process's id, and its group's."""
        return self._process.pid

    def give(self, job: int, root: int, candidate: int, timeout: float) -> None:
        """Gives it a job; a line fits into the pipe, so this does not wait."""
        self.job, self.deadline = job, time.monotonic() + timeout
        self._tail = b""
        with suppress(BrokenPipeError):  # then its end is read next
            os.write(self._jobs, f"{job} {root} {candidate}\n".encode())

    def read(self) -> list[dict[str, Any]]:
        """Returns what it answered, and notes its end or garbage in `broken`."""
        ended = self._ended()  # looked at first: what it wrote before its end is read below
        written = self._read_some(self._output)
        if written == b"":
            self._unwatch(self._output)
        self._tail = (self._tail + (written or b""))[-TAIL:]
        found = self._read_some(self._answers)
        *lines, self._line = (self._line + (found or b"")).split(b"\n")
        messages = []
        try:
            for line in lines:
                message = json.loads(line)
                if not isinstance(message, dict):
                    raise ValueError("no object")
                messages.append(message)
            if len(self._line) > PIECE:
                raise ValueError("a line without end")
        except ValueError:  # as is what json raises, of no JSON and of no text
            self.broken = "garbage: the worker wrote something else where its answers leave"
        if found == b"" or (found is None and ended):
            self.broken = self.broken or CRASH
        return messages

    def _read_some(self, descriptor: int) -> bytes | None:
        """Returns bytes; none at the end; None if there are none now."""
        with suppress(BlockingIOError):
            return os.read(descriptor, PIECE)
        return None

    def _ended(self) -> bool:
        """Looks without taking note, which would free the number of its group."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._tells_end and os.waitid(os.P_PID, self.pid, look) is not None

    def _unwatch(self, descriptor: int) -> None:
        with suppress(KeyError):
            self._selector.unregister(descriptor)

    def kill(self) -> str:
        """Ends it and all of its group at once; says how it ended, or had ended before.

        May be called again.
        """
        if self._open:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        if self._open:
            self._tail = (self._tail + (self._read_some(self._output) or b""))[-TAIL:]
        for descriptor in self._open:
            self._unwatch(descriptor)
            os.close(descriptor)
        self._open.clear()
        if code >= 0:
            return f"the worker ended with exit code {code}"
        with suppress(ValueError):
            return f"the worker was ended by {signal.Signals(-code).name}"
        return f"the worker was ended by signal {-code}"

    @property
    def told(self) -> str:
        """What it wrote last, as part of a cause."""
        text = self._tail.decode(errors="replace").strip()
        return f"; it last wrote: {text}" if text else ""
