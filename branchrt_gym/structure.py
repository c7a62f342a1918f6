"""Observations as trees: a tensor, or a tuple or dict of them, as the space is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from branchrt_gym.errors import ContractError

__all__ = ["action_layout", "map_leaves", "rest_action", "rest_observation"]

Tree = Any  # one leaf, or a tuple or dict of trees


def map_leaves(leaf: Callable[..., Any], *trees: Tree) -> Tree:
    """Applies `leaf` to the corresponding leaves of trees of one structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: map_leaves(leaf, *(tree[name] for tree in trees)) for name in first}
    if isinstance(first, tuple):
        return tuple(map_leaves(leaf, *parts) for parts in zip(*trees, strict=True))
    return leaf(*trees)


def rest_observation(space: spaces.Space[Any], name: str = "single_observation_space") -> Tree:
    """Returns the observation of a slot that is not live: zeros where they lie in the space.

    Where zero is outside, the lowest allowed value stands (`start` of a Discrete).

    Raises:
        ContractError: For spaces whose members have no fixed shape.
    """
    if isinstance(space, spaces.Dict):
        return {key: rest_observation(part, f"{name}[{key!r}]") for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            rest_observation(part, f"{name}[{place}]") for place, part in enumerate(space.spaces)
        )
    if isinstance(space, spaces.Box):
        inside = (space.low <= 0) & (space.high >= 0)
        return np.where(inside, 0, space.low).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        inside_range = space.start <= 0 < space.start + space.n
        return np.asarray(0 if inside_range else space.start, dtype=space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        inside = (space.start <= 0) & (space.start + space.nvec > 0)
        return np.where(inside, 0, space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, dtype=space.dtype)
    raise ContractError(
        f"`{name}` is {type(space).__name__}; expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "or a Tuple or Dict of these, whose members have a fixed shape"
    )


def rest_action(space: spaces.Space[Any]) -> np.ndarray:
    """Returns an action inside the space, fed to slots that are not live."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        raise ContractError(
            f"`single_action_space` is {type(space).__name__}; expected Box, Discrete, "
            "MultiDiscrete or MultiBinary"
        )
    action: np.ndarray = rest_observation(space, "single_action_space")
    return action


def action_layout(space: spaces.Space[Any]) -> tuple[tuple[int, ...], torch.dtype]:
    """Returns shape and dtype of one action in the lineage."""
    rest = rest_action(space)
    return rest.shape, torch.from_numpy(np.empty(0, rest.dtype)).dtype


def action_bounds(space: spaces.Space[Any], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Returns the lowest and highest action of an integer space, else None."""
    if isinstance(space, spaces.Discrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.nvec - 1)
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    else:
        return None
    return torch.from_numpy(low).to(device), torch.from_numpy(high).to(device)
