"""What Stable-Baselines3 asks of the environments of a `VecEnv` besides steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env import VecEnv

__all__ = ["VectorEnvAttributes"]

Indices = int | Iterable[int] | None


class VectorEnvAttributes(VecEnv):
    """Attributes, methods and pictures of a Gymnasium vector environment, row by row.

    SyncVectorEnv and AsyncVectorEnv have an environment object for each row. Others have one for
    all: its attributes are each row's, and its methods are to be called on `envs` itself.

    Attributes:
        envs: The vector environment.
        slots: `[num_envs] int64`, where each row is in it.
    """

    envs: VectorEnv[Any, Any, Any]
    slots: np.ndarray

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Returns an attribute for each row: its environment's, or the one object's."""
        rows = list(self._get_indices(indices))
        if not self._has_objects and (layer := self._layer_with(attr_name)) is not None:
            return [getattr(layer, attr_name)] * len(rows)
        values = self._objects(attr_name).get_attr(attr_name)
        return [values[row] for row in rows]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of the rows' environments; of one object, for all rows or none."""
        rows = set(self._get_indices(indices))
        whole = rows == set(range(self.num_envs))
        if not self._has_objects and (layer := self._layer_with(attr_name)) is not None:
            if not whole:
                raise ValueError(
                    f"`indices` is {sorted(rows)}; expected None, since `{attr_name}` is of "
                    f"{layer}, one object for all rows"
                )
            setattr(layer, attr_name, value)
            return
        objects = self._objects(attr_name)
        values = [value] * self.num_envs if whole else list(objects.get_attr(attr_name))
        for row in rows:
            values[row] = value
        objects.set_attr(attr_name, values)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of the rows' environments."""
        rows = list(self._get_indices(indices))
        if method_name == "render" and not self._has_objects:
            return [self._frames()[row] for row in rows]
        objects = self._objects(method_name)
        if hasattr(objects, "envs"):
            methods = [objects.envs[row].get_wrapper_attr(method_name) for row in rows]
            return [method(*method_args, **method_kwargs) for method in methods]
        if sorted(rows) != list(range(self.num_envs)):
            raise ValueError(
                f"`indices` is {rows}; expected None, since {objects} calls a method of all its "
                "environments or of none"
            )
        results = objects.call(method_name, *method_args, **method_kwargs)
        return [results[row] for row in rows]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether a wrapper lies over each row; False for what other processes hold."""
        rows = list(self._get_indices(indices))
        if any(isinstance(layer, wrapper_class) for layer in self._layers()):
            return [True] * len(rows)
        inner = getattr(self.envs.unwrapped, "envs", None) if self._has_objects else None
        return [inner is not None and is_wrapped(inner[row], wrapper_class) for row in rows]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Draws each row; Nones unless the render mode is `rgb_array`."""
        return self._frames() if self.render_mode == "rgb_array" else [None] * self.num_envs

    def _frames(self) -> list[Any]:
        frames: Any = self.envs.render()
        return [frames[slot] for slot in self.slots.tolist()]

    @property
    def _has_objects(self) -> bool:
        return hasattr(self.envs.unwrapped, "call") and hasattr(self.envs.unwrapped, "get_attr")

    def _layers(self) -> list[Any]:
        layers: list[Any] = [self.envs]
        while isinstance(layers[-1], VectorWrapper):
            layers.append(layers[-1].env)
        return layers

    def _layer_with(self, name: str) -> Any:
        return next((layer for layer in self._layers() if hasattr(layer, name)), None)

    def _objects(self, name: str) -> Any:
        if not self._has_objects:
            raise AttributeError(
                f"`{name}` is asked of each row, and {self.envs} has no environment object for "
                f"each; what it does as a whole is called on `vec_env.envs`"
            )
        return self.envs.unwrapped
