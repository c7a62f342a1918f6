"""Kinds of values: which are immutable, which have no copy, and how a class says it is copied."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import re
import types
import uuid

import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec, WrapperSpec

__all__ = [
    "NO_COPY",
    "PLAIN",
    "Refusal",
    "full_name",
    "has_slots",
    "is_ez_pickle",
    "is_plain_instance",
    "module_of",
    "own_pickle",
]

# Types whose values never change, so that the original serves as its own copy.
PLAIN: frozenset[type] = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, range, type, type(...)),
        *(type(NotImplemented), property, types.ModuleType, types.CodeType, re.Pattern),
        *(pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, uuid.UUID),
        *(decimal.Decimal, fractions.Fraction, torch.dtype, torch.device, torch.Size),
        *(kind for kind in set(np.sctypeDict.values()) if kind not in (np.void, np.object_)),
        *(type(np.dtype(kind)) for kind in set(np.sctypeDict.values())),
        *(np.ufunc, EnvSpec, WrapperSpec),
    }
)

# By name, so that nothing is imported to find out that it is not there.
NO_COPY = {
    "threading.Thread": "runs on its own; no copy of it is possible",
    "_thread.lock": "is a lock, held or awaited by a thread",
    "_thread.RLock": "is a lock, held or awaited by a thread",
    "builtins.generator": "is a running generator, whose frame cannot be copied",
    "builtins.coroutine": "is a running coroutine, whose frame cannot be copied",
    "builtins.async_generator": "is a running generator, whose frame cannot be copied",
    "socket.socket": "is a connection, whose other end cannot be copied",
    "_socket.socket": "is a connection, whose other end cannot be copied",
    "_io.FileIO": "is an open file; copies would read and write at one position",
    "_io.TextIOWrapper": "is an open file; copies would read and write at one position",
    "_io.BufferedReader": "is an open file; copies would read and write at one position",
    "_io.BufferedWriter": "is an open file; copies would read and write at one position",
    "_io.BufferedRandom": "is an open file; copies would read and write at one position",
    "mmap.mmap": "is memory mapped from outside, which copies would share",
    "numpy.memmap": "is memory mapped from outside, which copies would share",
    "multiprocessing.shared_memory.SharedMemory": "is memory shared with other processes",
    "multiprocessing.process.BaseProcess": "is another process, whose state is out of reach",
    "multiprocessing.connection._ConnectionBase": "is a pipe, which copies would share",
    "multiprocessing.queues.Queue": "is a queue between processes, which copies would share",
    "subprocess.Popen": "is another process, whose state is out of reach",
    "concurrent.futures._base.Executor": "runs threads or processes of its own",
    "asyncio.events.AbstractEventLoop": "is a running event loop",
    "gymnasium.vector.async_vector_env.AsyncVectorEnv": (
        "steps its environments in other processes, whose state is out of reach; use "
        "`SyncVectorEnv`"
    ),
    "ale_py.vector_env.AtariVectorEnv": (
        "steps its emulators in C++ threads and has no call that saves them; use "
        "`SyncVectorEnv` over `gymnasium.make`"
    ),
    "envpool.python.envpool.EnvPoolMixin": (
        "steps its environments in C++ threads and has no call that saves them"
    ),
}


class Refusal(Exception):
    """Says why a value has no exact copy; on the way up it learns where the value lies."""

    def __init__(self, why: str) -> None:
        """Starts without a place."""
        super().__init__(why)
        self.why = why
        self.where = ""
        self._closed = False

    def add(self, part: str) -> None:
        """Puts a part in front of the place, unless the layer it lies in is known."""
        if not self._closed:
            between = " of " if not part.startswith((".", "[")) and self.where else ""
            self.where = f"{part}{between}{self.where}"

    def close(self, layer: str) -> None:
        """Names the layer that the place is in."""
        if not self._closed:
            self.where = f"`{layer}{self.where}`"
            self._closed = True

    def __str__(self) -> str:
        """Names the place and the reason."""
        return f"{self.where or 'it'} {self.why}"


def module_of(kind: type) -> str:
    """Returns the module of a class, which some that C code makes do not have."""
    return getattr(kind, "__module__", None) or ""


def full_name(kind: type) -> str:
    """Returns a class's name with its module's, as `NO_COPY` has it."""
    return f"{module_of(kind) or 'builtins'}.{kind.__qualname__}"


def is_ez_pickle(kind: type) -> bool:
    """Whether a class is pickled by its constructor's arguments, that is, without its state."""
    return any(base.__name__ == "EzPickle" for base in kind.__mro__)


def own_pickle(kind: type) -> str:
    """Names the module whose class says how this one is pickled; empty if none does."""
    plain = ("__reduce__", "__reduce_ex__", "__getstate__")
    for base in kind.__mro__[:-1]:
        names = base.__dict__.keys()
        if any(name in names for name in plain) or "__setstate__" in names:
            return module_of(base)
    return ""


def has_slots(kind: type) -> bool:
    """Whether instances keep attributes outside their `__dict__`."""
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        if {slots} if isinstance(slots, str) else set(slots) - {"__dict__", "__weakref__"}:
            return True
    return False


def is_plain_instance(kind: type) -> bool:
    """Whether a class is Python's, without slots and without words of its own on copying."""
    for base in kind.__mro__[:-1]:
        if base.__dict__.keys() & {"__getnewargs__", "__getnewargs_ex__"}:
            return False
    if has_slots(kind):
        return False
    if own_pickle(kind) and not is_ez_pickle(kind):
        return False
    try:
        return hasattr(object.__new__(kind), "__dict__")
    except TypeError:  # made by C code, or abstract
        return False
