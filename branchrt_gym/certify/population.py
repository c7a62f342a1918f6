"""The list-of-objects model of a branching population: one scalar oracle per branch.

Written from the documented semantics alone, on plain Python lists, so that what it shares with
`BranchingVectorEnv` is the meaning and not the code. Every operation costs about what the
oracles' own steps and forks cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import AutoresetMode

from branchrt_gym.certify.branch import AnyOracle, Branch, Rng, constant_observation
from branchrt_gym.oracle import CONTEXT, bounded, episode_key, fold

__all__ = ["NOWHERE", "Outcome", "ScalarPopulation"]

NOWHERE = -1  # `source` of a slot that compaction left empty


@dataclass(slots=True)
class Outcome:
    """What `reset` and `step` return, one entry per slot.

    Attributes:
        observations: After a restart the new branch's; in the step in which a branch ends its
            last; where no branch is live a step shows a constant.
        solved: As the flags; False where a root was restarted in the same step.
        final: For these slots, the last observation and verdict.
    """

    observations: list[Any]
    rewards: list[float]
    terminated: list[bool]
    truncated: list[bool]
    solved: list[bool]
    live: list[bool] = field(default_factory=list)
    final: dict[int, tuple[Any, bool]] = field(default_factory=dict)


class ScalarPopulation:
    """Branches as objects in a list of slots.

    Attributes:
        slots: The branch in each slot, live or done, or None in a free slot.
        reserved: Root to the slot in which it restarts at the next step.
        history: For each root, its branches by id: of the previous and of the current episode.
        contexts: The oracle's context objects, made at a seeded reset.
    """

    def __init__(
        self,
        make: Callable[[], AnyOracle],
        num_envs: int,
        *,
        num_roots: int | None = None,
        num_contexts: int | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        score: str = "score",
    ) -> None:
        """Makes an empty population; `reset` with a seed starts it."""
        self.make = make
        self.num_envs = num_envs
        self.num_roots = num_envs if num_roots is None else num_roots
        self.num_contexts = min(self.num_roots, 64) if num_contexts is None else num_contexts
        self.mode = autoreset_mode
        self.max_episode_steps = max_episode_steps
        self.score = score
        self.constant = constant_observation(make().observation_space)
        self.slots: list[Branch | None] = [None] * num_envs
        self.reserved: dict[int, int] = {}
        self.seeds: list[int] = []
        self.episodes: list[int] = []
        self.contexts: list[Any] = []
        self.history: list[tuple[dict[int, Branch], dict[int, Branch]]] = []
        self.next_id = 0

    def live_slots(self) -> list[int]:
        """Returns the slots of live branches, ascending."""
        return [slot for slot, branch in enumerate(self.slots) if branch and branch.live]

    def done_slots(self) -> list[int]:
        """Returns the slots of ended branches that are still kept, ascending."""
        return [slot for slot, branch in enumerate(self.slots) if branch and not branch.live]

    def free_slots(self) -> list[int]:
        """Returns the slots that a fork may fill, ascending."""
        return [slot for slot, branch in enumerate(self.slots) if branch is None]

    def root_slots(self, root: int) -> list[int]:
        """Returns the slots of a root's branches, live or done, ascending."""
        return [slot for slot, branch in enumerate(self.slots) if branch and branch.root == root]

    def branch_at(self, slot: int) -> Branch:
        """Returns the branch in a slot that is not free."""
        branch = self.slots[slot]
        assert branch is not None, f"slot {slot} is free"
        return branch

    def observe(self) -> list[Any]:
        """Returns what each slot shows now; ended branches stay readable until a step."""
        return [branch.oracle.observe() if branch else self.constant for branch in self.slots]

    def reset(self, seed: int | Sequence[int] | None = None) -> Outcome:
        """Starts every root: from `seed` anew, or without one with its next episode."""
        if seed is not None:
            self.seeds = self._per_root(seed)
            self.episodes = [0] * self.num_roots
            self.contexts = [self._make_context(s) for s in self.seeds[: self.num_contexts]]
            self.history = [({}, {}) for _ in range(self.num_roots)]
            self.next_id = 0
        self._end_unfinished(range(self.num_envs))
        self.slots = [None] * self.num_envs
        self.reserved = {}
        for root in range(self.num_roots):
            if seed is None:
                self._restart(root, root, None)
            else:
                self._place(root, root, root % self.num_contexts, None)
        return self._outcome()

    def reset_masked(
        self, mask: Sequence[bool], seed: int | Sequence[int] | None = None
    ) -> Outcome:
        """Restarts the roots of the masked slots, each in its lowest masked slot."""
        seeds = None if seed is None else self._per_root(seed)
        first: dict[int, int] = {}
        for slot, branch in enumerate(self.slots):
            if mask[slot] and branch:
                first.setdefault(branch.root, slot)
        for root in first:
            self._end_unfinished(self.root_slots(root))
        for root, slot in sorted(first.items(), key=lambda item: item[1]):
            oracle = self._vacate(root, slot)
            if seeds is not None:
                self.seeds[root] = seeds[root]
            self._restart(root, slot, oracle, episode=None if seeds is None else 0)
        return self._outcome()

    def step(self, actions: Sequence[Any]) -> Outcome:
        """Steps every live branch, and restarts the roots that are due."""
        outcome = self._outcome()
        for slot in self.done_slots():
            outcome.observations[slot] = self.constant
        due = dict(self.reserved)
        ended: dict[int, list[int]] = {}
        for slot, branch in enumerate(self.slots):
            if branch is None or not branch.live:
                continue
            observation, reward = branch.step(actions[slot], self.max_episode_steps)
            outcome.observations[slot] = observation
            outcome.rewards[slot] = reward
            outcome.terminated[slot] = branch.terminated
            outcome.truncated[slot] = branch.truncated
            outcome.solved[slot] = branch.solved
            if not branch.live:
                ended.setdefault(branch.root, []).append(slot)
        for root, slots in ended.items():
            self.release(root, slots)
        if self.mode == AutoresetMode.SAME_STEP:
            now = {root: slot for root, slot in self.reserved.items() if root not in due}
            for slot in now.values():
                outcome.final[slot] = outcome.observations[slot], outcome.solved[slot]
                outcome.solved[slot] = False
            due |= now
        for slot in self.restart_reserved(due):
            outcome.observations[slot] = self.branch_at(slot).oracle.observe()
        outcome.live = [bool(branch and branch.live) for branch in self.slots]
        return outcome

    def fork(
        self, parents: Sequence[int], counts: int | Sequence[int] = 1, rng: Rng = "split"
    ) -> list[int]:
        """Copies branches into the lowest free slots, in the order of `parents`."""
        each = [counts] * len(parents) if isinstance(counts, int) else list(counts)
        total: dict[int, int] = {}
        for parent, count in zip(parents, each, strict=True):
            total[parent] = total.get(parent, 0) + count
        children = {
            parent: iter(self.branch_at(parent).oracle.fork(count, rng=rng))
            for parent, count in total.items()
        }
        order = [parent for parent, count in zip(parents, each, strict=True) for _ in range(count)]
        slots = self.free_slots()[: len(order)]
        for parent, slot in zip(order, slots, strict=True):
            child = self.branch_at(parent).child(self.new_id(), next(children[parent]))
            self.seat(slot, child)
        return slots

    def prune(self, slots: Iterable[int]) -> None:
        """Stops the branches in `slots` and frees these; a root may end by it."""
        pruned: dict[int, list[int]] = {}
        for slot in sorted(set(slots)):
            branch = self.branch_at(slot)
            if branch.live:
                branch.stop()
                pruned.setdefault(branch.root, []).append(slot)
            else:
                self.slots[slot] = None
        for root, places in pruned.items():
            self.release(root, places, keep_done=False)

    def compact(self) -> list[int]:
        """Moves the branches that stay to the first slots; returns where each came from."""
        waiting = {slot: root for root, slot in self.reserved.items()}
        stay = [
            slot
            for slot, branch in enumerate(self.slots)
            if branch and (branch.live or slot in waiting)
        ]
        self.reserved = {waiting[slot]: i for i, slot in enumerate(stay) if slot in waiting}
        empty = self.num_envs - len(stay)
        self.slots = [self.slots[slot] for slot in stay] + [None] * empty
        return stay + [NOWHERE] * empty

    # Parts of operations.

    def new_id(self) -> int:
        """Returns the next branch id."""
        self.next_id += 1
        return self.next_id - 1

    def seat(self, slot: int, branch: Branch) -> Branch:
        """Puts a branch into a slot and into its root's history."""
        self.slots[slot] = branch
        self.history[branch.root][1][branch.branch_id] = branch
        return branch

    def _per_root(self, seed: int | Sequence[int]) -> list[int]:
        if isinstance(seed, int):
            return [seed + root for root in range(self.num_roots)]
        return list(seed)

    def _make_context(self, seed: int) -> Any:
        oracle = self.make()
        oracle.reset(seed=seed)
        return oracle.context

    def _restart(
        self, root: int, slot: int, oracle: AnyOracle | None, episode: int | None = None
    ) -> Branch:
        """Starts a root's next episode (or `episode`), its context drawn by the episode's key."""
        self.episodes[root] = self.episodes[root] + 1 if episode is None else episode
        self.history[root] = (self.history[root][1], {})
        key = episode_key(self.seeds[root], self.episodes[root])
        return self._place(root, slot, bounded(fold(key, CONTEXT), self.num_contexts), oracle)

    def _place(self, root: int, slot: int, context_index: int, oracle: AnyOracle | None) -> Branch:
        oracle = oracle or self.make()
        options = {"context": self.contexts[context_index], "episode": self.episodes[root]}
        oracle.reset(seed=self.seeds[root], options=options)
        return self.seat(slot, Branch(oracle, root, context_index, self.new_id()))

    def restart_reserved(self, due: dict[int, int]) -> list[int]:
        """Restarts roots in their reserved slots, ids in ascending order of the slots."""
        for root, slot in sorted(due.items(), key=lambda item: item[1]):
            self._restart(root, slot, self._vacate(root, slot))
        return sorted(due.values())

    def _end_unfinished(self, slots: Iterable[int]) -> None:
        for slot in slots:
            branch = self.slots[slot]
            if branch and branch.live:
                branch.stop()

    def _vacate(self, root: int, slot: int) -> AnyOracle:
        """Frees all slots of a root; returns the oracle of `slot`, to be reset."""
        oracle = self.branch_at(slot).oracle
        self.reserved.pop(root, None)
        for place in self.root_slots(root):
            self.slots[place] = None
        return oracle

    def release(self, root: int, slots: list[int], keep_done: bool = True) -> None:
        """Frees the slots of branches that ended together, or reserves one if the root ended."""
        if self.mode == AutoresetMode.DISABLED:
            freed = [] if keep_done else slots
        elif any(self.branch_at(slot).live for slot in self.root_slots(root)):
            freed = slots
        else:
            self.reserved[root] = slots[0]
            freed = slots[1:]
        for slot in freed:
            self.slots[slot] = None

    def _outcome(self) -> Outcome:
        return Outcome(
            observations=self.observe(),
            rewards=[0.0] * self.num_envs,
            terminated=[False] * self.num_envs,
            truncated=[False] * self.num_envs,
            solved=[False] * self.num_envs,
            live=[bool(branch and branch.live) for branch in self.slots],
        )
