"""The rows of a certification: every pair of dimension values appears in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from branchrt_gym.certify.programs import PROGRAMS
from branchrt_gym.registry import Registration

__all__ = ["MATRICES", "Row", "pairwise", "rows"]

MATRICES = ("quick",)
QUICK_ROWS = 120
CONSTRUCTOR = "parameter."  # prefix of the dimensions that vary the environment's constructor

# `spare` is the number of free slots per root after a reset, `sharing` the roots per context.
POPULATION: dict[str, tuple[Any, ...]] = {
    "roots": (1, 2, 5, 12),
    "spare": (0, 1, 3, 7),
    "sharing": ("one", "pairs", "each"),
    "autoreset_mode": ("NEXT_STEP", "SAME_STEP", "DISABLED"),
    "program": tuple(PROGRAMS),
    "max_episode_steps": (None, 5),
    "output": ("numpy", "torch"),
    "rng": ("split", "shared"),
    "seed": (0, 20_260_101, 2**62),
}
SEARCH: dict[str, tuple[Any, ...]] = {
    "roots": (1, 3, 8),
    "beam": (1, 2, 7, 16),
    "levels": (1, 3, 64),
    "sharing": ("one", "pairs", "each"),
    "rng": ("split", "shared"),
    "seed": (0, 20_260_101, 2**62),
}


@dataclass(frozen=True)
class Row:
    """One row: what is run, on what, where.

    Attributes:
        number: Its place in the matrix, from 0.
        kind: `"population"` (a program of operations) or `"search"`.
        parameters: Constructor parameters of the environment and of its oracle.
        settings: The other dimensions; see `POPULATION` and `SEARCH`.
        device: A torch device.
        tier: The execution tier: `"eager"`.
    """

    number: int
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    tier: str = "eager"

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as JSON takes it."""
        return asdict(self)

    @property
    def title(self) -> str:
        """A short line for a progress bar."""
        values = {**self.parameters, **self.settings}
        return f"{self.kind} " + " ".join(f"{name}={value}" for name, value in values.items())

    @property
    def num_roots(self) -> int:
        """The roots of the row."""
        return int(self.settings["roots"])

    @property
    def num_envs(self) -> int:
        """The slots of a population row."""
        return self.num_roots * (1 + int(self.settings["spare"]))

    @property
    def num_contexts(self) -> int:
        """The contexts of the row."""
        roots = self.num_roots
        return {"one": 1, "pairs": (roots + 1) // 2, "each": roots}[self.settings["sharing"]]


def rows(
    registration: Registration, matrix: str = "quick", *, device: str = "cpu"
) -> tuple[Row, ...]:
    """Returns the rows of a matrix for one environment.

    `"quick"` covers every pair of dimension values, and is filled up with random rows to
    `QUICK_ROWS`; it is the same in every run.

    Raises:
        ValueError: For a matrix that this version does not have.
    """
    if matrix not in MATRICES:
        known = ", ".join(repr(name) for name in MATRICES)
        raise ValueError(f"`matrix` is {matrix!r}; expected one of: {known}")
    varied = {CONSTRUCTOR + name: tuple(values) for name, values in registration.matrix.items()}
    populations = pairwise(POPULATION | varied, seed=1)
    ranks = registration.env_class(**registration.kwargs)
    can_search = ranks.score in ranks.contract.of("branch")
    searches = pairwise(SEARCH | varied, seed=2) if can_search else []
    chance = np.random.default_rng(3)
    while len(populations) + len(searches) < QUICK_ROWS:
        populations.append(_random_row(POPULATION | varied, chance))
    kinds = [("population", values) for values in populations]
    kinds += [("search", values) for values in searches]
    return tuple(_row(number, *kind, device) for number, kind in enumerate(kinds))


def pairwise(dimensions: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Covers all pairs of values of any two dimensions with few rows.

    Each row starts from a pair that is not covered yet and takes, dimension by dimension in random
    order, the value that covers most further pairs. Greedy: within a small factor of the least
    number of rows, which is the product of the two largest dimensions.
    """
    names = list(dimensions)
    chance = np.random.default_rng(seed)
    open_pairs = set(_pairs(dimensions))
    covered = []
    while open_pairs:
        one, i, other, j = min(open_pairs)
        chosen = {one: i, other: j}
        for name in chance.permutation([name for name in names if name not in chosen]):
            gains = [
                sum(_pair(name, value, *item) in open_pairs for item in chosen.items())
                for value in range(len(dimensions[name]))
            ]
            best = [value for value, gain in enumerate(gains) if gain == max(gains)]
            chosen[str(name)] = int(chance.choice(best))
        open_pairs -= {
            _pair(*first, *second) for first, second in itertools.combinations(chosen.items(), 2)
        }
        covered.append({name: dimensions[name][chosen[name]] for name in names})
    return covered


Pair = tuple[str, int, str, int]


def _pair(one: str, i: int, other: str, j: int) -> Pair:
    return (one, i, other, j) if one < other else (other, j, one, i)


def _pairs(dimensions: Mapping[str, Sequence[Any]]) -> Iterator[Pair]:
    for one, other in itertools.combinations(dimensions, 2):
        for i, j in itertools.product(range(len(dimensions[one])), range(len(dimensions[other]))):
            yield _pair(one, i, other, j)


def _random_row(
    dimensions: Mapping[str, Sequence[Any]], chance: np.random.Generator
) -> dict[str, Any]:
    return {name: values[int(chance.integers(len(values)))] for name, values in dimensions.items()}


def _row(number: int, kind: str, values: Mapping[str, Any], device: str) -> Row:
    parameters = {
        name.removeprefix(CONSTRUCTOR): value
        for name, value in values.items()
        if name.startswith(CONSTRUCTOR)
    }
    settings = {name: value for name, value in values.items() if not name.startswith(CONSTRUCTOR)}
    return Row(number, kind, parameters, settings, device)
