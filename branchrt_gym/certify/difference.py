"""Exact comparison: counts the values compared and stops at the first that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from branchrt_gym.certify.branch import Branch

__all__ = [
    "Difference",
    "Disagreement",
    "Ledger",
    "as_array",
    "compare_trajectories",
]


@dataclass(frozen=True)
class Difference:
    """The first value in which an environment and its model differ.

    Attributes:
        field: What differs: `reward`, `observation[3]`, `lineage.action`, `shared.table`, …
        operation: Number of the operation in its program, from 0, and its name.
        step: The branch's depth after the operation.
        expected: The model's value.
        got: The environment's value.
    """

    field: str
    expected: str
    got: str
    root: int | None = None
    branch_id: int | None = None
    slot: int | None = None
    operation: int | None = None
    operation_name: str | None = None
    step: int | None = None

    @property
    def message(self) -> str:
        """One sentence: which field, where, and both values."""
        places = {
            "root": self.root,
            "branch": self.branch_id,
            "slot": self.slot,
            "step": self.step,
            "operation": self.operation,
        }
        where = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
        after = f" ({self.operation_name})" if self.operation_name else ""
        values = f"expected {self.expected}, got {self.got}"
        return f"`{self.field}` at {where or 'no branch'}{after}: {values}"


class Disagreement(Exception):
    """Carries the first difference out of a comparison."""

    def __init__(self, difference: Difference) -> None:
        """Keeps the difference; its message is the text."""
        super().__init__(difference.message)
        self.difference = difference


class Ledger:
    """Compares arrays exactly, counts what it compared, and raises at the first difference.

    Attributes:
        compared: Values compared so far.
        operation: Number of the current operation, for the difference.
        operation_name: Its name.
    """

    def __init__(self) -> None:
        """Starts with nothing compared."""
        self.compared = 0
        self.operation: int | None = None
        self.operation_name: str | None = None

    def same(
        self,
        field: str,
        expected: Any,
        got: Any,
        branches: Sequence[Branch | None] = (),
        slots: Sequence[int | None] | None = None,
    ) -> None:
        """Compares shape, whether both are flags, and every value.

        Args:
            field: Name for the difference.
            expected: The model's values; row `i` belongs to `branches[i]`.
            got: The environment's, as a tensor, an array or a list.
            branches: Whose rows these are, for the difference; None where a slot is free.
            slots: The slot of each row, the row number if None; for the difference.

        Raises:
            Disagreement: With the first row that differs.
        """
        want, have = np.asarray(expected), as_array(got)
        if want.shape != have.shape:
            self.fail(f"{field} (shape)", want.shape, have.shape)
        if (want.dtype == np.bool_) != (have.dtype == np.bool_) and want.size:
            self.fail(f"{field} (dtype)", want.dtype, have.dtype)
        self.compared += want.size
        unequal = want != have
        if want.dtype.kind == "f" and have.dtype.kind == "f":
            unequal &= ~(np.isnan(want) & np.isnan(have))
        if unequal.any():
            self.differs(field, want, have, unequal, branches, slots)

    def differs(
        self,
        field: str,
        expected: Any,
        got: np.ndarray,
        where: np.ndarray,
        branches: Sequence[Branch | None] = (),
        slots: Sequence[int | None] | None = None,
    ) -> NoReturn:
        """Raises for the first row of `where`; see `same`. `expected`: an array, or a text."""
        place = tuple(int(i) for i in np.argwhere(where)[0])
        row = place[0] if place else None
        inner = "".join(f"[{i}]" for i in place[1:])
        branch = branches[row] if row is not None and row < len(branches) else None
        slot = slots[row] if row is not None and slots is not None else row
        want = expected[place].item() if isinstance(expected, np.ndarray) else expected
        self.fail(field + inner, want, got[place].item(), branch, slot)

    def fail(
        self,
        field: str,
        expected: Any,
        got: Any,
        branch: Branch | None = None,
        slot: int | None = None,
    ) -> NoReturn:
        """Raises a `Disagreement`."""
        raise Disagreement(
            Difference(
                field=field,
                expected=str(expected),
                got=str(got),
                root=branch.root if branch else None,
                branch_id=branch.branch_id if branch else None,
                slot=slot,
                operation=self.operation,
                operation_name=self.operation_name,
                step=branch.length if branch else None,
            )
        )


def as_array(value: Any) -> np.ndarray:
    """Returns a tensor, array or list as a NumPy array on the host."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def compare_trajectories(ledger: Ledger, branches: list[Branch], got: Any) -> None:
    """Compares trajectories, asked for in the order of `branches`, with the model's."""
    paths = [branch.trajectory() for branch in branches]
    longest = max(len(actions) for actions, _ in paths)
    lengths = [len(actions) for actions, _ in paths]
    nowhere = [None] * len(branches)

    def same(field: str, expected: Any, values: Any) -> None:
        ledger.same(f"lineage.{field}", expected, values, branches, nowhere)

    same("branch_id", [branch.branch_id for branch in branches], got.branch_id)
    same("root", [branch.root for branch in branches], got.root)
    same("length", lengths, got.length)
    mask = np.arange(longest) < np.array(lengths)[:, None]
    same("mask", mask, got.mask)
    action = as_array(got.action)
    want_action = np.zeros(action.shape, dtype=action.dtype)
    want_reward = np.zeros((len(branches), longest), dtype=np.float64)
    for row, (actions, rewards) in enumerate(paths):
        if actions:
            want_action[row, : len(actions)] = np.asarray(actions)
            want_reward[row, : len(rewards)] = rewards
    same("action", want_action, action)
    want = torch.from_numpy(want_reward).to(got.reward.dtype)
    same("reward", want.double().numpy(), got.reward.double())
    for name, values in got.log.items():
        logged = as_array(values)
        wanted = np.zeros_like(logged)
        for row, branch in enumerate(branches):
            for step, link in enumerate(branch.path()):
                if name not in link.log:
                    raise ValueError(
                        f"the oracle's `log` has no {name!r}; expected every `log` field of the "
                        "contract, set by `advance`"
                    )
                wanted[row, step] = link.log[name]
        same(f"log.{name}", wanted, logged)
    for flag in ("terminated", "truncated", "solved", "pruned"):
        same(flag, [getattr(branch, flag) for branch in branches], getattr(got, flag))
