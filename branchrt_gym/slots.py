"""Slots as callers name them, and the faults that a GPU notes instead of raising."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from branchrt_gym.errors import FrontierFullError, SlotError

__all__ = [
    "DONE",
    "FREE",
    "LIVE",
    "NO_BRANCH",
    "NO_ROOT",
    "NO_SLOT",
    "Faults",
    "Slots",
    "occurrence",
    "read_array",
    "read_counts",
    "read_mask",
    "read_slots",
]

# Values of `status`.
FREE = 0
LIVE = 1
DONE = 2

NO_SLOT = -1
NO_ROOT = -1
NO_BRANCH = -1

Slots = Tensor | np.ndarray | Sequence[int]


def read_array(name: str, given: Any, device: torch.device, expected: str) -> Tensor:
    """Returns any array of numbers or bools, or nested lists of them, as a tensor.

    Args:
        name: The caller's argument, for the error's text.
        given: What the caller passed; never written to.
        device: Where the tensor shall be.
        expected: What it should have been, for the error's text.

    Raises:
        TypeError: If it is not one array of numbers or bools.
    """
    if isinstance(given, Tensor):
        return given.to(device)
    try:
        array = np.asarray(given)
    except ValueError:  # ragged lists
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` is {given!r}; expected {expected}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    forward = all(stride >= 0 for stride in array.strides)
    plain = forward and array.flags.writeable and array.dtype.isnative
    if not plain:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array).to(device)


def read_ids(branch_ids: Any, device: torch.device) -> Tensor:
    """Reads branch ids as `[B] int64`.

    Raises:
        TypeError: If they are not integers of one dimension.
    """
    ids = read_array("branch_ids", branch_ids, device, "integers of shape (B,)")
    if ids.shape == (0,):
        ids = ids.to(torch.int64)
    if ids.ndim != 1 or ids.dtype.is_floating_point or ids.dtype == torch.bool:
        raise TypeError(
            f"`branch_ids` is {ids.dtype} of shape {tuple(ids.shape)}; expected integers of "
            "shape (B,)"
        )
    return ids.to(torch.int64)


def read_slots(
    given: Slots, name: str, num_slots: int, device: torch.device, check: bool
) -> Tensor:
    """Returns a list of slots as `[M] int64`.

    Args:
        given: The caller's slots.
        name: The caller's argument, for the error's text.
        num_slots: `N`.
        device: Where the slots are.
        check: Whether to look at the values, which synchronises.

    Raises:
        TypeError: If they are not integers in one dimension.
        SlotError: If one is outside `0 … N - 1`.
    """
    rows = read_array(name, given, device, "a list of slots, integers of shape (M,)")
    if rows.ndim == 1 and rows.numel() == 0:
        return rows.to(torch.int64)
    if rows.ndim != 1 or rows.dtype.is_floating_point or rows.dtype == torch.bool:
        raise TypeError(
            f"`{name}` is {rows.dtype} of shape {tuple(rows.shape)}; expected a list of slots, "
            "integers of shape (M,)"
        )
    rows = rows.to(torch.int64)
    if check:
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= num_slots:
            raise SlotError(
                f"`{name}` names slot {low if low < 0 else high}; expected slots "
                f"0 … {num_slots - 1}"
            )
    return rows


def read_mask(
    given: Slots | Sequence[bool], status: Tensor, check: bool, *, done_waits: bool = False
) -> Tensor:
    """Returns slots, or a `[N] bool` mask, as a mask.

    Slots named one by one must not be free; a mask may cover free slots.

    Args:
        given: The caller's slots or mask.
        status: `[N] int8`.
        check: Whether to look at the values, which synchronises.
        done_waits: Whether a DONE slot is reserved for a restart, and may not be named either.
    """
    count = status.shape[0]
    which = read_array("slots", given, status.device, "slots, or a bool for each slot")
    if which.dtype == torch.bool:
        if which.shape != (count,):
            raise ValueError(
                f"`mask` is bool of shape {tuple(which.shape)}; expected ({count},), one entry "
                "for each slot"
            )
        return which
    rows = read_slots(which, "slots", count, status.device, check)
    if check and bool((status[rows] == FREE).any()):
        free = rows[status[rows] == FREE].tolist()
        raise SlotError(f"`slots` names {free[:8]}, which are free; expected live branches")
    if check and done_waits and bool((status[rows] == DONE).any()):
        slot = int(rows[status[rows] == DONE][0])
        raise SlotError(
            f"`slots` names slot {slot}, which waits for its root to restart at the next step; "
            "expected live branches"
        )
    mask = torch.zeros(count, dtype=torch.bool, device=status.device)
    return mask.index_fill_(0, rows.clamp(0, count - 1), True)


def read_counts(counts: int | Slots, parents: Tensor) -> tuple[int | Tensor, int]:
    """Returns the children of each parent and their sum; a tensor of counts synchronises."""
    if isinstance(counts, int | np.integer) and not isinstance(counts, bool):
        if counts < 0:
            raise ValueError(f"`counts` is {counts}; expected 0 or more children")
        return int(counts), int(counts) * parents.shape[0]
    wanted = f"an int, or integers of shape {tuple(parents.shape)}, one for each parent"
    each = read_array("counts", counts, parents.device, wanted)
    if each.numel() == 0:
        each = each.to(torch.int64)
    if each.shape != parents.shape or each.dtype.is_floating_point or each.dtype == torch.bool:
        raise ValueError(
            f"`counts` is {each.dtype} of shape {tuple(each.shape)}; expected {wanted}"
        )
    if bool((each < 0).any()):
        raise ValueError(f"`counts` holds {int(each.min())}; expected 0 or more children")
    # Python's own sum where an int64 might wrap.
    large = int(each.max()) >= 2**31 if each.numel() else False
    return each, sum(each.tolist()) if large else int(each.sum())


def occurrence(rows: Tensor) -> Tensor:
    """Returns for each entry how many equal entries stand before it, `[M] int64`."""
    ordered, order = torch.sort(rows, stable=True)
    before = torch.searchsorted(ordered, ordered)
    rank = torch.arange(rows.shape[0], device=rows.device) - before
    return torch.empty_like(rank).scatter_(0, order, rank)


class Faults:
    """The first fault of GPU calls that changed nothing, raised at the next synchronisation.

    Args:
        num_slots: `N`, for the error's text.
        device: Where the faults are noted.
    """

    _STATUS = 1
    _FULL = 2

    def __init__(self, num_slots: int, device: torch.device) -> None:
        """Starts with no fault."""
        self.num_slots = num_slots
        self._noted = torch.zeros(3, dtype=torch.int64, device=device)

    def admit(self, rows: Tensor, slots: Tensor, num_free: Tensor, status: Tensor) -> Tensor:
        """Returns `[] bool`, whether a fork of `rows` into `slots` may go ahead; notes if not."""
        count = status.shape[0]
        inside = (rows >= 0) & (rows < count)
        alive = (inside & (status[rows.clamp(0, count - 1)] == LIVE)).all()
        fits = num_free >= rows.shape[0]
        code = torch.where(alive, torch.where(fits, 0, self._FULL), self._STATUS)
        asked = torch.full_like(num_free, rows.shape[0])
        fault = torch.stack([code, asked, num_free])
        self._noted.copy_(torch.where(self._noted[0] == 0, fault, self._noted))
        return alive & fits

    def require(self, rows: Tensor, slots: Tensor, num_free: Tensor, status: Tensor) -> None:
        """Raises at once where `admit` would note; synchronises."""
        live = status[rows] == LIVE
        if not bool(live.all()):
            wrong = rows[~live][0]
            what = "finished" if int(status[wrong]) == DONE else "free"
            raise SlotError(
                f"`parents` names slot {int(wrong)}, which is {what}; expected live branches. "
                "Nothing was changed"
            )
        if int(slots[-1]) == NO_SLOT:
            raise self.full(rows.shape[0], int(num_free))

    def full(self, asked: int, free: int) -> FrontierFullError:
        """The error for a fork beyond the free slots."""
        return FrontierFullError(
            f"`fork` asked for {asked} slots; {free} of {self.num_slots} are free. Prune "
            "branches first or make the frontier larger; nothing was changed"
        )

    def check(self) -> None:
        """Raises what was noted, once; synchronises."""
        code, asked, free = self._noted.tolist()
        if code == 0:
            return
        self._noted.zero_()
        if code == self._FULL:
            raise self.full(asked, free)
        raise SlotError(
            "an earlier `fork` named slots that hold no live branch; it changed nothing. "
            "Construct with debug=True to see which call"
        )
