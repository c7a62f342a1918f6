"""Beam search over scalar oracles: the model that `search` and `branch_step` are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from branchrt_gym.certify.branch import NO_PARENT, AnyOracle, Branch, Rng

__all__ = ["ScalarSearch", "all_actions", "beam_search", "expand", "select"]

UNNAMED = -2  # id of a child that selection has not kept yet


@dataclass(frozen=True)
class ScalarSearch:
    """What a search ended with.

    Attributes:
        survivors: For each root its branches after the last level, best first.
        scores: Their scores, in the same order.
    """

    survivors: list[list[Branch]]
    scores: list[list[int]]


def all_actions(space: spaces.Space[Any]) -> list[int]:
    """Returns the actions an expansion tries, in order."""
    if not isinstance(space, spaces.Discrete):
        raise TypeError(f"the action space is {type(space).__name__}; expansion needs Discrete")
    return [int(space.start) + number for number in range(int(space.n))]


def expand(
    branch: Branch,
    actions: Sequence[int],
    rng: Rng = "split",
    max_episode_steps: int | None = None,
) -> list[Branch]:
    """Returns one child per action, each forked and stepped once; without an id yet."""
    children = []
    for oracle, action in zip(branch.oracle.fork(len(actions), rng), actions, strict=True):
        child = branch.child(UNNAMED, oracle)
        child.step(action, max_episode_steps)
        children.append(child)
    return children


def select(candidates: Iterable[Branch], width: int, score: str) -> list[Branch]:
    """Returns the `width` best by (score descending, then lowest order): a stable sort."""
    ranked = sorted(candidates, key=lambda branch: -int(getattr(branch.oracle, score, 0)))
    return ranked[:width]


def beam_search(
    make: Callable[[], AnyOracle],
    seeds: Sequence[int],
    width: int,
    depth: int,
    score: str = "score",
    *,
    budget: int | None = None,
    num_contexts: int | None = None,
    rng: Rng = "split",
    stop_solved: bool = True,
) -> ScalarSearch:
    """Searches from each seed's root, in context `root % num_contexts`, `width` kept per root.

    At each level every open branch is expanded, `depth` times; with a `budget` only the first
    open branch, that often, and none deeper than `depth`. Ended branches compete with their final
    score, at the place of their rank, and keep their id; they are not expanded. A kept child's id
    is `(level * R + root) * width + rank`. With `stop_solved`, the children that solve their root
    are all that stays of it.
    """
    roots = len(seeds)
    actions = all_actions(make().action_space)
    contexts: list[Any] = []
    for seed in seeds[:num_contexts]:
        oracle = make()
        oracle.reset(seed=seed)
        contexts.append(oracle.context)
    survivors: list[list[Branch]] = []
    for root, seed in enumerate(seeds):
        oracle = make()
        index = root % len(contexts)
        oracle.reset(seed=seed, options={"context": contexts[index]})
        kept = [Branch(oracle, root, index, root * width, NO_PARENT)]
        for level in range(1, 1 + (depth if budget is None else budget)):
            open_ones = [branch for branch in kept if branch.live and branch.length < depth]
            if not open_ones:
                break
            chosen = open_ones if budget is None else open_ones[:1]
            candidates: list[Branch] = []
            for branch in kept:
                candidates += expand(branch, actions, rng) if branch in chosen else [branch]
            wins = [child for child in candidates if child.branch_id == UNNAMED and child.solved]
            if wins and stop_solved:
                candidates = wins
                for child in wins:
                    child.live = False
            kept = select(candidates, width, score)
            for rank, branch in enumerate(kept):
                if branch.branch_id == UNNAMED:
                    branch.branch_id = (level * roots + root) * width + rank
        survivors.append(kept)
    scores = [[int(getattr(branch.oracle, score)) for branch in kept] for kept in survivors]
    return ScalarSearch(survivors, scores)
