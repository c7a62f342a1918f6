"""The comparison that comes before any timing: do both approaches hold the same branches?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from branchrt_gym.bench.batcher_run import BatcherResult
from branchrt_gym.search_result import NO_CHOICE, SearchResult

__all__ = ["Mismatches", "compare", "compare_places"]


@dataclass(frozen=True)
class Mismatches:
    """How a batcher's branches compare with a search's, place by place.

    Attributes:
        compared: Values compared.
        count: How many differ.
        first: The first of them, in words, or None.
    """

    compared: int
    count: int
    first: str | None


def compare(found: BatcherResult, result: SearchResult) -> Mismatches:
    """Compares the branches kept last exactly: which there are, scores, flags and every field."""
    population = result.population
    present = population.branch_id != NO_CHOICE
    if found.present.shape != present.shape:
        shapes = tuple(present.shape), tuple(found.present.shape)
        text = f"the search holds {shapes[0]} branches, the batcher {shapes[1]}"
        return Mismatches(1, 1, text)
    sides = {
        "present": (present, found.present),
        "score": (population.score, found.score),
        "terminated": (population.terminated, found.terminated),
        "truncated": (population.truncated, found.truncated),
        "solved": (population.solved, found.solved),
    }
    for name, values in population.state.items():
        shape = (*present.shape, *values.shape[1:])
        sides[f"state[{name!r}]"] = (values.view(shape), found.state[name].view(shape))
    compared = count = 0
    difference: str | None = None
    for name, (ours, theirs) in sides.items():
        there = present.view(*present.shape, *[1] * (ours.ndim - 2)).expand_as(ours)
        if name == "present":
            there = torch.ones_like(there)
        differs = (ours != theirs) & there
        compared += int(there.sum())
        count += int(differs.sum())
        if difference is None and bool(differs.any()):
            place = tuple(differs.nonzero()[0].tolist())
            difference = (
                f"`{name}` of root {place[0]}, rank {place[1]}: the search has "
                f"{ours[place].item()}, the batcher {theirs[place].item()}"
            )
    return Mismatches(compared, count, difference)


def compare_places(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], what: str
) -> Mismatches:
    """Compares what a form found, all of it, with the same of the eager search.

    Args:
        wanted: `[R, K, …]` by name, of the eager search; what `found` has not is not compared.
        found: Likewise, of the other form.
        what: What the other form is called.
    """
    compared = count = 0
    first: str | None = None
    for name, theirs in found.items():
        ours = wanted.get(name)
        if ours is None or ours.shape != theirs.shape:
            has = "nothing" if ours is None else f"shape {tuple(ours.shape)}"
            text = f"`{name}`: the eager search has {has}, {what} shape {tuple(theirs.shape)}"
            return Mismatches(max(compared, 1), count + 1, first or text)
        differs = ours != theirs
        compared += differs.numel()
        count += int(differs.sum())
        if first is None and bool(differs.any()):
            place = tuple(differs.nonzero()[0].tolist())
            first = (
                f"`{name}` of root {place[0]}, rank {place[1]}: the eager search has "
                f"{ours[place].item()}, {what} {theirs[place].item()}"
            )
    return Mismatches(compared, count, first)
