"""Copies of a whole wrapper stack, layer by layer, exact down to its random state.

`copy.deepcopy` asks a class how it wants to be copied, and Gymnasium's `EzPickle` answers with the
constructor's arguments: the copy is a new environment, silently. It also shares functions, and with
them the environment that they hold, and stops at the first pygame clock. Here a layer is its class
and its attributes, and everything that they reach is copied by its kind; what cannot be copied
exactly is refused, by name.
"""

from __future__ import annotations

import copyreg
import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from branchrt_gym.oracle import Oracle, fold
from branchrt_gym.wrappers import functions, luck, values
from branchrt_gym.wrappers.kinds import (
    NO_COPY,
    PLAIN,
    Refusal,
    full_name,
    has_slots,
    is_ez_pickle,
    is_plain_instance,
    module_of,
    own_pickle,
)

__all__ = ["Copying", "Handler", "Saved", "Table", "copies_layer", "is_layer", "layers"]

Handler = Callable[[Any, "Copying"], Any]

# Pictures that an environment draws anew when it finds None in their place.
CANVASES = frozenset({"screen", "surf", "surface", "window", "window_surface", "canvas"})
TOY_TEXT = "gymnasium.envs.toy_text."
_LAYERS = (gymnasium.Env, VectorEnv)  # a tuple: half the time of a union
_MISSING = object()


def is_layer(value: Any) -> bool:
    """Whether a value is an environment or a wrapper of one, single or vector."""
    return isinstance(value, _LAYERS)


def layers(env: Any) -> list[Any]:
    """Returns an environment and everything that it wraps, the outermost first.

    In a snapshot the last one may be a `Saved`.
    """
    found = [env]
    while isinstance(env, _LAYERS) and "env" in env.__dict__:
        env = env.__dict__["env"]
        found.append(env)
    return found


class Saved:
    """What a snapshot keeps of a part that lives outside Python."""

    def fits(self, part: object) -> bool:
        """Whether `into` can write this state into a part."""
        return False

    def stands_for(self, part: Any) -> dict[int, Any]:
        """Returns, by id, what else in the snapshot a live part takes the place of."""
        return {}

    def into(self, part: Any, run: Copying) -> None:
        """Writes this state into a part."""
        raise NotImplementedError

    def new(self, run: Copying) -> Any:
        """Returns a new part in this state."""
        raise NotImplementedError


class Table(dict[type, Handler]):
    """How each kind of value is copied; kinds that it meets for the first time are looked into.

    Args:
        foreign: Handlers of parts that live outside Python, which a provider brings.
        share: Objects that copies hold in common, and names of such attributes.
    """

    def __init__(
        self, foreign: dict[type, Handler] | None = None, share: Sequence[object] = ()
    ) -> None:
        """Starts with Python's and NumPy's kinds."""
        super().__init__(values.handlers() | luck.handlers() | functions.handlers())
        self._foreign = foreign or {}
        self.update(self._foreign)
        self.shared_names = frozenset(name for name in share if isinstance(name, str))
        self.shared = tuple(part for part in share if not isinstance(part, str))

    def __missing__(self, kind: type) -> Handler:
        """Finds the handler of a new kind and keeps it."""
        self[kind] = handler = self._find(kind)
        return handler

    def _find(self, kind: type) -> Handler:
        for base in kind.__mro__:
            why = NO_COPY.get(full_name(base))
            if why is not None:
                return _refuse(why)
        if issubclass(kind, type | enum.Enum):
            return values.same
        for base in kind.__mro__:
            if base in self._foreign:
                return self._foreign[base]
        if issubclass(kind, Saved):
            return _saved
        if issubclass(kind, Oracle):
            return _oracle
        if issubclass(kind, np.generic):
            return self[np.void] if issubclass(kind, np.void) else values.same
        if hasattr(kind, "__deepcopy__") and not issubclass(kind, np.ndarray):
            return values.by_deepcopy
        if issubclass(kind, gymnasium.Env | VectorEnv):
            theirs = own_pickle(kind)
            ours = is_ez_pickle(kind) or theirs.startswith("gymnasium.") or not theirs
            return _layer if ours and not has_slots(kind) else values.by_pickle
        if issubclass(kind, Space) and module_of(kind).startswith("gymnasium.spaces"):
            return _space
        if module_of(kind).startswith("pygame"):
            return _picture
        if kind in copyreg.dispatch_table or not is_plain_instance(kind):
            return values.by_pickle
        if hasattr(kind, "__del__"):
            return _refuse(
                f"is a `{full_name(kind)}`, which frees something when it "
                "goes (`__del__`) that a copy would free again"
            )
        return values.instance


class Copying:
    """One pass over a stack.

    Attributes:
        memo: What was copied already, by id; as `copy.deepcopy` keeps it, which a class's own
            `__deepcopy__` is given.
        key: The key that every random source gets fresh luck from; None for exact copies.
        saving: Whether the copy is for a snapshot, which is never stepped.
        trial: Whether it is only to find out what can be copied; seeds no random source.
        plain: Types whose values are immutable.
    """

    plain = PLAIN

    def __init__(
        self,
        table: Table,
        key: int | None = None,
        saving: bool = False,
        trial: bool = False,
    ) -> None:
        """Starts with nothing copied but what is shared."""
        self.memo: dict[int, Any] = {id(part): part for part in table.shared}
        self.key = key
        self.saving = saving
        self.trial = trial
        self.table = table
        self._draws = 0
        self._temporary: list[Any] = []

    def draw_seed(self) -> int:
        """Returns the seed of the next random source, 64 bits made from the key."""
        assert self.key is not None
        self._draws += 1
        return fold(self.key, luck.LUCK + self._draws - 1)

    def keep(self, value: Any) -> Any:
        """Keeps a temporary object until the pass ends, so that its id stands for it alone."""
        self._temporary.append(value)
        return value

    @contextmanager
    def at(self, where: str) -> Iterator[None]:
        """Adds where something lies to a refusal from inside."""
        try:
            yield
        except Refusal as refusal:
            refusal.add(where)
            raise

    def copy(self, value: Any) -> Any:
        """Returns the copy of a value, one and the same all through the pass."""
        kind = type(value)
        if kind in PLAIN:
            return value
        twin = self.memo.get(id(value), _MISSING)
        if twin is not _MISSING:
            return twin
        return self.table[kind](value, self)

    def attributes(self, owner: Any) -> dict[str, Any]:
        """Returns the copies of an object's attributes."""
        given = owner.__dict__
        twin: dict[str, Any] = given.copy()
        memo, table = self.memo, self.table
        name = ""
        try:
            for name, value in given.items():
                kind = type(value)
                if kind not in PLAIN:  # as `copy`, whose call would be a third of the time
                    part = memo.get(id(value), _MISSING)
                    twin[name] = table[kind](value, self) if part is _MISSING else part
        except Refusal as refusal:
            refusal.add(f".{name}")
            raise
        return twin

    def layer_attributes(self, layer: Any) -> dict[str, Any]:
        """Returns the copies of a layer's attributes: pictures left behind, tables shared."""
        given = layer.__dict__
        memo = self.memo
        left = []
        for name in CANVASES:
            if name in given and module_of(type(given[name])).startswith("pygame"):
                memo[id(given[name])] = None
                left.append(name)
        for name in self.table.shared_names:
            if name in given:
                memo[id(given[name])] = given[name]
        if type(layer).__module__.startswith(TOY_TEXT):
            for name in given:
                if name == "P" or "_img" in name:
                    memo[id(given[name])] = given[name]
        innermost = "env" not in given and "envs" not in given
        if innermost and not self.trial and getattr(layer, "_np_random", self) is None:
            layer.np_random  # noqa: B018 - seeds it, once; else each copy would seed its own
        try:
            twin = self.attributes(layer)
        except Refusal as refusal:
            refusal.close(type(layer).__name__)
            raise
        if innermost:
            for name in ("action_space", "observation_space"):
                space = None if name in given else getattr(type(layer), name, None)
                if isinstance(space, Space):  # the class's: its random state is no branch's
                    twin[name] = self.copy(space)
        for name in left:
            if _asks_for(type(layer), name):  # type: ignore[arg-type]
                del twin[name]
        if self.key is not None and "_np_random_seed" in twin:
            twin["_np_random_seed"] = -1  # Gymnasium's word for a source that no seed gives
        return twin


def copies_layer(table: Table, kind: type) -> bool:
    """Whether a layer is copied by its attributes, not by words of its own."""
    return table[kind] is _layer


def _layer(env: Any, run: Copying) -> Any:
    """Copies a stack. All of its layers exist before any is filled: attributes lead to them."""
    found = []
    for layer in layers(env):
        if id(layer) in run.memo or run.table[type(layer)] is not _layer:
            break
        run.memo[id(layer)] = twin = object.__new__(type(layer))
        found.append((layer, twin))
    for layer, twin in reversed(found):
        twin.__dict__.update(run.layer_attributes(layer))
    return run.memo[id(env)]


@lru_cache(1024)
def _asks_for(kind: type, name: str) -> bool:
    """Whether a class finds out by `hasattr` that a picture is to be made, not by None."""
    return any(
        "hasattr" in value.__code__.co_names and name in value.__code__.co_consts
        for base in kind.__mro__
        for value in vars(base).values()
        if isinstance(value, FunctionType)
    )


def _oracle(value: Oracle[Any, Any], run: Copying) -> Any:
    twin = values.by_deepcopy(value, run)
    if run.key is not None:
        twin.key, twin.forks = run.key, 0
    return twin


def _space(space: Any, run: Copying) -> Any:
    """Copies a space: its random state and subspaces; the bounds are immutable and shared."""
    run.memo[id(space)] = twin = object.__new__(type(space))
    attributes = twin.__dict__
    attributes.update(space.__dict__)
    for name, value in space.__dict__.items():
        kind = type(value)
        if kind not in PLAIN and kind is not np.ndarray:
            attributes[name] = run.copy(value)
    return twin


def _picture(value: Any, run: Copying) -> Any:
    """Copies what pygame has: surfaces by their pixels, clocks as new ones; fonts are shared."""
    kind = type(value).__name__
    twin = value.copy() if hasattr(value, "copy") else type(value)() if kind == "Clock" else value
    run.memo[id(value)] = twin
    return twin


def _saved(value: Saved, run: Copying) -> Any:
    run.memo[id(value)] = twin = value if run.saving else value.new(run)
    return twin


def _refuse(why: str) -> Handler:
    def refuse(value: Any, run: Copying) -> Any:
        raise Refusal(why)

    return refuse
