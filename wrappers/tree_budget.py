"""What a plan may spend, and what chance it plays with."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Budget", "Luck", "counted", "expect_end"]

Ints = NDArray[np.int64]
BLOCK = 256  # draws of a root that are made at once


class Budget:
    """Transitions of each root, seconds of all together, or both.

    Args:
        roots: `R`.
        transitions: At most; None for no limit.
        seconds: After which nothing is begun any more; None for no limit.
        least: Transitions without which there is no plan at all, and what they are.
    """

    def __init__(
        self, roots: int, transitions: int | None, seconds: float | None, least: tuple[int, str]
    ) -> None:
        """Checks both, and starts the clock."""
        need, what = least
        whole = isinstance(transitions, int | np.integer) and not isinstance(transitions, bool)
        if transitions is not None and (not whole or transitions < need):
            raise ValueError(
                f"`transitions` is {transitions!r}; expected an int of at least {need}, {what}"
            )
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (number and seconds > 0):
            raise ValueError(f"`seconds` is {seconds!r}; expected a time above 0, or None")
        self.transitions = None if transitions is None else int(transitions)
        self.seconds = seconds
        self.used = np.zeros(roots, np.int64)
        self.simulations = np.zeros(roots, np.int64)
        self.began = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the plan began."""
        return time.perf_counter() - self.began

    @property
    def late(self) -> bool:
        """Whether the time is over; never before something was done."""
        return (
            self.seconds is not None
            and bool(self.simulations.any())
            and self.elapsed >= self.seconds
        )

    def allows(self, root: Ints, cost: Ints | int = 1) -> NDArray[np.bool_]:
        """Returns, `[M] bool`, whether roots, none named twice, may take so many transitions."""
        if self.transitions is None:
            return np.ones(root.shape[0], np.bool_)
        allowed: NDArray[np.bool_] = self.used[root] + cost <= self.transitions
        return allowed

    def begins(self) -> Ints:
        """Returns the roots that begin another simulation, and counts it.

        A simulation that ends in what the tree knows takes no transition, so there are no more of
        them than of transitions: in a tree that is known to its ends they would never end.
        """
        if self.late:
            return np.empty(0, np.int64)
        every = np.arange(self.used.shape[0])
        if self.transitions is not None:
            every = every[np.maximum(self.used, self.simulations) < self.transitions]
        self.simulations[every] += 1
        return every


class Luck:
    """The random draws of a plan: for each root a stream of its own, whatever the others do.

    Args:
        seed: Of all streams.
        roots: `R`.
        actions: `A`, numbers of a draw.
    """

    def __init__(self, seed: int, roots: int, actions: int) -> None:
        """Seeds the streams."""
        self._sources = [np.random.default_rng([seed, root]) for root in range(roots)]
        self._block = np.empty((roots, BLOCK, actions))
        self._at = np.full(roots, BLOCK)

    def draw(self, root: Ints) -> NDArray[np.float64]:
        """Returns numbers in [0, 1), `[M, A]`, for roots, none named twice."""
        for empty in root[self._at[root] == BLOCK].tolist():
            self._sources[empty].random(out=self._block[empty])
            self._at[empty] = 0
        drawn: NDArray[np.float64] = self._block[root, self._at[root]]
        self._at[root] += 1
        return drawn

    def best(self, root: Ints, score: NDArray[Any]) -> Ints:
        """Returns the place of the highest of `[M, A]` in each row; of equals one by chance."""
        top = score == score.max(1, keepdims=True)
        place: Ints = np.where(top, self.draw(root), -1.0).argmax(1)
        return place

    def choose(self, root: Ints, weight: NDArray[np.float64]) -> Ints:
        """Returns a place in each row of `[M, A]` with the probabilities given by the weights."""
        sums = weight.cumsum(1)
        point = self.draw(root)[:, :1] * sums[:, -1:]
        place: Ints = (sums <= point).sum(1)
        return place


def counted(name: str, value: int) -> int:
    """Returns an int of 1 or more, or raises."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"`{name}` is {value!r}; expected an int of 1 or more")
    return int(value)


def expect_end(transitions: int | None, seconds: float | None) -> None:
    """Raises where nothing bounds a plan."""
    if transitions is None and seconds is None:
        raise ValueError("neither `transitions` nor `seconds` is given; a plan must end: give one")
