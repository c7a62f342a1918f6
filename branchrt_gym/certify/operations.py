"""The operations that programs are made of, and the random choice of valid ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from branchrt_gym.certify.branch import Rng
from branchrt_gym.certify.population import ScalarPopulation

__all__ = [
    "BranchStep",
    "Chance",
    "Compact",
    "Fork",
    "Operation",
    "Operations",
    "Prune",
    "Reset",
    "RoundTrip",
    "Step",
]


@dataclass(frozen=True)
class Reset:
    """A reset: of all roots, or of those in the slots of `mask`."""

    seed: int | tuple[int, ...] | None = None
    mask: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Step:
    """One action for each slot."""

    actions: tuple[Any, ...]


@dataclass(frozen=True)
class Fork:
    """Copies of `parents`, which may repeat."""

    parents: tuple[int, ...]
    counts: int | tuple[int, ...] = 1
    rng: Rng = "split"


@dataclass(frozen=True)
class Prune:
    """A prune of `slots`, given as a mask if `by_mask`."""

    slots: tuple[int, ...]
    by_mask: bool = False


@dataclass(frozen=True)
class Compact:
    """A compaction."""


@dataclass(frozen=True)
class BranchStep:
    """An expansion of every live branch; `width` kept per root, all if None."""

    width: int | None = None
    rng: Rng = "split"


@dataclass(frozen=True)
class RoundTrip:
    """A snapshot, a step with `actions` that spoils the state, and a restore."""

    actions: tuple[Any, ...]


Operation = Reset | Step | Fork | Prune | Compact | BranchStep | RoundTrip
Operations = Iterator[Operation]


class Chance:
    """The choices of a program: actions, subsets, the fork's `rng`."""

    def __init__(self, model: ScalarPopulation, seed: int, rng: Rng, steps: int = 60) -> None:
        """Fixes the choices by `seed`; `steps` is the number that a program may ask for."""
        self.model = model
        self.seed = seed
        self.rng = rng
        self.draw = np.random.default_rng(seed)
        self.space = model.make().action_space
        self.space.seed(seed)
        self.budget = steps

    def step(self) -> Step:
        """Returns a step: a random action for each live branch, elsewhere what nobody may read."""
        actions = [self.space.sample() for _ in range(self.model.num_envs)]
        if isinstance(self.space, spaces.Discrete):
            outside = self.space.start + self.space.n
            live = set(self.model.live_slots())
            actions = [a if slot in live else outside for slot, a in enumerate(actions)]
        return Step(tuple(actions))

    def steps(self, count: int) -> Operations:
        """Yields `count` random steps, fewer once the program's budget is used."""
        for _ in range(count):
            if self.budget > 0:
                self.budget -= 1
                yield self.step()

    def some(self, slots: list[int], share: float = 0.5) -> tuple[int, ...]:
        """Returns a random part of `slots`, at least one if there is one."""
        picked = [slot for slot in slots if self.draw.random() < share]
        return tuple(picked or slots[:1])

    def fork(self, most: int | None = None) -> Operations:
        """Yields a fork of random parents, which may repeat, into at most `most` free slots."""
        live, free = self.model.live_slots(), len(self.model.free_slots())
        room = free if most is None else min(most, free)
        if not live or not room:
            return
        parents = [int(self.draw.choice(live)) for _ in range(int(self.draw.integers(1, 4)))]
        if self.draw.random() < 0.5:
            parents = parents[:room]
            yield Fork(tuple(parents), room // len(parents), self.rng)
        else:
            counts = [int(self.draw.integers(1, 4)) for _ in parents]
            while sum(counts) > room:
                parents.pop()
                counts.pop()
            if parents:
                yield Fork(tuple(parents), tuple(counts), self.rng)

    def fill(self) -> Operations:
        """Yields forks until no slot is free."""
        while self.model.live_slots() and self.model.free_slots():
            room = len(self.model.free_slots())
            live = self.model.live_slots()[:room]
            yield Fork(tuple(live), 1, self.rng)

    def masked(self, seed: int | None = None, share: float = 0.5) -> Operations:
        """Yields a masked reset of random roots: their live slots, some others, some free ones."""
        model = self.model
        branches = [branch for branch in model.slots if branch]
        roots = self.some(sorted({branch.root for branch in branches}), share)
        mask = [branch is None and self.draw.random() < 0.3 for branch in model.slots]
        for root in roots:
            for slot in model.root_slots(root):
                branch = model.slots[slot]
                mask[slot] = bool(branch and branch.live) or self.draw.random() < 0.5
            mask[model.root_slots(root)[0]] = True
        if roots:
            yield Reset(seed, tuple(mask))

    def branch_step(self) -> Operations:
        """Yields a `branch_step` that fits: every child kept, or a beam."""
        model = self.model
        live = model.live_slots()
        room = len(live) + len(model.free_slots())
        if not live:
            return
        fanout = int(getattr(self.space, "n", 0))
        if self.draw.random() < 0.5 and len(live) * fanout <= room:
            yield BranchStep(None, self.rng)
            return
        roots = len({branch.root for branch in model.slots if branch and branch.live})
        if roots <= room and fanout:
            yield BranchStep(int(self.draw.integers(1, room // roots + 1)), self.rng)

    def revive(self) -> Operations:
        """Yields, where ended branches wait for it (DISABLED), the masked reset they need."""
        model = self.model
        if model.mode != AutoresetMode.DISABLED:
            return
        running = {model.branch_at(slot).root for slot in model.live_slots()}
        mask = tuple(
            bool(branch and not branch.live and branch.root not in running)
            for branch in model.slots
        )
        if any(mask):
            yield Reset(mask=mask)
