"""Snapshots of a frontier, in memory or as one file: safetensors with a JSON header, no pickle."""

from __future__ import annotations

import json
import os
import secrets
import stat
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
from branchrt_gym.page_pool import NO_PAGE, PagePool
from branchrt_gym.slots import FREE

__all__ = ["Snapshot", "load", "save"]

FORMAT = "branchrt-frontier"
VERSION = 1


@dataclass(frozen=True)
class Snapshot:
    """A frontier at one moment.

    Attributes:
        header: What the tensors are: format, version, contract hash, sizes, dtypes.
        tensors: Every column, the lineage's entries, the pages that branches have, each once, and
            the shared fields by name. The shared fields are immutable and held by reference, the
            others are copies.
    """

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def take(cls, frontier: Frontier, **more: Any) -> Snapshot:
        """Copies a frontier; synchronises.

        Args:
            frontier: What to copy.
            **more: Entries for the header, plain values.

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
        held = frontier.status != FREE
        for name, pool in frontier.pages.items():
            for part, values in pool.copies(held).items():
                tensors[f"pages.{name}.{part}"] = values
        tensors |= {f"shared.{name}": field for name, field in frontier.shared.items()}
        action = frontier.lineage.columns["action"]
        header = {
            "format": FORMAT,
            "version": VERSION,
            "contract": frontier.contract.hash,
            "num_slots": frontier.num_slots,
            "num_roots": frontier.num_roots,
            "lineage_capacity": frontier.lineage.capacity,
            "page_capacity": frontier.page_capacity,
            "action_shape": list(action.shape[1:]),
            "action_dtype": str(action.dtype),
            "reward_dtype": str(frontier.lineage.columns["reward"].dtype),
            **more,
        }
        return cls(header, tensors)

    def put(self, frontier: Frontier) -> None:
        """Overwrites a frontier of the same contract and sizes.

        Raises:
            SaveFormatError: If contract or sizes differ, or tensors are not what the header says;
                nothing is changed.
        """
        self.expect(
            contract=frontier.contract.hash,
            num_slots=frontier.num_slots,
            num_roots=frontier.num_roots,
        )
        lineage = frontier.lineage
        fixed = _columns(frontier)
        for name, column in fixed.items():
            self._expect_tensor(name, column.dtype, tuple(column.shape))
        count = self._rows("lineage.branch_id")
        for name, column in lineage.columns.items():
            self._expect_tensor(f"lineage.{name}", column.dtype, (count, *column.shape[1:]))
        shared = frontier.contract.of("shared")
        for name, field in shared.items():
            lead = (self._rows(f"shared.{name}"),) if field.per_context else ()
            if f"shared.{name}" in self.tensors or frontier.shared:
                self._expect_tensor(f"shared.{name}", field.dtype, (*lead, *field.shape))
        if lineage.recorded and not self.header.get("lineage_capacity"):
            raise SaveFormatError("the snapshot has no lineage; this frontier records one")
        if lineage.recorded and count > lineage.capacity:
            raise SaveFormatError(
                f"the snapshot's lineage has {count} entries; expected at most "
                f"{lineage.capacity}, this frontier's `lineage_capacity`"
            )
        pages = {name: self._pages(name, pool) for name, pool in frontier.pages.items()}
        for name, pool in frontier.pages.items():
            pool.put(pages[name])
        for name, column in fixed.items():
            column.copy_(self.tensors[name])
        frontier.payloads[:] = [None] * len(frontier.payloads)
        frontier.shared = {
            name: self.tensors[f"shared.{name}"].to(frontier.device)
            for name in shared
            if f"shared.{name}" in self.tensors
        }
        if lineage.recorded:
            for name, column in lineage.columns.items():
                column[:count].copy_(self.tensors[f"lineage.{name}"])
            lineage.used = count
            lineage.count.fill_(count)

    def _pages(self, name: str, pool: PagePool) -> dict[str, Tensor]:
        count = self._rows(f"pages.{name}.stamp")
        wanted = {
            "pool": (pool.pool.dtype, (count, pool.page_size)),
            "stamp": (torch.int32, (count,)),
            "table": (torch.int32, tuple(pool.table.shape)),
            "sealed": (torch.int32, tuple(pool.sealed.shape)),
            "clock": (torch.int32, ()),
        }
        for part, (dtype, shape) in wanted.items():
            self._expect_tensor(f"pages.{name}.{part}", dtype, shape)
        if count > pool.capacity and not pool.grows:
            raise SaveFormatError(
                f"the snapshot has {count} pages of `{name}`; expected at most {pool.capacity}, "
                "this frontier's `page_capacity`"
            )
        table = self.tensors[f"pages.{name}.table"]
        if not bool(((table >= NO_PAGE) & (table < count)).all()):
            raise SaveFormatError(
                f"the snapshot's table of `{name}` names pages {int(table.min())} … "
                f"{int(table.max())}; expected 0 … {count - 1}, or {NO_PAGE} for none"
            )
        return {part: self.tensors[f"pages.{name}.{part}"] for part in wanted}

    def expect(self, **entries: Any) -> None:
        """Checks entries of the header.

        Raises:
            SaveFormatError: If one is there and differs, or a size is missing.
        """
        for name, here in entries.items():
            if self.header.get(name) != here:
                raise SaveFormatError(
                    f"the snapshot's `{name}` is {self.header.get(name)!r}; expected {here!r}, "
                    "this frontier's. Restore into an environment constructed with the same "
                    "arguments"
                )

    def _rows(self, name: str) -> int:
        tensor = self.tensors.get(name)
        return tensor.shape[0] if tensor is not None and tensor.ndim else 0

    def _expect_tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.dtype != dtype or tuple(tensor.shape) != shape:
            found = "missing" if tensor is None else f"{tensor.dtype} of {tuple(tensor.shape)}"
            raise SaveFormatError(
                f"the snapshot of the frontier has `{name}` {found}; expected {dtype} of {shape}"
            )


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
    if not isinstance(frontier, Frontier):
        raise TypeError(
            f"`frontier` is {type(frontier).__name__}; expected a Frontier, such as `envs.frontier`"
        )
    if frontier.elsewhere:
        raise ValueError(
            f"this frontier's branches consist of {frontier.elsewhere}, which cannot be saved; "
            "pickle the environment's `snapshot()` where its objects can be pickled"
        )
    snapshot = Snapshot.take(frontier)
    tensors = {name: value.detach().cpu().contiguous() for name, value in snapshot.tensors.items()}
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(
            f"`path` is {str(path)!r}, which is no regular file; expected one to write or to "
            "replace"
        )
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(to_bytes(tensors, metadata={"branchrt": json.dumps(snapshot.header)}))
            file.flush()
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
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
    try:
        header = json.loads(text) if text else {}
    except ValueError:
        header = {}
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise SaveFormatError(f"`{path}` was not saved by BranchRT; expected a {FORMAT} file")
    if header.get("version") != VERSION:
        raise SaveFormatError(
            f"`{path}` has format version {header.get('version')!r}; this version reads {VERSION}"
        )
    wanted = Contract({}) if contract is None else contract
    if header.get("contract") != wanted.hash:
        raise SaveFormatError(
            f"`{path}` was saved under contract {header.get('contract')}; expected {wanted.hash}. "
            "The environment's fields, or parameters that shape them, have changed since"
        )
    try:
        frontier = Frontier(
            header["num_slots"],
            header["num_roots"],
            contract,
            action_shape=tuple(header["action_shape"]),
            action_dtype=_dtype(header["action_dtype"]),
            reward_dtype=_dtype(header["reward_dtype"]),
            lineage_capacity=header["lineage_capacity"],
            page_capacity=header.get("page_capacity"),
            device=device,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise SaveFormatError(f"`{path}` has a damaged header: {error!r}") from error
    Snapshot(header, tensors).put(frontier)
    return frontier


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype
