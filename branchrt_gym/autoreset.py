"""When branches end and when roots start, and start again.

Autoreset restarts roots, not branches: a branch that ends while its root lives on frees its slot;
when the last live branch of a root ends, the lowest of the slots that ended with it is reserved
(status DONE) until the root's next episode begins there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from branchrt_gym.contract import BranchEnv
from branchrt_gym.errors import OptionsError
from branchrt_gym.frontier import Frontier
from branchrt_gym.seeding import context_key, draw_context, episode_key, first_key
from branchrt_gym.slots import DONE, FREE, LIVE

__all__ = ["begin_masked", "begin_next", "begin_seeded", "restart", "settle"]


def lowest_of_roots(frontier: Frontier, mask: Tensor) -> Tensor:
    """Returns `[N] bool`: of the slots in `mask`, the lowest of each root."""
    place = torch.arange(frontier.num_slots, device=mask.device)
    spare = frontier.num_roots  # slots outside the mask are counted for a root that is not there
    root = torch.where(mask, frontier.root, spare)
    lowest = torch.full((spare + 1,), frontier.num_slots, device=mask.device)
    lowest.scatter_reduce_(0, root, place, "amin")
    return mask & (lowest.index_select(0, root) == place)


def settle(frontier: Frontier, ended: Tensor) -> Tensor:
    """Frees the slots of branches that ended, and reserves one for each root that ended.

    Args:
        frontier: Changed in place: `status` only.
        ended: `[N] bool`, slots whose branches have just ended.

    Returns:
        `[N] bool`, the reserved slots, now DONE.
    """
    if _each_root_in_its_slot(frontier):
        frontier.release(ended, DONE)
        return ended
    lives_on = torch.zeros(frontier.num_roots + 1, dtype=torch.bool, device=ended.device)
    standing = (frontier.status == LIVE) & ~ended
    lives_on.index_fill_(0, torch.where(standing, frontier.root, frontier.num_roots), True)
    reserved = lowest_of_roots(frontier, ended & ~lives_on.index_select(0, frontier.root))
    frontier.release(ended & ~reserved, FREE)
    frontier.release(reserved, DONE)
    return reserved


def _each_root_in_its_slot(frontier: Frontier) -> bool:
    """Whether no root can have a second slot, as in a population never forked. For the CPU.

    Free slots keep the root of some earlier branch, so equality with `0 … N - 1` says that the
    roots of all others are distinct too.
    """
    if frontier.num_roots != frontier.num_slots or frontier.device.type != "cpu":
        return False
    return torch.equal(frontier.root, torch.arange(frontier.num_slots))


def restart(
    frontier: Frontier,
    env: BranchEnv,
    slots: Tensor,
    num_contexts: int,
    seeds: Tensor | None = None,
) -> None:
    """Begins the next episode of the roots of `slots`, there.

    Args:
        frontier: Changed in place.
        env: Makes the first states.
        slots: `[N] bool`, at most one slot of each root.
        num_contexts: `C`, among which each episode's key draws.
        seeds: `[R] int64`, if these episodes are the first of new seeds.
    """
    rows, valid = frontier.rows_of(slots)
    if valid is not None:
        # Of `N` rows those beyond one for each root are not valid; nor is there room for them.
        rows, valid = rows[: frontier.num_roots], valid[: frontier.num_roots]
    root = frontier.root.index_select(0, rows if valid is None else rows.clamp(min=0))
    episode = frontier.episode.index_select(0, root) + 1
    key = first_key(frontier.root_keys().index_select(0, root), episode)
    context_index = draw_context(key, num_contexts)
    state = env.begin(
        frontier.shared,
        context_index,
        key,
        roots=root,
        slots=rows,
        seeds=None if seeds is None else seeds.index_select(0, root),
    )
    frontier.begin(rows, valid, root, context_index, key, state)


def begin_seeded(frontier: Frontier, env: BranchEnv, seeds: Tensor, num_contexts: int) -> None:
    """Makes the contexts and starts every root at episode 0, root `r` in context `r % C`.

    Args:
        frontier: Changed in place; ids start again at 0.
        env: Makes the contexts and the first states.
        seeds: `[R] int64`.
        num_contexts: `C`.
    """
    root = torch.arange(frontier.num_roots, device=frontier.device)
    context_index = root % num_contexts
    key = episode_key(seeds, torch.zeros_like(root))
    shared = env.initial_shared(context_key(seeds[:num_contexts]))
    state = env.begin(shared, context_index, key, roots=root, slots=None, seeds=seeds)
    frontier.start(seeds, context_index, key, state, shared)


def begin_next(frontier: Frontier, env: BranchEnv, num_contexts: int) -> None:
    """Starts the next episode of every root, in slots `0 … R - 1`; contexts are kept."""
    # What is the previous episode now need not be kept: the current one takes its place.
    frontier.make_room(frontier.num_slots + frontier.num_roots, frontier.first_id)
    root = torch.arange(frontier.num_roots, device=frontier.device)
    key = episode_key(frontier.seed, frontier.episode + 1)
    context_index = draw_context(key, num_contexts)
    state = env.begin(frontier.shared, context_index, key, roots=root, slots=None, seeds=None)
    frontier.mark_pruned(frontier.live)
    frontier.release(torch.ones_like(frontier.live))
    frontier.begin(root, None, root, context_index, key, state)


def begin_masked(
    frontier: Frontier, env: BranchEnv, mask: Tensor, seeds: Tensor | None, num_contexts: int
) -> Tensor:
    """Restarts the roots of the masked slots, each in its lowest masked slot.

    Args:
        frontier: Changed in place.
        env: Makes the first states.
        mask: `[N] bool`; free slots in it are ignored.
        seeds: `[R] int64`, to start the masked roots at episode 0 of these; None for their next
            episode.
        num_contexts: `C`, among which each episode's key draws.

    Returns:
        `[N] bool`, where roots were restarted.

    Raises:
        OptionsError: If that would end a live branch outside the mask; nothing is changed.
    """
    members = mask & (frontier.status != FREE)
    reached = torch.zeros(frontier.num_roots + 1, dtype=torch.bool, device=mask.device)
    reached.index_fill_(0, torch.where(members, frontier.root, frontier.num_roots), True)
    reached = reached[: frontier.num_roots]
    theirs = reached[frontier.root] & (frontier.status != FREE)
    stranded = theirs & ~mask & frontier.live
    if bool(stranded.any()):
        slot = int(stranded.nonzero()[0])
        raise OptionsError(
            f"`reset_mask` restarts root {int(frontier.root[slot])}, whose branch in slot {slot} "
            "is live and outside the mask; mask all live branches of a root, or prune the others "
            "first"
        )
    frontier.make_room(frontier.num_slots + frontier.num_roots)
    first = lowest_of_roots(frontier, members)
    frontier.mark_pruned(theirs & frontier.live)
    frontier.release(theirs)
    if seeds is not None:
        frontier.seed.copy_(torch.where(reached, seeds, frontier.seed))
        frontier.episode.masked_fill_(reached, -1)
    if bool(members.any()):
        restart(frontier, env, first, num_contexts, seeds)
    return first
