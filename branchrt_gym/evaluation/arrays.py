"""What NumPy and torch call differently: the decisions are written once, on these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

__all__ = ["Arrays", "NumpyArrays", "TorchArrays", "arrays_on"]


class Arrays(Protocol):
    """Flat arrays on one device; dtypes are named as both libraries name them."""

    def full(self, size: int, value: float, dtype: str) -> Any:
        """Returns `[size]` of one value."""

    def arange(self, size: int) -> Any:
        """Returns `[size] int64`, counted from 0."""

    def of(self, values: Any, dtype: str) -> Any:
        """Returns given values as an array here; the same object where it is one."""

    def nonzero(self, mask: Any) -> Any:
        """Returns the places, `int64`, that are set in a flat mask; it waits for the device."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Returns flat arrays, one after another."""

    def sort(self, values: Any) -> Any:
        """Returns the values ascending."""

    def order(self, keys: Any) -> Any:
        """Returns the stable order of keys along the last axis."""

    def units(self, values: Any, unit: int) -> Any:
        """Returns the values in whole fractions of 1 / `unit`, halves to even, `int64`."""

    def among(self, values: Any, others: Any) -> Any:
        """Returns which of the values are among the others."""

    def where(self, mask: Any, yes: Any, no: Any) -> Any:
        """Returns one or the other."""

    def host(self, values: Any) -> Any:
        """Returns them as a NumPy array; it waits for the device."""


class NumpyArrays:
    """NumPy's."""

    def full(self, size: int, value: float, dtype: str) -> Any:
        """See `Arrays`."""
        return np.full(size, value, dtype)

    def arange(self, size: int) -> Any:
        """See `Arrays`."""
        return np.arange(size, dtype=np.int64)

    def of(self, values: Any, dtype: str) -> Any:
        """See `Arrays`."""
        return np.asarray(values, dtype)

    def nonzero(self, mask: Any) -> Any:
        """See `Arrays`."""
        return np.flatnonzero(mask)

    def join(self, parts: Sequence[Any]) -> Any:
        """See `Arrays`."""
        return np.concatenate(parts)

    def sort(self, values: Any) -> Any:
        """See `Arrays`."""
        return np.sort(values, kind="stable")  # which is quick where they are in order already

    def order(self, keys: Any) -> Any:
        """See `Arrays`."""
        return np.argsort(keys, axis=-1, kind="stable")

    def units(self, values: Any, unit: int) -> Any:
        """See `Arrays`."""
        scaled = values * unit
        return np.rint(scaled, out=scaled).astype(np.int64)

    def among(self, values: Any, others: Any) -> Any:
        """See `Arrays`."""
        return np.isin(values, others)

    def where(self, mask: Any, yes: Any, no: Any) -> Any:
        """See `Arrays`."""
        return np.where(mask, yes, no)

    def host(self, values: Any) -> Any:
        """See `Arrays`."""
        return np.asarray(values)


class TorchArrays:
    """Torch's, on a device."""

    def __init__(self, device: torch.device) -> None:
        """Makes arrays on `device`."""
        self.device = device

    def full(self, size: int, value: float, dtype: str) -> Any:
        """See `Arrays`."""
        return torch.full((size,), value, dtype=getattr(torch, dtype), device=self.device)

    def arange(self, size: int) -> Any:
        """See `Arrays`."""
        return torch.arange(size, device=self.device)

    def of(self, values: Any, dtype: str) -> Any:
        """See `Arrays`."""
        return torch.as_tensor(values, dtype=getattr(torch, dtype), device=self.device)

    def nonzero(self, mask: Any) -> Any:
        """See `Arrays`."""
        return torch.nonzero(mask).view(-1)

    def join(self, parts: Sequence[Any]) -> Any:
        """See `Arrays`."""
        return torch.cat(list(parts))

    def sort(self, values: Any) -> Any:
        """See `Arrays`."""
        return values.sort().values

    def order(self, keys: Any) -> Any:
        """See `Arrays`."""
        return keys.argsort(dim=-1, stable=True)

    def units(self, values: Any, unit: int) -> Any:
        """See `Arrays`."""
        return (values * unit).round().long()

    def among(self, values: Any, others: Any) -> Any:
        """See `Arrays`."""
        return torch.isin(values, others)

    def where(self, mask: Any, yes: Any, no: Any) -> Any:
        """See `Arrays`."""
        return torch.where(mask, yes, no)

    def host(self, values: Any) -> Any:
        """See `Arrays`."""
        return values.cpu().numpy()


def arrays_on(device: torch.device | str) -> Arrays:
    """Returns NumPy's for the CPU, torch's for any other device."""
    where = torch.device(device)
    return NumpyArrays() if where.type == "cpu" else TorchArrays(where)
