"""Which slot of a branching population each row of a training library plays in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from branchrt_gym.slots import NO_ROOT

__all__ = ["Places", "Saved"]


@dataclass(frozen=True)
class Saved:
    """A population as it stood.

    Attributes:
        snapshot: The population's.
        slots: `[R] int64`, each row's slot.
        roots: `[R] int64`, each row's root; `NO_ROOT` of rows that cannot be branched any more.
    """

    snapshot: Any
    slots: np.ndarray
    roots: np.ndarray


class Places:
    """`R` rows over `R` roots in `R + spare` slots of a BranchingVectorEnv in DISABLED mode.

    At first row `r` plays root `r`. Branches bring several rows into one root, which cannot start
    again before the last of its branches has ended; so a row whose branch ends then takes a root
    that no row plays. There is one: there are as many roots as rows. To that end an idle root keeps
    a slot, whose branch nobody looks at, and that is why branches need slots of their own.

    Attributes:
        slots: `[R] int64`, each row's slot.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], spare: int) -> None:
        """Checks that the population is one, and of that size."""
        self.envs: Any = envs.unwrapped
        roots = getattr(self.envs, "num_roots", None)
        mode = envs.metadata.get("autoreset_mode")
        if roots is None or mode != AutoresetMode.DISABLED:
            raise ValueError(
                f"`spare_slots` is {spare} and `envs` is {envs} in {mode}; expected 0, or a "
                "BranchingVectorEnv in DISABLED mode, in which slots can be kept for branches"
            )
        if envs is not self.envs:
            raise ValueError(
                f"`envs` is {envs}; expected the BranchingVectorEnv itself, since observations "
                "after a branching are its own. Put wrappers of the training library around instead"
            )
        if spare < 0 or roots + spare != envs.num_envs:
            raise ValueError(
                f"`spare_slots` is {spare} and `envs` has {envs.num_envs} slots for {roots} roots; "
                f"expected {envs.num_envs - roots}, the slots without a root"
            )
        self.rows = roots
        self.spare = spare
        self.slots = np.arange(roots)
        self._luck: np.random.Generator | None = None

    def start(self) -> None:
        """Puts each row at its own root, as a full reset does."""
        self.slots = np.arange(self.rows)

    def spread(self, actions: Any) -> np.ndarray:
        """Returns an action for each slot: for those of no row, any that the space has."""
        every = np.repeat(np.asarray(actions)[:1], self.envs.num_envs, axis=0)
        every[self.slots] = actions
        return every

    def begin_again(self, ended: list[int]) -> np.ndarray:
        """Returns the `reset_mask` with which rows `ended` start again, moved where they must."""
        roots = self.envs.roots
        playing = np.delete(self.slots, ended)
        taken = set(roots[playing].tolist())
        moving = []
        for row in ended:
            if (root := int(roots[self.slots[row]])) in taken:
                moving.append(row)
            taken.add(root)
        if moving:
            self.envs.prune(self.slots[moving])
            idle = np.flatnonzero((roots != NO_ROOT) & ~np.isin(roots, list(taken)))
            self.slots[moving] = idle[: len(moving)]
        mask = np.zeros(self.envs.num_envs, dtype=bool)
        mask[self.slots[ended]] = True
        return mask

    def seeds(self) -> list[int] | None:
        """Seeds for roots that start again; None for their own next episodes."""
        if self._luck is None:
            return None
        seeds: list[int] = self._luck.integers(2**62, size=self.rows).tolist()
        return seeds

    def save(self) -> Saved:
        """Keeps the population as it stands; changes nothing."""
        return Saved(self.envs.snapshot(), self.slots.copy(), self.envs.roots[self.slots])

    def branch(
        self, saved: Saved, parents: Sequence[int], luck: np.random.Generator
    ) -> tuple[Any, Saved]:
        """Begins an episode in every row; see `BranchingVecEnv.branch`.

        Returns:
            The observations of all slots, and what to save in the place of `saved`.
        """
        chosen = np.asarray(parents, dtype=np.int64)
        most = min(self.spare, self.rows)
        there = np.flatnonzero(saved.roots != NO_ROOT)
        different = np.unique(chosen)
        fits = len(chosen) <= most and np.isin(chosen, there).all()
        if not fits or len(np.unique(saved.roots[different])) < len(different):
            raise ValueError(
                f"`parents` is {chosen.tolist()}; expected at most {most} of the rows "
                f"{there.tolist()}, the same or of different roots; the roots are "
                f"{saved.roots[there].tolist()}, and there are {self.spare} spare slots"
            )
        envs = self.envs
        envs.restore(saved.snapshot)
        self._luck = luck
        roots = envs.roots
        sources = saved.slots[chosen]
        kept = np.unique(sources).tolist()  # and for each other root a slot to start again in
        held = {NO_ROOT, *roots[kept].tolist()}
        idle = []
        for slot, root in enumerate(roots.tolist()):
            if root not in held:
                idle.append(slot)
                held.add(root)
        others = np.ones(envs.num_envs, dtype=bool)
        others[kept + idle] = False
        envs.prune(others)
        children = np.asarray(envs.fork(sources), dtype=np.int64)
        left = np.where(np.isin(saved.slots, sources), saved.roots, NO_ROOT)
        again = Saved(envs.snapshot(), saved.slots, left)
        envs.prune(kept)
        self.slots = np.concatenate([children, np.array(idle, dtype=np.int64)])[: self.rows]
        if len(chosen) == self.rows:
            return envs.observe(), again
        mask = np.zeros(envs.num_envs, dtype=bool)
        mask[self.slots[len(chosen) :]] = True
        batch, _ = envs.reset(seed=self.seeds(), options={"reset_mask": mask})
        return batch, again
