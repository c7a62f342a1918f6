"""`branch_step` on the list-of-objects model."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from branchrt_gym.certify.branch import Branch, Rng
from branchrt_gym.certify.population import ScalarPopulation
from branchrt_gym.certify.search_model import UNNAMED, all_actions, expand, select

__all__ = ["branch_step"]


def branch_step(
    population: ScalarPopulation, width: int | None = None, rng: Rng = "split"
) -> tuple[list[float], list[bool]]:
    """Expands every live branch by every action and keeps `width` per root, or all children.

    Children stand in the order of (parent's slot, action). Where children solve their root, the
    root's others are not kept. Branches that ended before and wait in their slots (DISABLED)
    compete for the width at their slot's place; they keep their ids and slots, or leave.

    The parents leave; kept children take new ids and the lowest free slots, in order, or by
    (root, rank) where `width` selects. What ends, and what is due to restart, does so as in a
    step; restarted branches are not expanded, and take ids last.

    Returns:
        Rewards and done flags of all children, in order.
    """
    actions = all_actions(population.make().action_space)
    waiting = population.done_slots() if population.mode == AutoresetMode.DISABLED else []
    children: list[Branch] = []
    candidates: list[Branch] = []
    for slot in sorted(population.live_slots() + waiting):
        branch = population.branch_at(slot)
        if branch.live:
            expanded = expand(branch, actions, rng, population.max_episode_steps)
            children += expanded
            candidates += expanded
            branch.live = False
            population.slots[slot] = None
        else:
            candidates.append(branch)
    rewards = [child.last.reward for child in children if child.last]
    done = [not child.live for child in children]
    solved = {child.root for child in children if child.solved}
    lost = {id(child) for child in children if child.root in solved and not child.solved}
    kept = [branch for branch in candidates if id(branch) not in lost]
    if width is not None:
        kept = [
            branch
            for root in range(population.num_roots)
            for branch in select((b for b in kept if b.root == root), width, population.score)
        ]
        for slot in waiting:
            if population.slots[slot] not in kept:
                population.slots[slot] = None
    _commit(population, [branch for branch in kept if branch.branch_id == UNNAMED])
    return rewards, done


def _commit(population: ScalarPopulation, kept: list[Branch]) -> None:
    due = dict(population.reserved)
    ended: dict[int, list[int]] = {}
    for slot, child in zip(population.free_slots(), kept, strict=False):
        child.branch_id = population.new_id()
        child.live = child.live and not child.solved
        population.seat(slot, child)
        if not child.live:
            ended.setdefault(child.root, []).append(slot)
    for root, slots in ended.items():
        population.release(root, slots)
    if population.mode == AutoresetMode.SAME_STEP:
        due |= population.reserved
    population.restart_reserved(due)
