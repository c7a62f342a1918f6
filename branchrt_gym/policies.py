"""Selection policies: which branches of a root stay.

A policy ranks by (score descending, then lowest order), a total order, so that every tier and
device keeps the same branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from branchrt_gym.kernels import top_k_per_root

__all__ = ["Beam", "BestFirst", "Policy"]


class Policy(Protocol):
    """Chooses among the candidates of all roots."""

    def select(self, root: Tensor, score: Tensor) -> Tensor:
        """Returns the places of the candidates that stay, by root, then by rank.

        Args:
            root: `[M] int64`, each candidate's root; candidates of a root stand in their order.
            score: `[M] int64`.
        """
        ...


@dataclass(frozen=True)
class Beam:
    """Keeps the `width` best candidates of each root."""

    width: int

    def __post_init__(self) -> None:
        """Checks the width."""
        _check_positive("width", self.width)

    def select(self, root: Tensor, score: Tensor) -> Tensor:
        """As `Policy.select`. Cost: one stable sort by root, then one top-k per root."""
        if root.numel() == 0:
            return torch.empty_like(root)
        grouped, order = torch.sort(root, stable=True)
        _, group, count = torch.unique_consecutive(grouped, return_inverse=True, return_counts=True)
        first = count.cumsum(0) - count
        place = torch.arange(root.shape[0], device=root.device) - first[group]
        shape = (count.shape[0], int(count.max()))
        rows = torch.zeros(shape, dtype=score.dtype, device=score.device)
        valid = torch.zeros(shape, dtype=torch.bool, device=score.device)
        rows[group, place] = score[order]
        valid[group, place] = True
        best, _ = top_k_per_root(rows, self.width, valid)
        return order[(best + first[:, None])[best >= 0]]


@dataclass(frozen=True)
class BestFirst:
    """Expands the best open branch of each root, one after another; for `search`.

    Attributes:
        budget: Expansions of each root, at most.
        width: Branches of each root that are held, at most: the best, open or ended.
    """

    budget: int
    width: int = 64

    def __post_init__(self) -> None:
        """Checks both."""
        _check_positive("budget", self.budget)
        _check_positive("width", self.width)


def _check_positive(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` is {value!r}; expected an int of 1 or more")
