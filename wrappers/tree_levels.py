"""Beam and best-first over the rows of a plan, selected as `search` selects."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.seeding import Rng
from branchrt_gym.wrappers.tree import ROOT, Tree
from branchrt_gym.wrappers.tree_budget import Budget
from branchrt_gym.wrappers.tree_states import States, score_of

__all__ = ["grow"]

Ints = NDArray[np.int64]


def grow(
    states: States,
    tree: Tree,
    budget: Budget,
    policy: Beam | BestFirst,
    depth: int | None,
    rng: Rng,
    discount: float,
) -> tuple[Ints, NDArray[np.float64]]:
    """Expands and selects until the depth or the budget is reached, or no branch is open.

    A root whose next expansion does not fit its budget stops; expansions are whole.

    Returns:
        Of each root's best branch: the action, counted from 0, that the way to it begins with,
        `[R] int64`, and its return from the root on, `[R] float64`.
    """
    roots, fanout = np.arange(states.roots), int(states.space.n)
    selection = Beam(policy.width)
    stopped = np.zeros(states.roots, np.bool_)
    # The branches that are held, by root, then by rank; the root's own is expanded first.
    held: dict[str, NDArray[Any]] = {
        "root": roots,
        "row": roots,
        "point": np.full_like(roots, ROOT),
        "first": np.zeros_like(roots),
        "score": np.zeros_like(roots),
        "earned": np.zeros(states.roots),
        "ended": np.zeros_like(stopped),
    }
    while not budget.late:
        level = tree.depth[held["root"], held["point"]]
        within = True if depth is None else level < depth
        expand = np.flatnonzero(~held["ended"] & ~stopped[held["root"]] & within)
        if isinstance(policy, BestFirst):
            expand = expand[np.unique(held["root"][expand], return_index=True)[1]]
        expansions = np.bincount(held["root"][expand], minlength=states.roots)
        stopped |= ~budget.allows(roots, expansions * fanout)
        expand = expand[~stopped[held["root"][expand]]]
        if not expand.size:
            break
        expansions[stopped] = 0
        budget.used += expansions * fanout
        budget.simulations += expansions

        parent = expand.repeat(fanout)
        choice = np.tile(np.arange(fanout), expand.size)
        row = states.take(parent.size)
        states.copy(held["row"][parent], row, rng)
        step = states.step(row, choice)
        root, above = held["root"][parent], held["point"][parent]
        earned = held["earned"][parent] + discount ** level[parent] * step.reward
        children = {
            "root": root,
            "row": row,
            "point": tree.add(root, above, choice, step.reward, step.ended),
            "first": np.where(above == ROOT, choice, held["first"][parent]),
            "score": score_of(earned) if step.score is None else step.score,
            "earned": earned,
            "ended": step.ended,
        }
        # Candidates in order: the branches held, with the children of those expanded in place.
        stays = np.delete(np.arange(held["row"].size), expand)
        order = np.argsort(np.concatenate([stays, parent]), kind="stable")
        there = {
            name: np.concatenate([column[stays], children[name]])[order]
            for name, column in held.items()
        }
        kept = selection.select(torch.from_numpy(there["root"]), torch.from_numpy(there["score"]))
        states.free(held["row"][expand])
        states.free(np.delete(there["row"], kept.numpy()))
        held = {name: column[kept.numpy()] for name, column in there.items()}
    best = np.searchsorted(held["root"], roots)
    _look_back(tree, discount)
    return held["first"][best], held["earned"][best]


def _look_back(tree: Tree, discount: float) -> None:
    """Writes what was found below each point: how many points, and the best return."""
    places = tree.parent.shape[1]
    used = np.arange(places) < tree.count[:, None]
    tree.visits[used] = 1
    tree.value[used] = -np.inf  # until a child is looked at
    deep = np.where(used, tree.depth, -1)
    for depth in range(int(deep.max()), -1, -1):
        root, point = np.nonzero(deep == depth)
        value = tree.value[root, point]
        tree.value[root, point] = value = np.where(np.isinf(value), 0.0, value)
        if depth == 0:
            break
        parent, choice = tree.parent[root, point], tree.action[root, point] - tree.first
        found = tree.reward[root, point] + discount * value
        np.add.at(tree.visits, (root, parent), tree.visits[root, point])
        np.maximum.at(tree.value, (root, parent), found)
        tree.action_visits[root, parent, choice] = tree.visits[root, point]
        tree.action_value[root, parent, choice] = found
