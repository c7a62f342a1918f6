"""A worker of `PoolVerifier`; run as a file, so that it imports nothing but what a function needs.

Its arguments are three descriptors: of the pipe that jobs come by, a line each (job, root,
candidate); of the pipe that answers leave by, a JSON object a line; and of a file with `sys.path`,
pickled, and then the function, the tasks and the candidates, pickled too.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from queue import SimpleQueue
from typing import Any

TEXT = 2000  # characters of an error


def main(jobs: int, answers: int, payload: int) -> None:
    """Serves until the pipe of the jobs is closed, which also a killed parent does."""
    for descriptor in (jobs, answers, payload):
        os.set_inheritable(descriptor, False)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(jobs, lines), daemon=True).start()
    try:
        # Workers share the file's position, so none of them moves it.
        sys.path[:], pickled = pickle.loads(os.pread(payload, os.fstat(payload).st_size, 0))
        function, tasks, candidates = pickle.loads(pickled)
    except BaseException as error:
        _send(answers, {"unloadable": _describe(error)})
        return
    _send(answers, {"ready": True})
    own = os.getpid()
    while True:
        job, root, candidate = map(int, lines.get().split())
        begin = time.perf_counter()
        try:
            value = _plain(
                function(
                    root if tasks is None else tasks[root],
                    candidate if candidates is None else candidates[candidate],
                )
            )
            answer = {"job": job, "value": value}
        except BaseException as error:
            answer = {"job": job, "error": _describe(error)}
        if os.getpid() != own:
            os._exit(0)  # the function forked, and its child came back here
        _send(answers, {**answer, "seconds": time.perf_counter() - begin})


def _read(jobs: int, lines: SimpleQueue[str]) -> None:
    """Hands lines on; at their end ends this process and all that it started."""
    with os.fdopen(jobs, "r") as file:
        for line in file:
            lines.put(line)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _send(answers: int, message: dict[str, Any]) -> None:
    left = json.dumps(message).encode() + b"\n"
    while left:
        left = left[os.write(answers, left) :]


def _plain(value: Any) -> Any:
    """Returns an answer as JSON can carry it; what it cannot becomes an error."""
    if hasattr(value, "_asdict"):
        value = {name: _plain(each) for name, each in value._asdict().items()}
    elif type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    try:
        size = len(json.dumps(value))
    except Exception:
        raise _GarbageError(f"the answer is of type {type(value).__name__}") from None
    if size > 4 * TEXT:
        raise _GarbageError(f"the answer has {size:,} characters")
    return value


class _GarbageError(Exception):
    """The function returned what is no answer."""


def _describe(error: BaseException) -> str:
    if isinstance(error, _GarbageError):
        return f"garbage: {error}; expected a bool, a number or a Verdict"
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text[:TEXT]} ({frames[-1].name}, line {frames[-1].lineno})"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
