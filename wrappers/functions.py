"""Functions in a wrapper stack: those that hold or read an environment are bound to the copy."""

from __future__ import annotations

import types
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import VectorEnv

if TYPE_CHECKING:
    from branchrt_gym.wrappers.structural import Copying, Handler

__all__ = ["handlers"]


class _Overlay(dict[str, Any]):
    """A function's globals, some of them replaced; the others are read where they are."""

    def __init__(self, below: dict[str, Any]) -> None:
        super().__init__(__builtins__=below.get("__builtins__"))
        self._below = below

    def __missing__(self, name: str) -> Any:
        return self._below[name]


@lru_cache(4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """The names that a function, and those defined in it, may read from its globals."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def _in_stack(value: Any, run: Copying) -> bool:
    while isinstance(value, gymnasium.Env | VectorEnv):
        if id(value) in run.memo:
            return True
        value = value.__dict__.get("env")
    return False


def _reading(function: types.FunctionType, run: Copying) -> dict[str, Any]:
    """The globals through which a function reads the stack, directly or by global functions."""
    reached: dict[str, Any] = {}
    reads = False
    waiting = [function]
    while waiting:
        read = waiting.pop()
        for name in _names(read.__code__):
            value = read.__globals__.get(name)
            if name in reached:
                continue
            if isinstance(value, types.FunctionType) and value.__globals__ is function.__globals__:
                reached[name] = value
                waiting.append(value)
            elif _in_stack(value, run):
                reached[name] = value
                reads = True
    return reached if reads else {}


def _twin(function: types.FunctionType, run: Copying, names: dict[str, Any]) -> types.FunctionType:
    """Makes the copy of a function first, then of what it holds, which may lead back to it."""
    fresh = []
    cells = []
    for cell in function.__closure__ or ():
        new = run.memo.get(id(cell))
        if new is None:
            run.memo[id(cell)] = new = types.CellType()
            fresh.append((cell, new))
        cells.append(new)
    space = _Overlay(function.__globals__) if names else function.__globals__
    twin = types.FunctionType(
        function.__code__, space, function.__name__, None, tuple(cells) or None
    )
    run.memo[id(function)] = twin
    for cell, new in fresh:
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        with run.at(f"the closure of `{function.__qualname__}`"):
            new.cell_contents = run.copy(content)
    for name, value in names.items():
        if isinstance(value, types.FunctionType) and id(value) not in run.memo:
            space[name] = _rebound(value, run, space)
        else:
            space[name] = run.copy(value)
    _dress(twin, function, run)
    return twin


def _rebound(function: types.FunctionType, run: Copying, space: dict[str, Any]) -> Any:
    twin = types.FunctionType(
        function.__code__, space, function.__name__, None, function.__closure__
    )
    run.memo[id(function)] = twin
    _dress(twin, function, run)
    return twin


def _dress(twin: types.FunctionType, function: types.FunctionType, run: Copying) -> None:
    twin.__defaults__ = run.copy(function.__defaults__)
    twin.__kwdefaults__ = run.copy(function.__kwdefaults__)
    twin.__dict__.update(run.copy(function.__dict__))
    twin.__qualname__ = function.__qualname__
    twin.__module__ = function.__module__
    twin.__doc__ = function.__doc__
    twin.__annotations__ = function.__annotations__


def _function(function: types.FunctionType, run: Copying) -> types.FunctionType:
    names = _reading(function, run)
    if (
        names
        or function.__closure__
        or function.__dict__
        or any(type(value) not in run.plain for value in function.__defaults__ or ())
        or function.__kwdefaults__
    ):
        return _twin(function, run, names)
    return function


def _method(method: types.MethodType, run: Copying) -> types.MethodType:
    owner = method.__self__
    function = method.__func__
    twin = run.copy(owner)
    if getattr(type(owner), method.__name__, None) is not function:
        function = run.copy(function)
    new = method if twin is owner and function is method.__func__ else type(method)(function, twin)
    run.memo[id(method)] = new
    return new


def _builtin(method: Any, run: Copying) -> Any:
    """A method of a C object, `rng.integers` kept in an attribute for example."""
    owner = getattr(method, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType | type):
        return method
    twin = run.copy(owner)
    new = method if twin is owner else getattr(twin, method.__name__)
    run.memo[id(method)] = new
    return new


def _reference(reference: Any, run: Copying) -> Any:
    target = reference()
    twin = run.copy(target)
    return reference if twin is target else weakref.ref(twin)


def handlers() -> dict[type, Handler]:
    """Returns how functions, methods and weak references are copied."""
    return {
        types.FunctionType: _function,
        types.MethodType: _method,
        types.BuiltinMethodType: _builtin,
        types.MethodWrapperType: _builtin,
        weakref.ReferenceType: _reference,
    }
