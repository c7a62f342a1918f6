"""The tree of a plan, as a structure of arrays, and what a plan says."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_ACTION", "NO_POINT", "ROOT", "Tree", "TreePlan"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROOT = 0  # the point where a plan begins
NO_POINT = -1  # the parent of `ROOT`, and of places that are not used
NO_ACTION = int(np.iinfo(np.int64).min)  # what led to `ROOT`; an action may be negative
FIRST = 64  # points of a tree to begin with


@dataclass(eq=False)
class Tree:
    """The points that a plan reached from `R` roots: `P` places each, the first `count` in use.

    A point is a branch at one moment: the root's own, or one after a transition. Points stand in
    the order in which they were made, so that a parent's number is below its children's.

    Attributes:
        count: `[R] int64`, points of each root.
        parent: `[R, P] int64`, or `NO_POINT`; the first, of a point that several ways lead to.
        action: `[R, P] int64`, the environment's action that led here, or `NO_ACTION`.
        depth: `[R, P] int64`, transitions since the root.
        reward: `[R, P] float64`, of the transition that led here; the mean where chance has a say
            and several led to the same point.
        ended: `[R, P] bool`, the episode ended here, for the transition that made the point.
        visits: `[R, P] int64`. MCTS: simulations that came through. Beam and best-first: the points
            at and below this one.
        value: `[R, P] float64`, what is earned from here on. MCTS: the mean over the visits. Beam
            and best-first: the best that was found.
        prior: `[R, P] float64`, the prior probability of the action that led here, 1 at the root.
        action_visits: `[R, P, A] int64`, how often each action was taken here.
        action_value: `[R, P, A] float64`, what taking it earns; 0 where it never was.
        action_prior: `[R, P, A] float64`, 1 / A without a policy.
    """

    count: Ints  # [R]
    parent: Ints  # [R, P]
    action: Ints  # [R, P]
    depth: Ints  # [R, P]
    reward: Floats  # [R, P]
    ended: NDArray[np.bool_]  # [R, P]
    visits: Ints  # [R, P]
    value: Floats  # [R, P]
    prior: Floats  # [R, P]
    action_visits: Ints  # [R, P, A]
    action_value: Floats  # [R, P, A]
    action_prior: Floats  # [R, P, A]
    first: int = field(default=0, repr=False)  # the environment's lowest action

    @classmethod
    def start(cls, roots: int, actions: int, first: int) -> Tree:
        """Returns trees of `ROOT` alone.

        Args:
            roots: `R`.
            actions: `A`.
            first: The lowest action.
        """
        grid = (roots, FIRST)
        tree = cls(
            count=np.ones(roots, np.int64),
            parent=np.full(grid, NO_POINT),
            action=np.full(grid, NO_ACTION),
            depth=np.zeros(grid, np.int64),
            reward=np.zeros(grid),
            ended=np.zeros(grid, np.bool_),
            visits=np.zeros(grid, np.int64),
            value=np.zeros(grid),
            prior=np.zeros(grid),
            action_visits=np.zeros((*grid, actions), np.int64),
            action_value=np.zeros((*grid, actions)),
            action_prior=np.full((*grid, actions), 1 / actions),
            first=first,
        )
        tree.prior[:, ROOT] = 1
        return tree

    def add(
        self, root: Ints, parent: Ints, choice: Ints, reward: Floats, ended: NDArray[np.bool_]
    ) -> Ints:
        """Adds points and returns their numbers, `[M] int64`.

        Args:
            root: `[M] int64`, in ascending order.
            parent: `[M] int64`, a point of that root.
            choice: `[M] int64`, which of the actions led there, from 0.
            reward: `[M] float64`.
            ended: `[M] bool`.
        """
        point = self.count[root] + np.arange(root.shape[0]) - np.searchsorted(root, root)
        if point.size and point.max() >= self.parent.shape[1]:
            self._resize(2 * int(point.max()))
        self.parent[root, point] = parent
        self.action[root, point] = choice + self.first
        self.depth[root, point] = self.depth[root, parent] + 1
        self.reward[root, point] = reward
        self.ended[root, point] = ended
        self.prior[root, point] = self.action_prior[root, parent, choice]
        np.add.at(self.count, root, 1)
        return point

    def trim(self) -> Tree:
        """Drops the places that no root uses."""
        self._resize(int(self.count.max()))
        return self

    def actions_to(self, point: int, root: int = 0) -> list[int]:
        """Returns the actions that lead from the root to a point.

        Raises:
            ValueError: If the root's tree has no such point.
        """
        if not 0 <= point < self.count[root]:
            raise ValueError(
                f"`point` is {point}; expected 0 … {self.count[root] - 1}, root {root}'s points"
            )
        path: list[int] = []
        while point != ROOT:
            path.append(int(self.action[root, point]))
            point = int(self.parent[root, point])
        return path[::-1]

    def summary(self, root: int = 0, depth: int = 2, width: int = 4) -> str:
        """Draws the part of a root's tree that was visited most, as text.

        Args:
            root: Whose.
            depth: How deep.
            width: Children of a point, at most.
        """
        lines: list[str] = []

        def draw(point: int, indent: str) -> None:
            here = "root" if point == ROOT else f"action {self.action[root, point]}"
            ended = ", ended" if self.ended[root, point] else ""
            lines.append(
                f"{indent}{here}: {self.visits[root, point]} visits, value "
                f"{self.value[root, point]:.4g}, reward {self.reward[root, point]:.4g}{ended}"
            )
            if self.depth[root, point] == depth:
                return
            children = np.flatnonzero(self.parent[root, : self.count[root]] == point)
            order = np.argsort(-self.visits[root, children], kind="stable")
            for child in children[order[:width]]:
                draw(int(child), indent + "  ")
            if children.size > width:
                lines.append(f"{indent}  and {children.size - width} more")

        draw(ROOT, "")
        return "\n".join(lines)

    def _resize(self, places: int) -> None:
        """Makes room for so many points, or drops what is beyond."""
        empty: dict[str, Any] = {"parent": NO_POINT, "action": NO_ACTION}
        empty["action_prior"] = 1 / self.action_prior.shape[2]
        for item in fields(self):
            column = getattr(self, item.name)
            if item.name in ("count", "first"):
                continue
            shape = (column.shape[0], places, *column.shape[2:])
            fresh = np.full(shape, empty.get(item.name, 0), column.dtype)
            kept = min(places, column.shape[1])
            fresh[:, :kept] = column[:, :kept]
            setattr(self, item.name, fresh)


@dataclass(frozen=True, eq=False)
class TreePlan:
    """What to do now, and what it is based on.

    Attributes:
        action: The action to take: an int for a `BranchWrapper`; for a population `[N] int64`, one
            for each slot, to be given to `step`; slots that are not live have the lowest action.
        value: What taking it is estimated to earn, discounted: a float, or `[N] float64`, NaN in
            slots that are not live. MCTS: the mean of the action's visits. Beam and best-first: the
            return of the best branch found.
        tree: One row for each root of the plan.
        slots: `[R] int64`, the population's slot that each row was planned for; 0 for one
            environment.
        transitions: `[R] int64`, transitions taken for each row, exactly.
        simulations: `[R] int64`, of MCTS; expansions of beam and best-first.
        seconds: Wall time.
    """

    action: Any
    value: Any
    tree: Tree = field(repr=False)
    slots: Ints = field(repr=False)
    transitions: Ints
    simulations: Ints
    seconds: float

    def summary(self, root: int = 0, depth: int = 2, width: int = 4) -> str:
        """Draws a root's tree; see `Tree.summary`."""
        return self.tree.summary(root, depth, width)
