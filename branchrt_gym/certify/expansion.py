"""`branch_step` on the list-of-objects model."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from branchrt_gym.certify.branch import Branch
from branchrt_gym.certify.population import ScalarPopulation
from branchrt_gym.certify.search_model import all_actions, expand, select

__all__ = ["branch_step"]


def branch_step(
    population: ScalarPopulation, width: int | None = None, rng: str = "split"
) -> tuple[list[float], list[bool]]:
    """Expands every live branch by every action and keeps `width` per root, or all children.

    Children stand in the order of (parent's slot, action). Where children solve their root, the
    root's others are not kept. The parents leave; kept children take new ids and the lowest free
    slots, in order, or by (root, rank) where `width` selects. What ends, ends as in a step.

    Returns:
        Rewards and done flags of all children, in order.
    """
    actions = all_actions(population.make().action_space)
    children: list[Branch] = []
    for slot in population.live_slots():
        parent = population.branch_at(slot)
        children += expand(parent, actions, rng, population.max_episode_steps)
        parent.live = False
        population.slots[slot] = None
    links = [child.last for child in children]
    rewards = [link.reward for link in links if link is not None]
    done = [not child.live for child in children]
    solved = {child.root for child in children if child.solved}
    candidates = [child for child in children if child.solved or child.root not in solved]
    if width is not None:
        by_root: dict[int, list[Branch]] = {}
        for child in candidates:
            by_root.setdefault(child.root, []).append(child)
        candidates = [
            child
            for root in sorted(by_root)
            for child in select(by_root[root], width, population.score)
        ]
    _commit(population, candidates)
    return rewards, done


def _commit(population: ScalarPopulation, kept: list[Branch]) -> None:
    waiting = set(population.reserved)
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
        reserved = population.reserved.items()
        population.restart_reserved({root: slot for root, slot in reserved if root not in waiting})
