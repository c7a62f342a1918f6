"""When branches end and roots start again.

Autoreset restarts roots, not branches: a branch that ends while its root lives on frees its slot;
when the last live branch of a root ends, the lowest of the slots that ended with it is reserved
(status DONE) until the root's next episode begins there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from branchrt_gym.contract import BranchEnv
from branchrt_gym.frontier import Frontier
from branchrt_gym.seeding import draw_context, episode_key
from branchrt_gym.slots import DONE, FREE, LIVE

__all__ = ["lowest_of_roots", "restart", "settle"]


def lowest_of_roots(frontier: Frontier, mask: Tensor) -> Tensor:
    """Returns `[N] bool`: of the slots in `mask`, the lowest of each root."""
    place = torch.arange(frontier.num_slots, device=mask.device)
    spare = frontier.num_roots  # slots outside the mask are counted for a root that is not there
    root = torch.where(mask, frontier.root, spare)
    lowest = torch.full((spare + 1,), frontier.num_slots, device=mask.device)
    lowest.scatter_reduce_(0, root, place, "amin")
    return mask & (lowest[root] == place)


def settle(frontier: Frontier, ended: Tensor) -> Tensor:
    """Frees the slots of branches that ended, and reserves one for each root that ended.

    Args:
        frontier: Changed in place: `status` only.
        ended: `[N] bool`, slots whose branches have just ended.

    Returns:
        `[N] bool`, the reserved slots, now DONE.
    """
    lives_on = torch.zeros(frontier.num_roots + 1, dtype=torch.bool, device=ended.device)
    standing = (frontier.status == LIVE) & ~ended
    lives_on.index_fill_(0, torch.where(standing, frontier.root, frontier.num_roots), True)
    reserved = lowest_of_roots(frontier, ended & ~lives_on[frontier.root])
    frontier.release(ended & ~reserved, FREE)
    frontier.release(reserved, DONE)
    return reserved


def restart(frontier: Frontier, env: BranchEnv, slots: Tensor, num_contexts: int) -> None:
    """Begins the next episode of the roots of `slots`, there.

    Args:
        frontier: Changed in place.
        env: Makes the first states.
        slots: `[N] bool`, at most one slot of each root.
        num_contexts: `C`, among which each episode's key draws.
    """
    rows, valid = frontier.rows_of(slots)
    root = frontier.root[rows.clamp(min=0)]
    key = episode_key(frontier.seed[root], frontier.episode[root] + 1)
    context_index = draw_context(key, num_contexts)
    state = env.initial(frontier.shared, context_index, key)
    frontier.begin(rows, valid, root, context_index, key, state)
