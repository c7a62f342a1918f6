"""Exact comparison of what populations show, and where two differ first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from branchrt_gym.slots import NO_ROOT
from branchrt_gym.structure import map_leaves
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = [
    "Record",
    "as_numpy",
    "compared_runs",
    "difference",
    "outcome",
    "pick",
    "picture",
    "tensors",
]

Record = dict[str, Any]  # arrays, `[N, …]` each, and the observation, a tree of them


def as_numpy(tree: Any) -> Any:
    """Copies a tree of tensors or arrays to arrays."""

    def leaf(values: Any) -> Any:
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu()
            values = values.float() if values.dtype == torch.bfloat16 else values
            return values.numpy().copy()
        return np.array(values)

    return map_leaves(leaf, tree)


def pick(tree: Any, row: Any) -> Any:
    """Returns a row of each leaf, or several."""
    return map_leaves(lambda leaf: leaf[row], tree)


def outcome(result: Any) -> Record:
    """Returns what `step` returned as arrays by name."""
    observation, reward, terminated, truncated, info = result
    return {
        "observation": as_numpy(observation),
        "reward": as_numpy(reward).astype(np.float64),
        "terminated": as_numpy(terminated),
        "truncated": as_numpy(truncated),
        "live": as_numpy(info["live"]),
        "solved": as_numpy(info["solved"]),
    }


def picture(envs: BranchingVectorEnv) -> Record:
    """Returns how the population stands; columns of free slots, which mean nothing, are zeros."""
    roots = as_numpy(envs.roots)
    frontier = envs.frontier
    columns = {
        name: as_numpy(getattr(frontier, name)) for name in ("branch_id", "parent_id", "depth")
    }
    return {
        "live": as_numpy(envs.live),
        "roots": roots,
        **{name: np.where(roots == NO_ROOT, 0, values) for name, values in columns.items()},
        "observation": as_numpy(envs.observe()),
    }


def tensors(envs: BranchingVectorEnv) -> Record:
    """Returns what a snapshot holds, where its parts can be compared; else nothing."""
    return {name: as_numpy(part) for name, part in getattr(envs.snapshot(), "tensors", {}).items()}


def difference(one: Any, two: Any, rows: Any = None, name: str = "", *, slots: bool = True) -> str:
    """Says where two trees differ first, exactly but for NaNs, which are equal; "" if nowhere.

    Args:
        one: Arrays, or trees of them.
        two: The same, what is expected.
        rows: `[N] bool`, the slots to look at; None for all.
        name: What the trees are.
        slots: Whether the arrays have a row per slot; if not, they are one slot's.
    """
    if isinstance(two, Mapping | tuple):
        keys = list(two) if isinstance(two, Mapping) else range(len(two))
        for key in keys:
            part = f"{name}[{key!r}]" if name else str(key)
            if found := difference(one[key], two[key], rows, part, slots=slots):
                return found
        return ""
    mine, their = np.asarray(one), np.asarray(two)
    if mine.dtype != their.dtype or mine.shape != their.shape:
        return (
            f"{name} is {mine.dtype} of shape {mine.shape}, against {their.dtype} of shape "
            f"{their.shape}"
        )
    unequal = ~((mine == their) | ((mine != mine) & (their != their)))
    if not slots or not mine.ndim:
        return f"{name} is {mine}, against {their}" if unequal.any() else ""
    wrong = unequal.any(axis=tuple(range(1, unequal.ndim)))
    if rows is not None:
        wrong &= rows
    if not wrong.any():
        return ""
    slot = int(np.flatnonzero(wrong)[0])
    return f"slot {slot}'s {name} is {mine[slot]}, against {their[slot]}"


def compared_runs(one: list[Record], two: list[Record], what: str) -> Iterator[str]:
    """Yields where two runs differ first.

    Args:
        one: What was seen.
        two: What is expected.
        what: The two runs in words, "… against …".
    """
    for turn, (mine, their) in enumerate(zip(one, two, strict=True)):
        if found := difference(mine, their):
            yield f"{what}: after {turn} steps {found}"
