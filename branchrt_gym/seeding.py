"""Random keys: from a seed to contexts, episodes, forks and transitions.

Every key is a pure function of ancestry (seed, episode number, fork numbers), never of slots, ids
or placement, so that compaction, device and tier cannot change a result. Keys are 64 bits, kept
as int64; `branchrt_gym.kernels.fold` makes one from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from branchrt_gym.kernels import bounded, fold

__all__ = [
    "CONTEXT",
    "DOMAIN",
    "EPISODE",
    "FORK",
    "Rng",
    "check_seeds",
    "context_key",
    "draw_context",
    "episode_key",
    "first_key",
    "fork_key",
    "root_key",
]

DOMAIN = 0x6272616E63687274
# Words of their own, apart from each other and from the draw numbers (below 2**40).
CONTEXT = 1 << 40
EPISODE = 2 << 40
FORK = 3 << 40

Rng = Literal["split", "shared"]


def check_seeds(seed: int | Sequence[int] | np.ndarray | Tensor, count: int) -> Tensor:
    """Returns one seed per root, `[count] int64`: an int `s` gives `s, s + 1, …`.

    Raises:
        TypeError: If a seed is not an integer.
        ValueError: If a seed is negative or beyond 2**63 - 1, or the length is not `count`.
    """
    if isinstance(seed, Tensor):
        seed = seed.cpu().numpy()
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        given: Sequence[int] | np.ndarray = range(int(seed), int(seed) + count)
    elif isinstance(seed, list | tuple | range | np.ndarray):
        given = seed
    else:
        raise TypeError(f"`seed` is {type(seed).__name__}; expected an int or one per root")
    whole = isinstance(given, np.ndarray) and given.dtype.kind in "iu" and given.ndim == 1
    if not whole and not isinstance(given, range):
        for value in given:
            if not isinstance(value, int | np.integer) or isinstance(value, bool):
                raise TypeError(f"`seed` holds {value!r}; expected ints, one per root")
    if len(given) != count:
        raise ValueError(f"`seed` has {len(given)} entries; expected {count}, one per root")
    ends = (given[0], given[-1]) if isinstance(given, range) else (np.min(given), np.max(given))
    low, high = int(ends[0]), int(ends[1])
    if low < 0 or high >= 2**63:
        raise ValueError(f"`seed` reaches from {low} to {high}; expected seeds in 0 … 2**63 - 1")
    return torch.from_numpy(np.array(given, dtype=np.int64))


def root_key(seed: Tensor) -> Tensor:
    """Returns the key of a root, `[…] int64`, from its seed."""
    return fold(torch.full_like(seed, DOMAIN), seed)


def context_key(seed: Tensor) -> Tensor:
    """Returns the key from which a seed's context is made."""
    return fold(root_key(seed), CONTEXT)


def episode_key(seed: Tensor, episode: Tensor) -> Tensor:
    """Returns the key of a root's first branch in an episode (numbered from 0)."""
    return first_key(root_key(seed), episode)


def first_key(root: Tensor, episode: Tensor) -> Tensor:
    """Returns the same from the root's key."""
    return fold(root, episode.to(torch.int64) + EPISODE)


def draw_context(key: Tensor, num_contexts: int) -> Tensor:
    """Draws the context of a restarted root by its episode key."""
    return bounded(fold(key, CONTEXT), num_contexts)


def fork_key(key: Tensor, forks: Tensor, child: Tensor | int, rng: Rng) -> Tensor:
    """Returns the keys of children.

    Args:
        key: `[M] int64`, the parents' keys.
        forks: `[M]`, the forks each parent took part in before this one.
        child: `[M] int64` or an int, the child's number among its parent's.
        rng: `"split"` for a key of its own, `"shared"` for the parent's.
    """
    if rng == "shared":
        return key
    return fold(fold(key, forks.to(torch.int64) + FORK), child)


def check_rng(rng: str) -> Rng:
    """Returns `rng` if it is one of the two, else raises ValueError."""
    if rng not in ("split", "shared"):
        raise ValueError(f'`rng` is {rng!r}; expected "split" or "shared"')
    return rng  # type: ignore[return-value]
