"""Copies of values: containers, arrays that share memory, instances of classes."""

from __future__ import annotations

import copyreg
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from branchrt_gym.wrappers.kinds import PLAIN, Refusal, full_name, is_ez_pickle

if TYPE_CHECKING:
    from branchrt_gym.wrappers.structural import Copying, Handler

__all__ = ["by_deepcopy", "by_pickle", "handlers", "instance", "named", "same"]


def same(value: Any, run: Copying) -> Any:
    """Shares a value that never changes."""
    return value


def named(value: Any) -> str:
    """Names a value's class, in backticks."""
    return f"`{full_name(type(value)).removeprefix('builtins.')}`"


def _list(value: list[Any], run: Copying) -> list[Any]:
    run.memo[id(value)] = twin = value.copy()
    i = 0
    try:
        for i, item in enumerate(value):
            if type(item) not in PLAIN:
                twin[i] = run.copy(item)
    except Refusal as refusal:
        refusal.add(f"[{i}]")
        raise
    return twin


def _tuple(value: tuple[Any, ...], run: Copying) -> tuple[Any, ...]:
    for item in value:
        if type(item) not in PLAIN:
            break
    else:
        return value
    parts = [run.copy(item) for item in value]
    changed = any(a is not b for a, b in zip(parts, value, strict=True))
    # If the tuple holds itself, the way there has made the copy already.
    return run.memo.setdefault(id(value), tuple(parts) if changed else value)  # type: ignore[no-any-return]


def _dict(value: dict[Any, Any], run: Copying) -> dict[Any, Any]:
    run.memo[id(value)] = twin = {}
    name = None
    try:
        for name, item in value.items():
            key = name if type(name) in PLAIN else run.copy(name)
            twin[key] = item if type(item) in PLAIN else run.copy(item)
    except Refusal as refusal:
        refusal.add(f"[{name!r}]")
        raise
    return twin


def _set(value: set[Any], run: Copying) -> set[Any]:
    parts = [run.copy(item) for item in value]
    if any(a is not b for a, b in zip(parts, value, strict=True)):
        twin = set(parts)  # of objects, whose order is that of their addresses
    else:
        # The order of iteration is state: an environment may draw from `list(cells)`.
        twin = value.copy()
        if list(twin) != parts:
            twin = set(parts)
        if list(twin) != parts:
            raise Refusal(
                "is a set from which elements were removed; no copy of it has the same order of "
                "iteration, which the future may depend on. Keep a dict with None for values, or a "
                "sorted list, in its place"
            )
    run.memo[id(value)] = twin
    return twin


def _frozenset(value: frozenset[Any], run: Copying) -> frozenset[Any]:
    parts = [run.copy(item) for item in value]
    if any(a is not b for a, b in zip(parts, value, strict=True)):
        return frozenset(parts)
    return value


def _deque(value: deque[Any], run: Copying) -> deque[Any]:
    run.memo[id(value)] = twin = deque[Any]((), value.maxlen)
    twin.extend([run.copy(item) for item in value])
    return twin


def _bytearray(value: bytearray, run: Copying) -> bytearray:
    run.memo[id(value)] = twin = bytearray(value)
    return twin


def _proxy(value: types.MappingProxyType[Any, Any], run: Copying) -> Any:
    import gc

    run.memo[id(value)] = twin = types.MappingProxyType(run.copy(gc.get_referents(value)[0]))
    return twin


def _array(value: np.ndarray, run: Copying) -> np.ndarray:
    """Copies an array; views of one array stay views of one array."""
    base = value.base
    if value.dtype.hasobject:
        twin = value.copy("K")
        run.memo[id(value)] = twin
        for place in np.ndindex(twin.shape):
            twin[place] = run.copy(value[place])
        return twin
    if base is None:
        if not value.flags.writeable:
            return value
        run.memo[id(value)] = twin = value.copy("K")
        return twin
    # 3: what `value` holds, the local name, and the argument of the call.
    if type(base) is np.ndarray and base.base is None and sys.getrefcount(base) > 3:
        twin_base = run.copy(base)
        if twin_base is not base:
            offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
            twin = np.ndarray(value.shape, value.dtype, twin_base, offset, value.strides)
            twin.flags.writeable = value.flags.writeable
            run.memo[id(value)] = twin
            return twin
        return value
    run.memo[id(value)] = twin = value.copy("K")
    if not value.flags.writeable:
        twin.flags.writeable = False
    return twin


def _void(value: np.void, run: Copying) -> np.void:
    run.memo[id(value)] = twin = value.copy()
    return twin


def instance(value: Any, run: Copying) -> Any:
    """Copies an instance of a Python class by its attributes, without calling the class."""
    run.memo[id(value)] = twin = object.__new__(type(value))
    twin.__dict__.update(run.attributes(value))
    return twin


def by_deepcopy(value: Any, run: Copying) -> Any:
    """Copies by a class's own `__deepcopy__`."""
    try:
        twin = value.__deepcopy__(run.memo)
    except Exception as error:
        raise Refusal(f"is a {named(value)}, whose `__deepcopy__` fails: {error}") from error
    run.memo[id(value)] = twin
    return twin


def by_pickle(value: Any, run: Copying) -> Any:
    """Copies by the pickle protocol, where a class has its own words there, or slots."""
    if is_ez_pickle(type(value)):
        raise Refusal(f"is a {named(value)}, an `EzPickle`, which pickles without its state")
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        recipe = run.keep(reduce(value) if reduce else value.__reduce_ex__(4))
    except Exception as error:
        raise Refusal(f"is a {named(value)}, which cannot be copied: {error}") from error
    if isinstance(recipe, str):  # the name of a global
        return value
    make, arguments, state, items, pairs = (*recipe, None, None, None)[:5]
    twin = make(*[run.copy(argument) for argument in arguments])
    run.memo[id(value)] = twin
    if state is not None:
        state = run.copy(state)
        if hasattr(twin, "__setstate__"):
            twin.__setstate__(state)
        else:
            plain, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
            if plain:
                twin.__dict__.update(plain)
            for name, content in (slots or {}).items():
                setattr(twin, name, content)
    for item in items or ():
        twin.append(run.copy(item))
    for name, item in pairs or ():
        twin[run.copy(name)] = run.copy(item)
    return twin


def handlers() -> dict[type, Handler]:
    """Returns how Python's containers and NumPy's arrays are copied."""
    return {
        list: _list,
        tuple: _tuple,
        dict: _dict,
        set: _set,
        frozenset: _frozenset,
        deque: _deque,
        bytearray: _bytearray,
        types.MappingProxyType: _proxy,
        np.ndarray: _array,
        np.void: _void,
    }
