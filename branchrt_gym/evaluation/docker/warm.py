"""Clean, paused containers kept ready, so that making one is off the critical path."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable

from branchrt_gym.evaluation.docker.container import Container, Spec
from branchrt_gym.evaluation.docker.engine import Engine, EngineError
from branchrt_gym.evaluation.docker.evaluation import EVALUATE

__all__ = ["WarmPool"]

REST = 1.0  # seconds between tries while the engine refuses
LATER = 0.3  # seconds before a container is replaced: not while the evaluation in it starts


class WarmPool:
    """Keeps at most `size` paused containers, for the specs wanted last.

    In each the evaluation's shell has been started and waits for its input. A container is used
    once. A thread makes the next one in its place; while it cannot keep up,
    `take` has none and a container is made in line. With fewer specs than `size` each has an equal
    share; with more, those wanted last have one each.

    Attributes:
        taken: Containers given out so far.

    Args:
        engine: Where they are made.
        size: Containers kept ready; 0 for none.
        seeds: See `Container`.
    """

    def __init__(
        self, engine: Engine, size: int, seeds: dict[tuple[str, str], bytes] | None = None
    ) -> None:
        """Starts the thread, if there is anything for it to do."""
        if size < 0:
            raise ValueError(f"`size` is {size}; expected 0 or more containers")
        self.taken = 0
        self._engine, self._size, self._seeds = engine, size, seeds
        self._taken: deque[float] = deque()  # when, of those not to be replaced yet
        self._ready: OrderedDict[Spec, list[Container]] = OrderedDict()  # wanted last at the end
        self._change = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, daemon=True, name="branchrt warm pool")
        if size:
            self._thread.start()

    def want(self, specs: Iterable[Spec]) -> None:
        """Says what will be taken soon."""
        with self._change:
            for spec in specs:
                self._ready.setdefault(spec, [])
                self._ready.move_to_end(spec)
            self._change.notify_all()

    def take(self, spec: Spec) -> Container | None:
        """Returns a running container of the spec, which is the caller's now; None if none is."""
        while True:
            with self._change:
                ready = self._ready.get(spec)
                container = ready.pop(0) if ready else None
                if container is not None:
                    self._taken.append(time.monotonic())
                self._change.notify_all()
            if container is None:
                return None
            try:
                container.resume()
                self.taken += 1
                return container
            except EngineError:  # the engine was restarted, or someone removed it
                self._drop(container)

    def count(self, spec: Spec) -> int:
        """Returns how many of a spec are ready."""
        with self._change:
            return len(self._ready.get(spec, ()))

    def close(self) -> None:
        """Removes what is ready; may be called again."""
        self._closed.set()
        with self._change:
            self._change.notify_all()
        if self._size:
            self._thread.join()
        for ready in self._ready.values():
            while ready:
                self._drop(ready.pop())

    def _fill(self) -> None:
        while not self._closed.is_set():
            with self._change:
                while self._taken and self._taken[0] + LATER <= time.monotonic():
                    self._taken.popleft()
                spec, spare = self._next()
                if spec is None:
                    self._change.wait(LATER if self._taken else None)
                    continue
            if spare is not None:
                self._drop(spare)
            try:
                container = Container(self._engine, spec, "warm", self._seeds)
            except EngineError:
                self._closed.wait(REST)
                continue
            try:
                container.prepare(EVALUATE)
                container.pause()
            except EngineError:
                self._drop(container)
                continue
            with self._change:
                self._ready.setdefault(spec, []).append(container)
                self._change.notify_all()

    def _next(self) -> tuple[Spec | None, Container | None]:
        """Returns the spec to make one of, and one to give up for it."""
        total = sum(map(len, self._ready.values())) + len(self._taken)
        share = max(1, self._size // max(1, len(self._ready)))
        for place, spec in enumerate(reversed(self._ready)):
            if place * share >= self._size:
                break
            if len(self._ready[spec]) < share:
                if total < self._size:
                    return spec, None
                oldest = next((each for each in self._ready.values() if each), None)
                return (None, None) if oldest is None or self._taken else (spec, oldest.pop(0))
        return None, None

    def _drop(self, container: Container) -> None:
        try:
            container.remove()
        except EngineError:
            pass  # it bears our label: the reaper finds it
