"""Pickles of snapshots: layers by their attributes, functions by cloudpickle.

Gymnasium's own pickles of many environments are their constructor's arguments, without the state.
As with every pickle: load only what you trust.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from branchrt_gym.wrappers.kinds import is_ez_pickle, module_of, own_pickle
from branchrt_gym.wrappers.structural import is_layer

__all__ = ["dumps", "loads"]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if is_layer(value):
            theirs = own_pickle(kind)
            if not theirs or is_ez_pickle(kind) or theirs.startswith("gymnasium."):
                return _blank, (kind,), vars(value), None, None, _fill
        if module_of(kind).startswith("pygame"):
            raise pickle.PicklingError(f"a `{kind.__name__}` of pygame cannot be pickled")
        return super().reducer_override(value)


def _blank(kind: type) -> Any:
    return object.__new__(kind)


def _fill(layer: Any, attributes: dict[str, Any]) -> None:
    vars(layer).update(attributes)


def dumps(value: Any) -> bytes:
    """Returns a snapshot's parts as bytes."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Returns a snapshot from `dumps`."""
    from branchrt_gym.wrappers.snapshots import Snapshot

    return Snapshot(*pickle.loads(data))
