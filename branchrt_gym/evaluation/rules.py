"""What an evaluation's rules are given, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from branchrt_gym.evaluation.attempts import UNITS

__all__ = ["NOT_IN_FLIGHT", "check_order", "check_present", "check_rules"]

NOT_IN_FLIGHT: Final = (
    "`roots` and `candidates` name an attempt that is not in flight, or one of them twice; "
    "expected attempts that `wave` issued and that were not committed since"
)


def check_rules(given: Mapping[str, Any]) -> None:
    """Raises a ValueError for a count or a budget that is too small."""
    least = {"retries": 0, "max_cost": 1 / UNITS, "max_seconds": 1 / UNITS}
    names = ("num_roots", "num_candidates", "needed", "in_flight_per_root", "max_attempts", *least)
    for name in names:
        value = given[name]
        if not (value is None and name.startswith("max_")) and not value >= least.get(name, 1):
            raise ValueError(f"`{name}` is {value!r}; expected {least.get(name, 1)} or more")


def check_order(order: Any, num_roots: int, num_candidates: int) -> NDArray[np.int64]:
    """Returns an order as an array, `[C]` or `[R, C]`; None stands for that of the candidates."""
    every = np.arange(num_candidates)
    found = every if order is None else _host(order)
    shapes = (num_candidates,), (num_roots, num_candidates)
    if found.shape not in shapes or not (np.sort(found, axis=-1) == every).all():
        raise ValueError(
            f"`order` is {found.dtype} of shape {found.shape}; expected a permutation of the "
            f"{num_candidates} candidates, or one for each of the {num_roots} roots"
        )
    return found.astype(np.int64, copy=False)


def check_present(present: Any, num_roots: int, num_candidates: int) -> NDArray[np.bool_]:
    """Returns `[R, C] bool`."""
    found = _host(present)
    if found.shape != (num_roots, num_candidates) or found.dtype != np.bool_:
        raise ValueError(
            f"`present` is {found.dtype} of shape {found.shape}; expected bool of shape "
            f"{(num_roots, num_candidates)}, roots × candidates"
        )
    return found


def _host(values: Any) -> NDArray[Any]:
    return np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values)
