"""What a training library reads by rows, from what Gymnasium batches: observations and infos."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

__all__ = ["RowInfos", "flatten_batch", "is_flat", "split_infos"]

PLAIN = (bool, int, float, str, bytes, type(None), np.generic)
FLATTENED = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
Infos = list[dict[str, Any]]


def is_flat(space: spaces.Space[Any], name: str = "single_observation_space") -> bool:
    """Whether a space is one leaf whose integers count from 0, or a Dict of such leaves.

    Raises:
        TypeError: For a space that cannot be flattened to a Box of a fixed width either.
    """
    if isinstance(space, spaces.Dict):
        parts = [(part, is_flat(part, f"{name}[{key!r}]")) for key, part in space.items()]
        return all(flat and not isinstance(part, spaces.Dict) for part, flat in parts)
    if isinstance(space, spaces.Tuple):
        for place, part in enumerate(space.spaces):
            is_flat(part, f"{name}[{place}]")
        return False
    if isinstance(space, spaces.Discrete):
        return bool(space.start == 0)
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.ndim == 1 and not space.start.any()
    if isinstance(space, FLATTENED):
        return True
    raise TypeError(
        f"`{name}` is {type(space).__name__}, whose members have no fixed shape; expected Box, "
        "Discrete, MultiDiscrete, MultiBinary, or a Tuple or Dict of these. Transform the "
        "observations into one of them"
    )


def flatten_batch(space: spaces.Space[Any], batch: Any, count: int) -> np.ndarray:
    """Flattens batched observations as `gymnasium.spaces.flatten` does each of them.

    Args:
        space: Of one observation.
        batch: `count` observations, batched as the space's `batch_space`.
        count: Their number.

    Returns:
        `[count, width]`, of the dtype that `flatten_space(space)` has.
    """
    return np.concatenate(_blocks(space, batch, count), axis=1)


def _blocks(space: spaces.Space[Any], batch: Any, count: int) -> list[np.ndarray]:
    if isinstance(space, spaces.Dict):
        return [part for key in space for part in _blocks(space[key], batch[key], count)]
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, batch, strict=True)
        return [block for part, values in pairs for block in _blocks(part, values, count)]
    if isinstance(space, spaces.Discrete):
        return [_one_hot(np.asarray(batch) - space.start, int(space.n), space.dtype)]
    if isinstance(space, spaces.MultiDiscrete):
        digits = (np.asarray(batch) - space.start).reshape(count, -1)
        sizes = space.nvec.ravel().tolist()
        return [_one_hot(digits[:, at], size, space.dtype) for at, size in enumerate(sizes)]
    return [np.asarray(batch).reshape(count, -1)]


def _one_hot(digits: np.ndarray, size: int, dtype: Any) -> np.ndarray:
    hot: np.ndarray = digits[:, None] == np.arange(size)
    return hot.astype(dtype)


def split_infos(infos: dict[str, Any], count: int) -> Infos:
    """Takes batched infos apart: row `i` has `key` where `_key[i]` holds, or where no mask is."""
    rows: Infos = [{} for _ in range(count)]
    everywhere = np.ones(count, dtype=bool)
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        parts = split_infos(values, count) if isinstance(values, dict) else values
        for row in np.flatnonzero(infos.get(f"_{key}", everywhere)).tolist():
            rows[row][key] = parts[row]
    return rows


def copy_info(info: dict[str, Any]) -> dict[str, Any]:
    """Copies an info that the environment may write to again."""
    return {k: v if isinstance(v, PLAIN) else deepcopy(v) for k, v in info.items()}


class RowInfos:
    """Keeps each environment's own infos, beside the batch that Gymnasium makes of them.

    A batch has the dtype of the row that writes first: FrozenLake's `prob`, 1 at a reset, makes
    the 0.333 of a row that only steps 0 in the same batch (Gymnasium 1.4). And what was a Python
    number comes out of it as NumPy's. So this listens where the batch is made.

    Args:
        envs: Makes its batches with `_add_info`, as Gymnasium's own and its subclasses do.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        """Takes the place of the method on this one object."""
        listened: Any = envs
        self._batch = listened._add_info
        self._nested = False
        self._rows: Infos = [{} for _ in range(envs.num_envs)]
        listened._add_info = self._add

    def take(self) -> Infos:
        """Returns copies of what each row got since the last call, `final_info` in it."""
        taken = [copy_info(row) for row in self._rows]
        self._rows = [{} for _ in taken]
        return taken

    def _add(self, batch: dict[str, Any], info: dict[str, Any], row: int) -> dict[str, Any]:
        nested, self._nested = self._nested, True
        if not nested:  # else this is a dict within an info
            self._rows[row].update(info)
        try:
            batched: dict[str, Any] = self._batch(batch, info, row)
        finally:
            self._nested = nested
        return batched
