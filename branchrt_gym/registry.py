"""Registration: one call makes an environment known to Gymnasium and to `certify`."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium

from branchrt_gym.checked import check_declaration
from branchrt_gym.contract import BranchEnv
from branchrt_gym.errors import ContractError
from branchrt_gym.oracle import Oracle
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["Registration", "register", "registrations"]


@dataclass(frozen=True)
class Registration:
    """A registered environment.

    Attributes:
        id: Its Gymnasium id.
        env_class: The batched rules; constructed with `kwargs` and `matrix` parameters.
        oracle_class: The scalar oracle; takes the same parameters.
        kwargs: Default constructor arguments of both.
        matrix: Values of constructor parameters that `certify` varies; under a name such as
            `"width,depth"`, tuples of values that belong together.
        full: Further or larger values of them, in place of `matrix`'s in the full matrix.
    """

    id: str
    env_class: type[BranchEnv]
    oracle_class: type[Oracle[Any, Any]]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    matrix: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    full: Mapping[str, Sequence[Any]] = field(default_factory=dict)


_REGISTRATIONS: dict[str, Registration] = {}


def register(
    id: str,
    env_class: type[BranchEnv],
    oracle_class: type[Oracle[Any, Any]],
    *,
    kwargs: Mapping[str, Any] | None = None,
    matrix: Mapping[str, Sequence[Any]] | None = None,
    full: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Registers an environment for `gymnasium.make` (the oracle) and `make_vec` (the batched form).

    Both are registered by the names of their classes, which must be importable, so that specs
    pickle and worker processes find them.

    Args:
        id: As Gymnasium's, such as `"branchrt/DeepTree-v0"`.
        env_class: The batched rules.
        oracle_class: The scalar oracle, with the same constructor parameters.
        kwargs: Default constructor arguments of both.
        matrix: Values of constructor parameters that `certify` varies; under a name such as
            `"width,depth"`, tuples of values that belong together.
        full: Further or larger values of them, in place of `matrix`'s in the full matrix.

    Raises:
        ContractError: If the declaration is wrong, naming the field or attribute.
        TypeError: If a class is of the wrong kind or cannot be imported by name.
    """
    if not (isinstance(env_class, type) and issubclass(env_class, BranchEnv)):
        raise TypeError(f"`env_class` is {env_class!r}; expected a subclass of BranchEnv")
    if not (isinstance(oracle_class, type) and issubclass(oracle_class, gymnasium.Env)):
        raise TypeError(f"`oracle_class` is {oracle_class!r}; expected a gymnasium.Env")
    for name, part in (("env_class", env_class), ("oracle_class", oracle_class)):
        if "<locals>" in part.__qualname__ or "." in part.__qualname__:
            raise TypeError(
                f"`{name}` is {part.__qualname__}; expected a class at the top level of a module, "
                "so that it can be imported by name"
            )
    given = dict(kwargs or {})
    env, oracle = env_class(**given), oracle_class(**given)
    check_declaration(env)
    varied = [("matrix", dict(matrix or {})), ("full", dict(full or {}))]
    for argument, parameters in varied:
        for names, values in parameters.items():
            for name, part in itertools.product(names.split(","), (env_class, oracle_class)):
                if name not in inspect.signature(part).parameters:
                    raise TypeError(
                        f"`{argument}` varies {name!r}, which {part.__name__} does not take; "
                        "expected constructor parameters of both classes"
                    )
            if not values:
                raise ValueError(f"`{argument}` has no values for {names!r}; expected one or more")
    for space in ("single_observation_space", "single_action_space"):
        ours, theirs = getattr(env, space), getattr(oracle, space.removeprefix("single_"))
        if ours != theirs:
            raise ContractError(f"`{space}` is {ours}, the oracle's is {theirs}; expected equals")
    gymnasium.register(
        id,
        entry_point=f"{oracle_class.__module__}:{oracle_class.__qualname__}",
        vector_entry_point=f"{__name__}:{env_class.__module__}.{env_class.__qualname__}",
        kwargs=given,
    )
    _REGISTRATIONS[id] = Registration(id, env_class, oracle_class, given, **dict(varied))


def registrations() -> dict[str, Registration]:
    """Returns what is registered, by id."""
    return dict(_REGISTRATIONS)


_VECTOR_ARGUMENTS = tuple(inspect.signature(BranchingVectorEnv).parameters)[1:]


def _make_vector(env_class: type[BranchEnv], **kwargs: Any) -> BranchingVectorEnv:
    """Constructs rules and population from the arguments that `make_vec` passes on."""
    vector = {name: kwargs.pop(name) for name in _VECTOR_ARGUMENTS if name in kwargs}
    return BranchingVectorEnv(env_class(**kwargs), **vector)


def __getattr__(name: str) -> Any:
    """Finds the vector entry point `"branchrt_gym.registry:package.module.Class"`.

    Gymnasium loads an entry point with `getattr(module, name)`; the name holds where the rules
    are, so that any process can load it without a registration having run there.
    """
    module, _, attribute = name.rpartition(".")
    if not module:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_make_vector, getattr(import_module(module), attribute))
