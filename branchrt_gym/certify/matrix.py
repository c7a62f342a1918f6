"""The rows of a certification: every pair of dimension values appears in one of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from branchrt_gym.certify.programs import PROGRAMS
from branchrt_gym.contract import BranchEnv
from branchrt_gym.registry import Registration

__all__ = ["MATRICES", "Row", "pairwise", "rows"]

CONSTRUCTOR = "parameter."  # prefix of the dimensions that vary the environment's constructor
MILLION = 1 << 20

Dimensions = Mapping[str, Sequence[Any]]

# `spare` is the number of free slots per root after a reset, `sharing` the roots per context,
# `steps` how many a program may take, `budget` the expansions of each root in a best-first search;
# None: a beam search.
POPULATION: dict[str, tuple[Any, ...]] = {
    "roots": (1, 2, 5, 12),
    "spare": (0, 1, 3, 7),
    "sharing": ("one", "pairs", "each"),
    "autoreset_mode": ("NEXT_STEP", "SAME_STEP", "DISABLED"),
    "program": tuple(PROGRAMS),
    "steps": (60,),
    "max_episode_steps": (None, 5),
    "output": ("numpy", "torch"),
    "rng": ("split", "shared"),
    "seed": (0, 20_260_101, 2**62),
}
SEARCH: dict[str, tuple[Any, ...]] = {
    "roots": (1, 3, 8),
    "beam": (1, 2, 7, 16),
    "levels": (1, 3, 64),
    "budget": (None, 1, 20),
    "stop_solved": (True, False),
    "sharing": ("one", "pairs", "each"),
    "rng": ("split", "shared"),
    "seed": (0, 20_260_101, 2**62),
}


@dataclass(frozen=True)
class Matrix:
    """What a matrix varies beside the environment's own parameters, in at least `rows` rows."""

    rows: int
    population: Dimensions
    search: Dimensions


MATRICES = {
    "quick": Matrix(120, POPULATION, SEARCH),
    "full": Matrix(
        432,
        POPULATION
        | {
            "roots": (1, 3, 8, 20, 48),
            "spare": (0, 1, 4, 11),
            "steps": (30, 120),
            "max_episode_steps": (None, 1, 9, 40),
            "seed": (0, 7, 20_260_101, 2**62),
        },
        SEARCH
        | {
            "roots": (1, 5, 16, 40),
            "beam": (1, 3, 16, 64),
            "levels": (1, 2, 17, 100),
            "budget": (None, 1, 20, 150),
            "seed": (0, 7, 20_260_101, 2**62),
        },
    ),
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
        tier: The tier of a search, `"eager"`, `"captured"` or `"fused"`; of a population the one
            that its last step ran in, known when it has run.
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
    """Returns the rows of a matrix for one environment, the same in every run.

    Every pair of dimension values is covered; random rows fill up to the matrix's number, every
    third of them a search. `"full"` has larger values of everything, the parameters in
    `registration.full` among them, and rows with millions of branches: see `_millions`.

    Raises:
        ValueError: For a matrix that this version does not have.
    """
    if matrix not in MATRICES:
        known = ", ".join(repr(name) for name in MATRICES)
        raise ValueError(f"`matrix` is {matrix!r}; expected one of: {known}")
    chosen = MATRICES[matrix]
    parameters = dict(registration.matrix)
    if matrix == "full":
        parameters |= registration.full
    varied = {CONSTRUCTOR + name: tuple(values) for name, values in parameters.items()}
    rules = registration.env_class(**registration.kwargs)
    dimensions = {"population": {**chosen.population, **varied}}
    if rules.score in rules.contract.of("branch"):
        dimensions["search"] = {**chosen.search, **varied}
    found = [
        (kind, values)
        for seed, kind in enumerate(dimensions, start=1)
        for values in pairwise(dimensions[kind], seed)
    ]
    if matrix == "full":
        found = [*_millions(rules, "search" in dimensions, device), *found]
    chance = np.random.default_rng(3)
    while len(found) < chosen.rows:
        kind = "search" if "search" in dimensions and len(found) % 3 == 0 else "population"
        found.append((kind, _random_row(dimensions[kind], chance)))
    return tuple(_row(number, *each, device) for number, each in enumerate(found))


def _millions(
    rules: BranchEnv, searches: bool, device: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields rows with a million branches, of the environment with its default parameters.

    One `fork` call makes a million children. A search keeps so many of each root that, where
    branches have not ended by then, its last level makes a million too. On a GPU another one
    makes sixteen million, likewise, over all its levels.
    """
    shared = {"sharing": "pairs", "rng": "split", "seed": 11}
    yield (
        "population",
        {
            **shared,
            "roots": 4,
            "spare": MILLION // 4,
            "autoreset_mode": "NEXT_STEP",
            "program": "crowd",
            "steps": 1,
            "max_episode_steps": None,
            "output": "torch",
        },
    )
    actions = int(getattr(rules.single_action_space, "n", 1))
    if searches and actions > 1:
        roots = 64
        beam = -(-MILLION // (roots * actions))
        levels = 1 + math.ceil(math.log(beam, actions))
        sizes = [{"roots": roots, "beam": beam, "levels": levels}]
        if device != "cpu":
            roots, beam = 4096, 64
            levels = math.ceil(math.log(beam, actions)) + 16 * MILLION // (roots * beam * actions)
            sizes.append({"roots": roots, "beam": beam, "levels": levels})
        for size in sizes:
            yield "search", {**shared, **size, "budget": None, "stop_solved": False}


def pairwise(dimensions: Dimensions, seed: int) -> list[dict[str, Any]]:
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


def _pairs(dimensions: Dimensions) -> Iterator[Pair]:
    for one, other in itertools.combinations(dimensions, 2):
        for i, j in itertools.product(range(len(dimensions[one])), range(len(dimensions[other]))):
            yield _pair(one, i, other, j)


def _random_row(dimensions: Dimensions, chance: np.random.Generator) -> dict[str, Any]:
    return {name: values[int(chance.integers(len(values)))] for name, values in dimensions.items()}


def _row(number: int, kind: str, values: Mapping[str, Any], device: str) -> Row:
    parameters: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith(CONSTRUCTOR):
            names = name.removeprefix(CONSTRUCTOR).split(",")
            parameters |= zip(names, value if len(names) > 1 else (value,), strict=True)
    settings = {name: value for name, value in values.items() if not name.startswith(CONSTRUCTOR)}
    return Row(number, kind, parameters, settings, device)
