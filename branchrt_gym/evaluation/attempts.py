"""The words of an evaluation: attempts, their life, verdicts, and what a verifier is.

A root (a task) is tried by candidates (submissions, policies, rollouts). An attempt is one pair:
PENDING -> ISSUED -> PASSED or FAILED. An infrastructure failure is no verdict: the attempt is
PENDING again, and GIVEN_UP after a bounded number of them. Where the root is decided first, an
attempt ends as SKIPPED (never issued) or CANCELLED (issued).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

__all__ = [
    "ABSENT",
    "CANCELLED",
    "FAILED",
    "GIVEN_UP",
    "ISSUED",
    "PASSED",
    "PENDING",
    "SKIPPED",
    "STATUS_NAMES",
    "UNITS",
    "Attempt",
    "BatchVerifier",
    "Verdict",
    "Verdicts",
    "Verifier",
    "attempt_digest",
    "target_count",
]

PENDING: Final = 0  # may still be issued
ISSUED: Final = 1  # given to a verifier
PASSED: Final = 2
FAILED: Final = 3
GIVEN_UP: Final = 4  # as many infrastructure failures as may be
CANCELLED: Final = 5  # issued, then not wanted any more
SKIPPED: Final = 6  # not wanted before it was issued
ABSENT: Final = 7  # there is no such candidate for this root
STATUS_NAMES: Final = (
    "pending",
    "issued",
    "passed",
    "failed",
    "given up",
    "cancelled",
    "skipped",
    "absent",
)

UNITS: Final = 10**9  # costs and seconds are added as whole billionths: in any order the same


class Attempt(NamedTuple):
    """A candidate of a root, as a verifier is given it.

    Attributes:
        root: The root's index, `0 … R - 1`.
        candidate: The candidate's index, `0 … C - 1`.
        digest: What it is by content (`attempt_digest`); empty where nobody asked for it.
    """

    root: int
    candidate: int
    digest: str = ""


class Verdict(NamedTuple):
    """What a verifier says of one attempt.

    Attributes:
        passed: Whether it counts towards solving its root.
        score: Any figure that goes with it; decides nothing.
        cost: What it cost, 0 or more, in the unit of the budget (dollars, say).
        seconds: The time it took, 0 or more.
        infrastructure: None; or why there is no verdict, in words (a crash, a timeout, garbage).
            Then nothing else in here counts, and the attempt may be tried again.
    """

    passed: bool
    score: float = 0.0
    cost: float = 0.0
    seconds: float = 0.0
    infrastructure: str | None = None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts of `M` attempts as columns, NumPy arrays or tensors of one device.

    Attributes:
        passed: `[M] bool`.
        score: `[M] float64`, or None for zeros. cost, seconds: likewise.
        infrastructure: The row of each attempt without a verdict, and why it has none.
    """

    passed: Any
    score: Any = None
    cost: Any = None
    seconds: Any = None
    infrastructure: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Self:
        """Returns single verdicts as columns."""
        rows = list(verdicts)
        columns = list(zip(*rows, strict=True)) or [(), (), (), (), ()]
        passed, score, cost, seconds, causes = columns
        return cls(
            np.array(passed, dtype=np.bool_),
            np.array(score, dtype=np.float64),
            np.array(cost, dtype=np.float64),
            np.array(seconds, dtype=np.float64),
            {row: cause for row, cause in enumerate(causes) if cause is not None},
        )

    def __len__(self) -> int:
        """Returns how many attempts these are the verdicts of."""
        return len(self.passed)

    def __getitem__(self, row: int) -> Verdict:
        """Returns one of them."""
        numbers = (self.score, self.cost, self.seconds)
        score, cost, seconds = (0.0 if each is None else float(each[row]) for each in numbers)
        cause = self.infrastructure.get(row)
        return Verdict(bool(self.passed[row]), score, cost, seconds, cause)


@runtime_checkable
class Verifier(Protocol):
    """Verifies single attempts, several at a time: a pool, a server, containers.

    An exception inside, a timeout, a crash or garbage is reported as a `Verdict` with
    `infrastructure`, never as a failed attempt.
    """

    @property
    def version(self) -> str:
        """What verdicts depend on besides the attempt; part of each content address."""

    @property
    def capacity(self) -> int:
        """How many attempts it holds at once."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Takes attempts, never more than are free of its capacity; returns at once."""

    def poll(self, timeout: float | None) -> list[tuple[Attempt, Verdict]]:
        """Returns what was decided since, in that order.

        Waits until there is one, or `timeout` seconds; None waits without end. With nothing
        submitted it returns an empty list at once.
        """

    def cancel(self, attempts: Sequence[Attempt]) -> None:
        """Gives up attempts where it can; one of them may still be reported."""

    def close(self) -> None:
        """Stops everything that it started; may be called again."""


@runtime_checkable
class BatchVerifier(Protocol):
    """Verifies a whole wave in one call: a replay, or an environment in process."""

    @property
    def version(self) -> str:
        """What verdicts depend on besides the attempt; part of each content address."""

    def verify(self, roots: Any, candidates: Any) -> Verdicts:
        """Returns the verdicts of `M` attempts.

        Args:
            roots: `[M] int64`, ascending within a round, on the device of the decisions.
            candidates: `[M] int64`, likewise.
        """


def attempt_digest(task: str, candidate: str, content: str, version: str) -> str:
    """Returns the content address of an attempt, 64 hexadecimal digits.

    Args:
        task: The task's id.
        candidate: The candidate's name.
        content: The digest of what is verified (a patch, say): another content, another attempt.
        version: The verifier's version.
    """
    parts = (task, candidate, content, version)
    # Lengths before parts: no two different tuples are one text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def target_count(target: float | None, num_roots: int) -> int | None:
    """Returns how many roots are to be solved: a count as it is, a share of all rounded up.

    Args:
        target: An int from 1 to `num_roots`; a float in (0, 1], exact as it is written (0.8 of
            500 is 400); or None.
        num_roots: Roots.
    """
    if target is None:
        return None
    whole = isinstance(target, int | np.integer) and not isinstance(target, bool)
    if whole and 1 <= target <= num_roots:
        return int(target)
    if isinstance(target, float) and 0 < target <= 1:
        return math.ceil(Fraction(repr(float(target))) * num_roots)
    raise ValueError(
        f"`target` is {target!r}; expected a count from 1 to {num_roots}, the number of roots, or "
        "a share of them, a float above 0 and at most 1"
    )
