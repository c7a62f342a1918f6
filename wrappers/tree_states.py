"""The branches that a plan works on: copies, apart from the environment that it plans for.

A row is a branch of the plan; rows `0 … R - 1` are the roots. Here they are environment objects, in
`tree_tensors` rows of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from branchrt_gym.oracle import fold
from branchrt_gym.seeding import Rng
from branchrt_gym.structure import map_leaves
from branchrt_gym.wrappers.branch_wrapper import BranchWrapper
from branchrt_gym.wrappers.population import SCORE_UNIT

__all__ = ["PLAN", "Numbers", "ObjectStates", "States", "Step", "score_of", "told_apart"]

Ints = NDArray[np.int64]
PLAN = 5 << 40  # beside the words of `branchrt_gym.seeding`: keys of plans are their own


class Step(NamedTuple):
    """What a step of `M` rows earned.

    Attributes:
        reward: `[M] float64`.
        ended: `[M] bool`, terminated or truncated.
        score: `[M] int64`, what `search` ranks by; None where that is the return.
    """

    reward: NDArray[np.float64]
    ended: NDArray[np.bool_]
    score: Ints | None


class States(Protocol):
    """Rows of branches.

    Attributes:
        roots: `R`.
        space: The actions.
        certain: Whether no transition depends on chance.
        scored: Whether steps come with scores.
    """

    roots: int
    space: Discrete
    certain: bool
    scored: bool

    def take(self, count: int) -> Ints:
        """Returns rows that are not in use."""
        ...

    def free(self, rows: Iterable[int]) -> None:
        """Gives rows back."""
        ...

    def copy(self, source: Ints, to: Ints, rng: Rng) -> None:
        """Forks branches: `source` rows into `to` rows; a source named twice twice."""
        ...

    def step(self, rows: Ints, choice: Ints) -> Step:
        """Steps branches in place by their actions, counted from 0."""
        ...

    def observe(self, rows: Ints) -> Any:
        """Returns a batch of observations, as a vector environment's."""
        ...

    def outcome(self, rows: Ints) -> list[bytes]:
        """Returns the observations, to be told apart."""
        ...


def score_of(returns: NDArray[np.float64]) -> Ints:
    """Returns the scores of branches that are ranked by their return, in 65,536ths."""
    scores: Ints = np.rint(returns * SCORE_UNIT).astype(np.int64)
    return scores


class Numbers:
    """Numbers of rows: the first `used` were taken, of which `spare` were given back."""

    def __init__(self, used: int) -> None:
        """Starts with so many taken."""
        self.used = used
        self.spare: list[int] = []

    def take(self, count: int) -> Ints:
        """Returns numbers that are not taken."""
        again = min(count, len(self.spare))
        rows = [self.spare.pop() for _ in range(again)]
        rows.extend(range(self.used, self.used + count - again))
        self.used += count - again
        return np.array(rows, np.int64)


class ObjectStates:
    """Rows of environment objects.

    Args:
        roots: Whose futures are planned; they are copied, and left as they are.
        keys: The branches' own, 64 bits; the luck of one that differs from its object's is yet to
            be drawn from it.
        rng: Whether the copies' luck is apart from theirs.
        seed: Of the luck, if it is.
        left: `[R]`, steps until a branch is truncated, beside what its object says.
        as_torch: Whether observations are tensors.
    """

    certain = False
    scored = False

    def __init__(
        self,
        roots: Sequence[BranchWrapper[Any, Any]],
        keys: Sequence[int],
        rng: Rng,
        seed: int,
        *,
        left: Sequence[float] | None = None,
        as_torch: bool = False,
    ) -> None:
        """Copies the roots."""
        self.roots = len(roots)
        self.space: Discrete = roots[0].action_space  # type: ignore[assignment]
        self.observed = roots[0].observation_space
        self.as_torch = as_torch
        self.objects: list[Any] = []
        self.left = [math.inf] * len(roots) if left is None else list(left)
        for root, key in zip(roots, keys, strict=True):
            copy = root.twin(None if root.key == key else key)
            copy.rekey(fold(fold(key, PLAN), seed) if rng == "split" else key)
            self.objects.append(copy)
        self._rows = Numbers(self.roots)
        self._actions = [self.space.start + i for i in range(int(self.space.n))]

    def take(self, count: int) -> Ints:
        """As `States.take`."""
        rows = self._rows.take(count)
        more = self._rows.used - len(self.objects)
        self.objects.extend([None] * more)
        self.left.extend([math.inf] * more)
        return rows

    def free(self, rows: Iterable[int]) -> None:
        """As `States.free`."""
        for row in rows:
            self.objects[row] = None
            self._rows.spare.append(int(row))

    def copy(self, source: Ints, to: Ints, rng: Rng) -> None:
        """As `States.copy`."""
        for row, place in zip(source.tolist(), to.tolist(), strict=True):
            (self.objects[place],) = self.objects[row].fork(1, rng)
            self.left[place] = self.left[row]

    def step(self, rows: Ints, choice: Ints) -> Step:
        """As `States.step`."""
        reward, ended = np.empty(rows.shape[0]), np.empty(rows.shape[0], np.bool_)
        for i, (row, child) in enumerate(zip(rows.tolist(), choice.tolist(), strict=True)):
            made = self.objects[row].step(self._actions[child])
            self.left[row] -= 1
            reward[i], ended[i] = made[1], made[2] or made[3] or self.left[row] <= 0
        return Step(reward, ended, None)

    def observe(self, rows: Ints) -> Any:
        """As `States.observe`."""
        seen = [self.objects[row].observation for row in rows.tolist()]
        room: Any = create_empty_array(self.observed, len(seen))
        batch = concatenate(self.observed, seen, room)
        return map_leaves(torch.from_numpy, batch) if self.as_torch else batch

    def outcome(self, rows: Ints) -> list[bytes]:
        """As `States.outcome`."""
        return [told_apart(self.objects[row].observation) for row in rows.tolist()]


def told_apart(tree: Any) -> bytes:
    """Returns the bytes of an observation."""
    parts: list[bytes] = []

    def leaf(value: Any) -> None:
        parts.append(np.asarray(value).tobytes())

    map_leaves(leaf, tree)
    return b"".join(parts)
