"""Observations: compared with the model's, and with the space that declares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from branchrt_gym.certify.branch import Branch
from branchrt_gym.certify.difference import Ledger, as_array

__all__ = ["compare_observations", "leaves", "stacked_rows"]


def compare_observations(
    ledger: Ledger,
    space: spaces.Space[Any],
    name: str,
    expected: Sequence[Any],
    parts: Mapping[str, Any],
    branches: Sequence[Branch | None],
    slots: Sequence[int] | None = None,
) -> None:
    """Compares a batch with the model's observations, leaf by leaf, and with the space.

    Args:
        ledger: Counts the values; membership of the space is not counted beside them.
        space: Of one observation.
        name: Of the observation, for the difference.
        expected: The model's, one for each row.
        parts: The environment's batch, its arrays by name: see `leaves`.
        branches: Whose rows these are; see `Ledger.same`.
        slots: The slot of each row; see `Ledger.same`.

    Raises:
        Disagreement: With the first value that differs, or lies outside its space.
    """
    declared = dict(leaf_spaces(space, name))
    for field, want in leaves(batched(space, expected), name):
        if field not in parts:
            ledger.fail(field, "present", "missing")
        have = as_array(parts[field])
        # Both sides may hold the same values, and both beside what is declared.
        for dtype in (want.dtype, declared[field].dtype):
            if have.dtype != dtype:
                ledger.fail(f"{field} (dtype)", dtype, have.dtype)
        ledger.same(field, want, have, branches, slots)
        low, high = bounds(declared[field])
        # NaN is outside too: no comparison holds for it.
        outside = ~((have >= low) & (have <= high))
        if outside.any():
            inner = tuple(np.argwhere(outside)[0][1:])
            least, most = (np.broadcast_to(edge, have.shape[1:])[inner] for edge in (low, high))
            inside = f"{least} … {most}, as its space says"
            ledger.differs(field, inside, have, outside, branches, slots)


def batched(space: spaces.Space[Any], observations: Sequence[Any]) -> Any:
    """Stacks one observation per row the way Gymnasium's vector environments do."""
    if isinstance(space, spaces.Box):
        return np.stack(observations)
    empty: Any = create_empty_array(space, n=len(observations))
    return concatenate(space, list(observations), empty)


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a nested observation with a name for each."""
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], f"{name}.{key}")
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from leaves(part, f"{name}.{index}")
    else:
        yield name, value


def leaf_spaces(space: spaces.Space[Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yields the spaces of the arrays that `leaves` yields, under the same names."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaf_spaces(part, f"{name}.{key}")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaf_spaces(part, f"{name}.{index}")
    else:
        yield name, space


def bounds(space: spaces.Space[Any]) -> tuple[Any, Any]:
    """Returns the lowest and the highest member, entry by entry."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    assert isinstance(space, spaces.MultiBinary), "`constant_observation` refuses other spaces"
    return 0, 1


def stacked_rows(batch: Any, slots: Sequence[int], name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of some slots' rows by name, also where a batch holds one object a slot.

    So Gymnasium batches the last observations of the slots that were reset.
    """
    rows = [dict(leaves(one_row(batch, slot), name)) for slot in slots]
    return {field: np.stack([as_array(row[field]) for row in rows]) for field in rows[0]}


def one_row(value: Any, slot: int) -> Any:
    """Returns a slot's row of a nested batch, or its object where the batch holds objects."""
    if isinstance(value, dict):
        return {name: one_row(part, slot) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(one_row(part, slot) for part in value)
    return value[slot]
