"""MuJoCo: the whole `MjData` copied into a kept one, and every layer's Python state beside it.

Nothing less is exact. `set_state(qpos, qvel)` forgets the solver's warm start, and every state
vector forgets the derived arrays, which lag the positions by a substep and from which Ant and
Humanoid compute their first reward. To allocate takes many times as long as the copy itself, so
what a branch or a snapshot leaves behind is kept for the next.

The `MjModel` is shared by all branches, unless an environment writes to it as it runs (random
masses or friction, say): give `provider=Mujoco(own_models=True)` then. `verify` finds it out.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from branchrt_gym.wrappers.snapshots import SnapshotProvider, environments
from branchrt_gym.wrappers.structural import Copying, Handler, Saved

__all__ = ["Mujoco"]


class Slots:
    """The `MjData` that nobody uses any more, by model."""

    def __init__(self) -> None:
        """Starts empty."""
        self._kept: dict[int, tuple[Any, list[Any]]] = {}
        self._owned: dict[weakref.ref[Any], Any] = {}
        self._alone = 0

    def filled(self, data: Any, model: Any) -> Any:
        """Returns a copy of an `MjData`, for its model in a kept one if there is one."""
        if model is not data.model:
            twin = type(data)(model)
            sys.modules["mujoco"].mj_copyData(twin, model, data)
            return twin
        kept = self._kept.get(id(model))
        if kept is None:
            kept = self._kept[id(model)] = (model, [])
        twin = None
        for _ in range(len(kept[1])):
            candidate = kept[1].pop()
            if self._references(candidate) <= self._alone:
                twin = candidate
                break
            kept[1].insert(0, candidate)  # someone looks at it, through its positions for example
        if twin is None:
            # The roots of a population have a model each: in the place of one kept for another, so
            # that no more are held than were ever in use at once.
            longest = max((held for _, held in self._kept.values()), key=len)
            del longest[-1:]
            twin = type(data)(model)
            if not self._alone:
                self._alone = self._references(twin)
        sys.modules["mujoco"].mj_copyData(twin, model, data)
        return twin

    def keep_after(self, owner: Any, data: Any) -> None:
        """Keeps an `MjData` for others as soon as its owner goes."""
        self._owned[weakref.ref(owner, self._give_back)] = data

    def _give_back(self, owner: weakref.ref[Any]) -> None:
        data = self._owned.pop(owner)
        kept = self._kept.get(id(data.model))
        if kept is not None:
            kept[1].append(data)

    @staticmethod
    def _references(data: Any) -> int:
        arrays = (data.qpos, data.qvel, data.xpos, data.sensordata)
        return sys.getrefcount(data) + sum(map(sys.getrefcount, arrays))


class SavedData(Saved):
    """A snapshot's `MjData`."""

    def __init__(self, data: Any, slots: Slots) -> None:
        """Gives its `MjData` back when it goes."""
        self.data = data
        self.slots = slots
        slots.keep_after(self, data)

    def fits(self, part: object) -> bool:
        """Whether a part is of the same model."""
        return getattr(part, "model", None) is self.data.model and type(part) is type(self.data)

    def into(self, part: Any, run: Copying) -> None:
        """Copies into an `MjData`."""
        sys.modules["mujoco"].mj_copyData(part, self.data.model, self.data)

    def new(self, run: Copying) -> Any:
        """Returns another `MjData`."""
        return self.slots.filled(self.data, run.copy(self.data.model))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the data, with its model."""
        return _saved_data, (self.data,)


def _saved_data(data: Any) -> SavedData:
    return SavedData(data, Slots())


class SavedRenderer(Saved):
    """A renderer without its windows, which stay where they are."""

    def __init__(self, kind: type, attributes: dict[str, Any]) -> None:
        """Keeps the settings."""
        self.kind = kind
        self.attributes = attributes

    def fits(self, part: object) -> bool:
        """Whether a part renders the same model."""
        return type(part) is self.kind and vars(part)["model"] is self.attributes["model"]

    def into(self, part: Any, run: Copying) -> None:
        """Leaves the renderer as it is: it draws what its `MjData` says."""

    def new(self, run: Copying) -> Any:
        """Returns a renderer that opens its windows when it is used."""
        twin: Any = object.__new__(self.kind)
        twin.__dict__.update({name: run.copy(value) for name, value in self.attributes.items()})
        return twin


class Mujoco(SnapshotProvider):
    """Environments on the `mujoco` package: Gymnasium's own, their subclasses, and others.

    Args:
        share: See `SnapshotProvider`.
        own_models: Whether each copy gets an `MjModel` of its own, for environments that write to
            theirs; a copy then takes milliseconds.
    """

    name = "mujoco"

    def __init__(self, share: Sequence[object] = (), own_models: bool = False) -> None:
        """Starts without kept `MjData`."""
        self._own_models = own_models
        super().__init__(share)

    def foreign(self) -> dict[type, Handler]:
        """`MjData` in kept slots, `MjModel` shared, renderers without their windows."""
        mujoco = sys.modules.get("mujoco")
        if mujoco is None:
            return {}
        slots = Slots()
        self._met = False

        def data(value: Any, run: Copying) -> Any:
            self._met = True
            filled = slots.filled(value, run.copy(value.model))
            twin: Any = SavedData(filled, slots) if run.saving else filled
            run.memo[id(value)] = twin
            return twin

        def model(value: Any, run: Copying) -> Any:
            twin = run.memo[id(value)] = copy.copy(value) if self._own_models else value
            return twin

        self._slots = slots
        kinds: dict[type, Handler] = {mujoco.MjData: data, mujoco.MjModel: model}
        rendering = sys.modules.get("gymnasium.envs.mujoco.mujoco_rendering")
        if rendering is not None:
            kinds[rendering.MujocoRenderer] = _renderer
        return kinds

    def fits(self, env: Any) -> str | None:
        """Returns why not: no `MjData` anywhere, or another part that cannot be copied."""
        if "mujoco" not in sys.modules:
            return "it is no environment of the `mujoco` package"
        self._met = False
        why = super().fits(env)
        return why if why or self._met else "no part of it is an `MjData`"

    def copy(self, env: Any, key: int | None = None) -> Any:
        """Copies, and sees to it that the copy's `MjData` is kept when the copy goes."""
        twin = super().copy(env, key)
        for each in environments(twin):
            data = vars(each).get("data")
            if data is not None and type(data).__name__ == "MjData":
                self._slots.keep_after(each, data)
        return twin


def _renderer(value: Any, run: Copying) -> Any:
    kind = type(value)
    attributes = vars(value) | {"_viewers": {}, "viewer": None}
    twin: Any = SavedRenderer(kind, {}) if run.saving else object.__new__(kind)
    run.memo[id(value)] = twin
    filled = twin.attributes if run.saving else vars(twin)
    filled.update({name: run.copy(item) for name, item in attributes.items()})
    return twin
