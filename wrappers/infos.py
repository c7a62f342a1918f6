"""Infos of several environments as one dict of arrays, as Gymnasium's vector environments batch."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

__all__ = ["batch_infos"]

NUMBERS = (bool, int, float, np.number, np.bool_)


def batch_infos(rows: Mapping[int, Mapping[str, Any]], count: int) -> dict[str, Any]:
    """Batches infos: `info[key]` holds a row's value where `info["_" + key]` is True.

    Numbers and arrays of one shape become arrays of their common dtype, zero where a row has none;
    dicts become dicts of batches; anything else an array of objects, None where a row has none.
    (`VectorEnv._add_info` of Gymnasium 1.4 takes the dtype of the row that is first.)

    Args:
        rows: Infos by row.
        count: Rows in the batch.
    """
    batch: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in rows.values() for key in info):
        values = {row: info[key] for row, info in rows.items() if key in info}
        mask = np.zeros(count, dtype=bool)
        mask[list(values)] = True
        batch[key] = _column(values, count)
        batch[f"_{key}"] = mask
    return batch


def _column(values: dict[int, Any], count: int) -> Any:
    given = list(values.values())
    if all(isinstance(value, dict) for value in given):
        return batch_infos(values, count)
    numbers = all(isinstance(value, NUMBERS) for value in given)
    arrays = all(isinstance(value, np.ndarray) and value.dtype != object for value in given)
    if numbers or (arrays and len({value.shape for value in given}) == 1):
        stacked = np.stack(given)
        column = np.zeros((count, *stacked.shape[1:]), dtype=stacked.dtype)
        column[list(values)] = stacked
        return column
    objects = np.full(count, None, dtype=object)
    for row, value in values.items():
        objects[row] = deepcopy(value)
    return objects
