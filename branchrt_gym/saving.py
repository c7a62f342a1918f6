"""Snapshots of a frontier, in memory or as one file: safetensors with a JSON header, no pickle."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from branchrt_gym.contract import Contract
from branchrt_gym.errors import SaveFormatError
from branchrt_gym.frontier import Frontier

__all__ = ["Snapshot", "load", "save"]

FORMAT = "branchrt-frontier"
VERSION = 1


@dataclass(frozen=True)
class Snapshot:
    """A frontier at one moment.

    Attributes:
        header: What the tensors are: format, version, contract hash, sizes, dtypes.
        tensors: Every column, the lineage's entries and the shared fields by name. The shared
            fields are immutable and held by reference, the others are copies.
    """

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def take(cls, frontier: Frontier) -> Snapshot:
        """Copies a frontier; synchronises.

        Raises:
            ValueError: If branches carry opaque payloads, which have no safe format.
        """
        if any(payload is not None for payload in frontier.payloads):
            raise ValueError(
                "this frontier's branches carry opaque payloads, which cannot be saved; keep what "
                "must be saved in a contract's fields"
            )
        frontier.check()
        tensors = {name: column.clone() for name, column in _columns(frontier).items()}
        count = int(frontier.lineage.count)
        for name, column in frontier.lineage.columns.items():
            tensors[f"lineage.{name}"] = column[:count].clone()
        tensors |= {f"shared.{name}": field for name, field in frontier.shared.items()}
        action = frontier.lineage.columns["action"]
        header = {
            "format": FORMAT,
            "version": VERSION,
            "contract": frontier.contract.hash,
            "num_slots": frontier.num_slots,
            "num_roots": frontier.num_roots,
            "lineage_capacity": frontier.lineage.capacity,
            "action_shape": list(action.shape[1:]),
            "action_dtype": str(action.dtype),
            "reward_dtype": str(frontier.lineage.columns["reward"].dtype),
        }
        return cls(header, tensors)

    def put(self, frontier: Frontier) -> None:
        """Overwrites a frontier of the same contract and sizes.

        Raises:
            SaveFormatError: If contract or sizes differ; nothing is changed.
        """
        for name, here in {
            "contract": frontier.contract.hash,
            "num_slots": frontier.num_slots,
            "num_roots": frontier.num_roots,
        }.items():
            if self.header[name] != here:
                raise SaveFormatError(
                    f"the snapshot's `{name}` is {self.header[name]!r}; expected {here!r}, this "
                    "frontier's. Restore into an environment constructed with the same arguments"
                )
        count = self.tensors["lineage.branch_id"].shape[0]
        lineage = frontier.lineage
        if lineage.recorded and not self.header["lineage_capacity"]:
            raise SaveFormatError("the snapshot has no lineage; this frontier records one")
        if lineage.recorded and count > lineage.capacity:
            raise SaveFormatError(
                f"the snapshot's lineage has {count} entries; expected at most "
                f"{lineage.capacity}, this frontier's `lineage_capacity`"
            )
        for name, column in _columns(frontier).items():
            column.copy_(self.tensors[name])
        frontier.shared = {
            name.removeprefix("shared."): field.to(frontier.device)
            for name, field in self.tensors.items()
            if name.startswith("shared.")
        }
        if lineage.recorded:
            for name, column in lineage.columns.items():
                column[:count].copy_(self.tensors[f"lineage.{name}"])
            lineage.used = count
            lineage.count.fill_(count)


def _columns(frontier: Frontier) -> dict[str, Tensor]:
    """Every tensor of fixed size that a frontier consists of, by the name it is saved under."""
    return {
        "status": frontier.status,
        "next_id": frontier.next_id,
        **{f"column.{name}": getattr(frontier, name) for name in frontier.COLUMNS},
        **{f"root.{name}": getattr(frontier, name) for name in frontier.ROOT_COLUMNS},
        **{f"state.{name}": column for name, column in frontier.state.items()},
    }


def save(frontier: Frontier, path: str | os.PathLike[str]) -> None:
    """Saves a frontier; `path` holds the old file or the whole new one at every moment.

    The bytes are written beside `path`, flushed to the disk, and put in its place in one step.
    """
    snapshot = Snapshot.take(frontier)
    tensors = {name: value.detach().cpu().contiguous() for name, value in snapshot.tensors.items()}
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(to_bytes(tensors, metadata={"branchrt": json.dumps(snapshot.header)}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(
    path: str | os.PathLike[str],
    contract: Contract | None = None,
    *,
    device: str | torch.device = "cpu",
) -> Frontier:
    """Loads a frontier.

    Args:
        path: A file that `save` wrote.
        contract: The environment's contract, None for a frontier without fields.
        device: Where to put it.

    Raises:
        SaveFormatError: If the file is truncated or foreign, or of another contract or version.
        FileNotFoundError: If there is none.
    """
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            text = (file.metadata() or {}).get("branchrt")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise SaveFormatError(f"`{path}` is truncated or no safetensors file: {error}") from error
    header = json.loads(text) if text else {}
    if header.get("format") != FORMAT:
        raise SaveFormatError(f"`{path}` was not saved by BranchRT; expected a {FORMAT} file")
    if header.get("version") != VERSION:
        raise SaveFormatError(
            f"`{path}` has format version {header.get('version')!r}; this version reads {VERSION}"
        )
    wanted = Contract({}) if contract is None else contract
    if header["contract"] != wanted.hash:
        raise SaveFormatError(
            f"`{path}` was saved under contract {header['contract']}; expected {wanted.hash}. "
            "The environment's fields, or parameters that shape them, have changed since"
        )
    frontier = Frontier(
        header["num_slots"],
        header["num_roots"],
        contract,
        action_shape=tuple(header["action_shape"]),
        action_dtype=_dtype(header["action_dtype"]),
        reward_dtype=_dtype(header["reward_dtype"]),
        lineage_capacity=header["lineage_capacity"],
        device=device,
    )
    Snapshot(header, tensors).put(frontier)
    return frontier


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype
