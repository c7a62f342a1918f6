"""Orderings: in which sequence candidates are tried. They see no verdict but those already paid.

An ordering is an object with `order(table)`. One that learns has `update` too, and `wave`, the
attempts after which it wants their verdicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.evaluation.attempts import Verdicts

__all__ = [
    "CandidateTable",
    "FixedOrdering",
    "LearningOrdering",
    "Ordering",
    "current_chronological",
    "low_cost_first",
    "low_empty_first",
    "manifest_order",
    "nonempty_patch_first",
    "oracle_best",
    "oracle_each_root",
    "random_order",
]

Order = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CandidateTable:
    """What is known of `R` roots' attempts by `C` candidates before any is verified.

    Attributes:
        names: The candidates' names, `C` of them, in the order of the manifest.
        num_roots: `R`.
        dates: The candidates' dates as text that sorts, such as 2026-02-17; or None.
        cost: `[R, C] float64`, the dollars of each attempt; or None.
        calls: `[R, C] int64`, the model calls of each attempt; or None.
        empty: `[R, C] bool`, whether the patch is empty; None where it is not known.
        limit_hit: `[R, C] bool`, whether a limit ended the attempt, which leaves no patch: what
            stands in for `empty` where that is not known; or None.
        present: `[R, C] bool`, whether there is such an attempt; None for all.

    Raises:
        ValueError: If a name stands twice or an array has another shape.
    """

    names: tuple[str, ...]
    num_roots: int
    dates: tuple[str, ...] | None = None
    cost: NDArray[np.float64] | None = None
    calls: NDArray[np.int64] | None = None
    empty: NDArray[np.bool_] | None = None
    limit_hit: NDArray[np.bool_] | None = None
    present: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        """Checks the shapes; see the class."""
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"`names` has {twice!r} twice; expected each candidate once")
        if self.dates is not None and len(self.dates) != len(self.names):
            raise ValueError(
                f"`dates` has {len(self.dates)} entries; expected {len(self.names)}, one a name"
            )
        for field in fields(self)[3:]:
            given = getattr(self, field.name)
            if given is not None and given.shape != self.shape:
                raise ValueError(
                    f"`{field.name}` has shape {given.shape}; expected {self.shape}, "
                    "(roots, candidates)"
                )

    @property
    def shape(self) -> tuple[int, int]:
        """`(R, C)`."""
        return self.num_roots, len(self.names)

    @property
    def without_patch(self) -> NDArray[np.bool_] | None:
        """`[R, C] bool`: the patch is empty; where that is not known, a limit was hit."""
        return self.limit_hit if self.empty is None else self.empty

    def mean(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Returns `[C]`, the mean of `values [R, C]` over the attempts that are present."""
        if self.present is None:
            return np.asarray(values.mean(0, dtype=np.float64))
        total = values.sum(0, where=self.present, dtype=np.float64)
        return np.asarray(total / np.maximum(self.present.sum(0), 1))

    def repeated(self, num_roots: int) -> CandidateTable:
        """Returns a table of `num_roots` roots, root `r` like root `r % R` of this one."""
        row = np.arange(num_roots) % self.num_roots
        arrays = {field.name: getattr(self, field.name) for field in fields(self)[3:]}
        rows = {name: None if each is None else each[row] for name, each in arrays.items()}
        return CandidateTable(self.names, num_roots, self.dates, **rows)


@runtime_checkable
class Ordering(Protocol):
    """Says in which sequence candidates are tried."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def order(self, table: CandidateTable) -> Order:
        """Returns `[C] int64`, one sequence for all roots, or `[R, C]`, one a root.

        For an ordering that learns this is a fresh start: what it learned before is forgotten.
        """


@runtime_checkable
class LearningOrdering(Ordering, Protocol):
    """An ordering that changes its mind with the verdicts it is told."""

    @property
    def wave(self) -> int:
        """How many attempts may be issued before it wants their verdicts."""

    def update(self, roots: Any, candidates: Any, verdicts: Verdicts) -> Order | None:
        """Takes the verdicts of `M` attempts; returns a new order, or None to keep the last.

        A new order ranks all candidates again; what a root has tried keeps its place.
        """


@dataclass(frozen=True)
class FixedOrdering:
    """An ordering by a function of the table alone.

    Attributes:
        name: What reports call it.
        rank: Takes the table, returns `[C]` or `[R, C] int64`.
        needs_labels: Whether it was made with verdicts, so that nobody can have it beforehand.
    """

    name: str
    rank: Callable[[CandidateTable], Order]
    needs_labels: bool = False

    def order(self, table: CandidateTable) -> Order:
        """Returns the sequence; see `Ordering`."""
        return self.rank(table)


def known(table: CandidateTable, field: str, ordering: str) -> Any:
    """Returns a field of the table, which `ordering` cannot do without."""
    value = getattr(table, field)
    if value is None:
        needed = {"without_patch": "`empty` or `limit_hit`"}.get(field, f"`{field}`")
        raise ValueError(
            f"`{ordering}` needs {needed} of the candidates, which is not known here; "
            "give it in the table, or use manifest_order"
        )
    return value


def _manifest(table: CandidateTable) -> Order:
    return np.arange(len(table.names))


def _chronological(table: CandidateTable) -> Order:
    dates = known(table, "dates", "current_chronological")
    return np.array(sorted(_manifest(table), key=lambda each: (dates[each], table.names[each])))


def _by(table: CandidateTable, key: NDArray[np.float64]) -> Order:
    """Candidates by ascending key; draws by date and name, or as the manifest has them."""
    earlier = _manifest(table) if table.dates is None else _chronological(table)
    return earlier[np.argsort(key[earlier], kind="stable")]


def _low_empty(table: CandidateTable) -> Order:
    return _by(table, table.mean(known(table, "without_patch", "low_empty_first")))


def _nonempty(table: CandidateTable) -> Order:
    without = known(table, "without_patch", "nonempty_patch_first")
    return np.argsort(without, axis=1, kind="stable")


def _low_cost(table: CandidateTable) -> Order:
    return _by(table, table.mean(known(table, "cost", "low_cost_first")))


manifest_order = FixedOrdering("manifest_order", _manifest)
"""The candidates as they were given."""

current_chronological = FixedOrdering("current_chronological", _chronological)
"""The oldest candidate first; of one date, by name."""

low_empty_first = FixedOrdering("low_empty_first", _low_empty)
"""The candidate with the smallest share of empty patches first; draws by date and name."""

nonempty_patch_first = FixedOrdering("nonempty_patch_first", _nonempty)
"""For each root its non-empty patches first, as the manifest has them, then the empty ones."""

low_cost_first = FixedOrdering("low_cost_first", _low_cost)
"""The candidate whose attempts cost least on average first; draws by date and name."""


def random_order(seed: int = 0) -> FixedOrdering:
    """Returns an ordering that is one random permutation of the candidates."""

    def rank(table: CandidateTable) -> Order:
        return np.random.default_rng(seed).permutation(len(table.names))

    return FixedOrdering(f"random({seed})", rank)


def oracle_best(passed: NDArray[np.bool_]) -> FixedOrdering:
    """Returns the ordering by passes, most first: it is made from the labels, for reports only.

    The best fixed sequence is close to it, and no rule without labels can promise it. It is no
    strict bound; `oracle_each_root` is.

    Args:
        passed: `[R, C] bool`, all verdicts.
    """
    return FixedOrdering("oracle_best", lambda table: _by(table, -passed.mean(0)), True)


def oracle_each_root(passed: NDArray[np.bool_]) -> FixedOrdering:
    """Returns the ordering that tries first what passes: made from the labels, a bound.

    Each root's passing attempts come first, the cheapest of them first where cost is known. With
    one pass needed a root, no ordering reaches a target in fewer attempts.

    Args:
        passed: `[R, C] bool`, all verdicts.
    """

    def rank(table: CandidateTable) -> Order:
        cost = np.zeros(table.shape) if table.cost is None else table.cost
        return np.lexsort((cost, ~passed), axis=1)

    return FixedOrdering("oracle_each_root", rank, True)
