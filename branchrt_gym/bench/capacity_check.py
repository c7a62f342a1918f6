"""The comparison that comes before any figure: do branches hold what they must?"""

from __future__ import annotations

import torch
from torch import Tensor

from branchrt_gym.bench.capacity_contents import pieces
from branchrt_gym.bench.capacity_forms import PopulationForm
from branchrt_gym.kernels import bounded, fold

__all__ = ["check_population"]

PIECE = 1 << 20  # entries compared at a time


def check_population(
    population: PopulationForm, entries: int, turns: int = 1, first: int = 0
) -> tuple[int, int, str | None]:
    """Compares entries of every branch with what they must be.

    Args:
        population: Either form.
        entries: Of each branch: a quarter about the ends of its last run, the others anywhere.
        turns: Rounds of runs that were written.
        first: The slot of branch 0.

    Returns:
        Values compared, how many differ, and the first that does.
    """
    sizes, contents, device = population.sizes, population.contents, population.device
    compared = mismatches = 0
    difference: str | None = None
    for low, high in pieces(0, sizes.branches, PIECE // entries):
        branches = torch.arange(low, high, device=device)
        index = _sample(population, branches, entries, turns - 1)
        found = population.read(branches + first, index)
        wanted = contents.expected(branches, index, turns)
        wrong = found != wanted
        context = population.frontier.context_index[branches + first]
        astray = context != branches % sizes.contexts
        compared += wrong.numel() + astray.numel()
        mismatches += int(wrong.sum()) + int(astray.sum())
        if difference is None and bool(wrong.any()):
            row, column = wrong.nonzero()[0].tolist()
            difference = (
                f"entry {int(index[row, column])} of branch {low + row} is "
                f"{int(found[row, column])}, not {int(wanted[row, column])}"
            )
        if difference is None and bool(astray.any()):
            difference = f"branch {low + int(astray.nonzero()[0])} is of another context"
    return compared, mismatches, difference


def _sample(population: PopulationForm, branches: Tensor, entries: int, turn: int) -> Tensor:
    """Chooses entries of each branch, `[M, J] int64`."""
    sizes = population.sizes
    word = torch.arange(entries, device=population.device) + entries * branches[:, None]
    index = bounded(fold(torch.full_like(word, turn + 1), word), sizes.width)
    half = max(1, entries // 8)
    about = torch.arange(entries // 4, device=population.device)
    ends = torch.where(about < half, about - half // 2, about - half - half // 2 + sizes.run)
    near = population.contents.start(branches, turn)[:, None] + ends
    index[:, : entries // 4] = near.clamp(0, sizes.width - 1)
    return index
