"""Monte-Carlo tree search over the rows of a plan, all roots in step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from branchrt_gym.wrappers.tree import NO_POINT, ROOT, Tree
from branchrt_gym.wrappers.tree_budget import Budget, Luck
from branchrt_gym.wrappers.tree_states import States

__all__ = ["Judge", "Mcts", "PointsBy", "Rules"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Judge = Callable[[Any], Any]  # a batch of observations -> an array, one row for each
PointsBy = Literal["history", "observation", "actions"]
Key = tuple[int, int, int, bytes]


@dataclass(frozen=True)
class Rules:
    """How simulations choose and estimate; see `TreeSearch.mcts` for each."""

    discount: float
    exploration: float
    policy: Judge | None
    value: Judge | None
    rollout: Judge | None
    rollout_depth: int
    kept: bool  # points keep their branch, whose future is certain
    points_by: PointsBy


class _Level(NamedTuple):
    """One step down: places among the simulations, where they were, what they did and got."""

    going: Ints
    point: Ints
    choice: Ints
    child: Ints
    reward: Floats


class Mcts:
    """The trees of all roots, and the simulations that grow them.

    Without chance a point keeps its branch, and a simulation takes one transition down the tree,
    the one that is new. With chance a simulation is a branch of its own, forked from the root with
    luck of its own, which steps all the way; what it observes says through which points it goes.
    """

    def __init__(
        self, states: States, tree: Tree, budget: Budget, luck: Luck, rules: Rules
    ) -> None:
        """Evaluates the roots, if there is a policy or a value."""
        self.states, self.tree, self.budget, self.luck = states, tree, budget, luck
        self.rules = rules
        roots = np.arange(states.roots)
        self.walker = states.take(states.roots)  # the row in which a root's simulation walks
        self.row = {(root, ROOT): root for root in roots.tolist()}  # of points that keep one
        self.children: dict[Key, int] = {}
        self.low = np.full(states.roots, np.inf)  # of the action values seen in each tree
        self.high = np.full(states.roots, -np.inf)
        if rules.policy is not None:
            self._judge_actions(roots, np.full_like(roots, ROOT), roots)

    def simulate(self, on: Ints) -> None:
        """Runs one simulation of each root in `on`, `[m] int64` in ascending order."""
        if not self.rules.kept:
            self.states.copy(on, self.walker[on], "split")
        at = np.full_like(on, ROOT)
        leaf = np.zeros(on.size, np.bool_)  # reached a point that is new and goes on
        whole = np.ones(on.size, np.bool_)
        levels: list[_Level] = []
        going = np.arange(on.size)
        while going.size:
            root, point = on[going], at[going]
            choice = self.select(root, point)
            child, reward, ended = self._descend(root, point, choice)
            cut = child == NO_POINT
            whole[going[cut]] = False
            new = self.tree.visits[root, child] == 0
            levels.append(_Level(going, point, choice, child, reward))
            at[going] = child
            leaf[going] = new & ~ended & ~cut
            going = going[~(new | ended | cut)]
        value = np.zeros(on.size)
        value[leaf] = self._estimate(on[leaf], at[leaf])
        self._look_back(on, whole, at, value, levels)

    def select(self, root: Ints, point: Ints) -> Ints:
        """Returns the action, from 0, that a simulation of each root takes at a point; `[m]`."""
        tree = self.tree
        visits = tree.action_visits[root, point]
        value = tree.action_value[root, point]
        total = visits.sum(1, keepdims=True)
        if self.rules.policy is None:
            tried = np.maximum(visits, 1)
            bonus = np.sqrt(np.log(np.maximum(total, 1)) / tried)
            score = self._scaled(root, value) + self.rules.exploration * bonus
            score[visits == 0] = np.inf
        else:
            value = np.where(visits > 0, value, tree.value[root, point][:, None])
            bonus = tree.action_prior[root, point] * np.sqrt(1 + total) / (1 + visits)
            score = self._scaled(root, value) + self.rules.exploration * bonus
        return self.luck.best(root, score)

    def _scaled(self, root: Ints, value: Floats) -> Floats:
        """Action values in [0, 1]: 0 for the lowest seen in the tree so far, 1 for the highest."""
        low, spread = self.low[root, None], (self.high - self.low)[root, None]
        wide = spread > 0
        scaled: Floats = np.where(wide, (value - low) / np.where(wide, spread, 1.0), 0.0)
        return scaled

    def _descend(
        self, root: Ints, point: Ints, choice: Ints
    ) -> tuple[Ints, Floats, NDArray[np.bool_]]:
        """Takes an action at a point of each root.

        Returns:
            The points reached, or `NO_POINT` where the budget does not allow the step; rewards;
            and whether the episode has ended.
        """
        tree, states = self.tree, self.states
        child = np.full_like(root, NO_POINT)
        reward, ended = np.zeros(root.size), np.zeros(root.size, np.bool_)
        if self.rules.kept:
            child[:] = [self.children.get(key, NO_POINT) for key in _ways(root, point, choice)]
            known = child != NO_POINT
            reward[known] = tree.reward[root[known], child[known]]
            ended[known] = tree.ended[root[known], child[known]]
        steps = np.flatnonzero((child == NO_POINT) & self.budget.allows(root))
        if not steps.size:
            return child, reward, ended
        r, p, c = root[steps], point[steps], choice[steps]
        row = self.walker[r]
        if self.rules.kept:
            row = states.take(steps.size)
            states.copy(self._rows_of(r, p), row, "shared")
        made = states.step(row, c)
        self.budget.used[r] += 1
        reward[steps], ended[steps] = made.reward, made.ended
        keys = self._keys(r, p, c, row, made.ended)
        child[steps] = [self.children.get(key, NO_POINT) for key in keys]
        fresh = np.flatnonzero(child[steps] == NO_POINT)
        born = tree.add(r[fresh], p[fresh], c[fresh], made.reward[fresh], made.ended[fresh])
        child[steps[fresh]] = born
        for place, number in zip(fresh.tolist(), born.tolist(), strict=True):
            self.children[keys[place]] = number
            if self.rules.kept:
                self.row[keys[place][0], number] = int(row[place])
        return child, reward, ended

    def _keys(
        self, root: Ints, point: Ints, choice: Ints, row: Ints, ended: NDArray[np.bool_]
    ) -> list[Key]:
        """Returns what the points that steps lead to are known by."""
        if self.rules.kept or self.rules.points_by == "actions":
            return _ways(root, point, choice)
        if self.rules.points_by == "observation":  # at a depth, however it was come by
            point, choice = self.tree.depth[root, point], np.zeros_like(choice)
        return [
            (*way[:3], bytes([end]) + seen)
            for way, end, seen in zip(
                _ways(root, point, choice), ended.tolist(), self.states.outcome(row), strict=True
            )
        ]

    def _rows_of(self, root: Ints, point: Ints) -> Ints:
        """Returns the rows that points keep."""
        places = zip(root.tolist(), point.tolist(), strict=True)
        return np.array([self.row[place] for place in places], np.int64)

    def _estimate(self, root: Ints, point: Ints) -> Floats:
        """Returns what new points are worth, `[m]`, and gives them their priors."""
        if not root.size:
            return np.zeros(0)
        row = self._rows_of(root, point) if self.rules.kept else self.walker[root]
        if self.rules.policy is not None:
            self._judge_actions(root, point, row)
        if self.rules.value is not None:
            return _read("value", self.rules.value(self.states.observe(row)), (root.size,))
        if self.rules.kept:
            self.states.copy(row, self.walker[root], "shared")
        return self._roll_out(root)

    def _roll_out(self, root: Ints) -> Floats:
        """Plays on from where the walkers of the roots are; returns what they earn, `[m]`."""
        states, rules = self.states, self.rules
        earned, weight = np.zeros(root.size), 1.0
        going = np.arange(root.size)
        for _ in range(rules.rollout_depth):
            going = going[self.budget.allows(root[going])]
            if not going.size:
                break
            who = root[going]
            row = self.walker[who]
            chances = np.ones((1, int(states.space.n)))
            if rules.rollout is not None:
                chances = _chances("rollout", rules.rollout, states, row)
            made = states.step(row, self.luck.choose(who, chances))
            self.budget.used[who] += 1
            earned[going] += weight * made.reward
            weight *= rules.discount
            going = going[~made.ended]
        return earned

    def _look_back(
        self, on: Ints, whole: NDArray[np.bool_], at: Ints, value: Floats, levels: list[_Level]
    ) -> None:
        """Adds what the simulations found to every point and action on their ways."""
        tree = self.tree
        value = value.copy()
        places = np.flatnonzero(whole)
        self._count(on[places], at[places], value[places])
        for level in reversed(levels):
            done = whole[level.going]
            places, root = level.going[done], on[level.going[done]]
            point, choice = level.point[done], level.choice[done]
            child, reward = level.child[done], level.reward[done]
            more = (reward - tree.reward[root, child]) / tree.visits[root, child]
            tree.reward[root, child] += more
            value[places] = reward + self.rules.discount * value[places]
            tree.action_visits[root, point, choice] += 1
            mean = tree.action_value[root, point, choice]
            mean += (value[places] - mean) / tree.action_visits[root, point, choice]
            tree.action_value[root, point, choice] = mean
            self.low[root] = np.minimum(self.low[root], mean)
            self.high[root] = np.maximum(self.high[root], mean)
            self._count(root, point, value[places])

    def _count(self, root: Ints, point: Ints, value: Floats) -> None:
        tree = self.tree
        tree.visits[root, point] += 1
        tree.value[root, point] += (value - tree.value[root, point]) / tree.visits[root, point]

    def _judge_actions(self, root: Ints, point: Ints, row: Ints) -> None:
        assert self.rules.policy is not None
        self.tree.action_prior[root, point] = _chances(
            "policy", self.rules.policy, self.states, row
        )


def _ways(root: Ints, point: Ints, choice: Ints) -> list[Key]:
    places = zip(root.tolist(), point.tolist(), choice.tolist(), strict=True)
    return [(*place, b"") for place in places]


def _chances(name: str, judge: Judge, states: States, row: Ints) -> Floats:
    """Returns what a policy says of rows, as probabilities, `[m, A]`."""
    weight = _read(name, judge(states.observe(row)), (row.size, int(states.space.n)))
    total = weight.sum(1, keepdims=True)
    if (weight < 0).any() or not (total > 0).all():
        raise ValueError(
            f"`{name}` returned weights from {weight.min()} to {weight.max()}; expected "
            "probabilities of the actions, 0 or more, not all 0"
        )
    chances: Floats = weight / total
    return chances


def _read(name: str, given: Any, shape: tuple[int, ...]) -> Floats:
    if isinstance(given, Tensor):
        given = given.detach().to("cpu", torch.float64).numpy()
    array = np.asarray(given)
    if array.shape != shape or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        kind = "" if array.dtype.kind not in "fiu" or array.shape != shape else ", not all finite"
        raise ValueError(
            f"`{name}` returned {array.dtype} of shape {array.shape}{kind}; expected finite "
            f"numbers of shape {shape}, a row for each observation"
        )
    return array.astype(np.float64)
