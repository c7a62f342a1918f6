"""What dropped sessions leave in an engine, and its removal."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable

from branchrt_gym.evaluation.docker.engine import ATTEMPT, RUN, Engine, EngineError

__all__ = ["Leavings"]

Append = Callable[[tuple[int, str]], None]


class Leavings:
    """Removes containers and images of one label: those whose owner is gone, and all at the end.

    Args:
        engine: Where they are.
        what: The label that they have beside the run's.
        owner: With which all goes, if nobody calls `close` before; at the latest when Python ends.
        own: Whether the engine's connection ends with them.
    """

    def __init__(self, engine: Engine, what: str, owner: object, own: bool) -> None:
        """Removes what dead owners left."""
        while engine.reap():  # an image goes after those that stand on it
            pass
        self.engine = engine
        self._gone: deque[tuple[int, str]] = deque()
        self._all = (engine, what, own)
        self._end = weakref.finalize(owner, _remove_quietly, *self._all, os.getpid())

    @property
    def is_open(self) -> bool:
        """Whether `close` was not called yet."""
        return self._end.alive

    def when_gone(self, owner: object, names: list[str], *, images: bool = False) -> None:
        """Removes containers, or images, when the object that they belong to is gone."""
        # Objects go at any moment, also in the middle of a call to the engine: this only notes it.
        weakref.finalize(owner, _note, self._gone.append, int(images), names).atexit = False

    def sweep(self) -> None:
        """Removes what belonged to objects that are gone."""
        gone = []
        with contextlib.suppress(IndexError):
            while True:
                gone.append(self._gone.popleft())
        for is_image, name in sorted(gone):  # containers before the images that they use
            if is_image:
                _remove_image(self.engine, name)
            else:
                self.engine.remove(name)

    def close(self) -> None:
        """Removes everything; may be called again.

        Raises:
            EngineError: If the engine is away; then it is tried again when Python ends.
        """
        if self._end.alive:
            _remove_all(*self._all)
            self._end.detach()


def _note(append: Append, is_image: int, names: list[str]) -> None:
    for name in names:
        append((is_image, name))


def _remove_image(engine: Engine, name: str) -> None:
    """Takes an image's name away; the engine removes it when no other stands on it."""
    try:
        engine.call(engine.api.remove_image, name, force=True)
    except EngineError as error:
        if error.status != 404:
            raise


def _remove_quietly(engine: Engine, what: str, own: bool, process: int) -> None:
    """Removes what was not closed, if the engine is there; not in a process that was forked."""
    if os.getpid() == process:
        with contextlib.suppress(EngineError):
            _remove_all(engine, what, own)


def _remove_all(engine: Engine, what: str, own: bool) -> None:
    label = {"label": [f"{RUN}={engine.run}", f"{ATTEMPT}={what}"]}
    for each in engine.call(engine.api.containers, all=True, filters=label):
        engine.remove(each["Id"])
    for each in engine.call(engine.api.images, filters=label):
        for tag in each["RepoTags"] or ():
            _remove_image(engine, tag)
    if own:
        engine.close()
