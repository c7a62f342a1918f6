"""`BranchingVecEnv`: a Gymnasium vector environment as Stable-Baselines3's `VecEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from branchrt_gym.errors import SlotError
from branchrt_gym.integrations.places import Places, Saved
from branchrt_gym.integrations.rows import RowInfos, flatten_batch, is_flat, split_infos
from branchrt_gym.integrations.sb3_attributes import VectorEnvAttributes
from branchrt_gym.structure import map_leaves

__all__ = ["BranchingVecEnv"]


class BranchingVecEnv(VectorEnvAttributes):
    """A Gymnasium vector environment as Stable-Baselines3's `VecEnv`.

    Row for row, observations, rewards, dones and infos are those of a `DummyVecEnv` over the same
    environments and seeds, bit for bit. (Under vector wrappers, in SAME_STEP mode, infos are as
    Gymnasium batches them, which may round numbers; see `RowInfos`.) Episodes begin again in the
    step in which they end: by SAME_STEP autoreset, or in DISABLED mode by a `reset_mask`.

    Observations that Stable-Baselines3 has no policy for (a Tuple, a Dict within a Dict, integers
    that do not count from 0) are flattened to a Box as `gymnasium.spaces.flatten` does.

    Each row needs an episode: of a population, each slot needs a live branch, or SlotError is
    raised before anything is learned from an empty one. `spare_slots` keeps slots apart for
    branches. Then there is a row for each root, which plays in any of the slots; `branch` moves
    rows to children of a population that `save` kept; and where a branch ends, an episode from
    the start follows as ever.

    Args:
        envs: In SAME_STEP or DISABLED mode; a branching one with `output="numpy"`.
        spare_slots: Slots for branches: `envs` is a BranchingVectorEnv of `num_roots + spare_slots`
            slots in DISABLED mode, without a wrapper (and with `record_lineage=False`, unless the
            lineage is wanted).
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], spare_slots: int = 0) -> None:
        """Checks that the environment fits; see the class."""
        if not isinstance(envs, VectorEnv):
            raise TypeError(
                f"`envs` is {type(envs).__name__}; expected a gymnasium.vector.VectorEnv, as "
                "`gymnasium.make_vec` makes it"
            )
        mode = envs.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
            raise ValueError(
                f"`envs` has autoreset_mode {mode}; expected SAME_STEP or DISABLED, since in "
                "NEXT_STEP mode the step after an end ignores its action and would be learned "
                'from. Make it with `autoreset_mode="SameStep"`, or, of ordinary environments, '
                'with `make_vec(id, n, "sync", vector_kwargs={"autoreset_mode": "SameStep"})`'
            )
        base: Any = envs.unwrapped
        if getattr(base, "output", "numpy") != "numpy":
            raise ValueError(
                f'`envs` has output={base.output!r}; expected "numpy", which Stable-Baselines3 '
                "reads (the population may be on any device)"
            )
        start = getattr(envs.single_action_space, "start", 0)
        if np.any(start):
            raise ValueError(
                f"`envs` has actions from {start}; expected from 0, as Stable-Baselines3 sends "
                "them. Shift them with gymnasium.wrappers.vector.TransformAction"
            )
        self.envs = envs
        self.population: Any = base if hasattr(base, "fork") and hasattr(base, "live") else None
        self.places = Places(envs, spare_slots) if spare_slots else None
        self._whole = np.arange(envs.num_envs)
        self._same_step = mode == AutoresetMode.SAME_STEP
        self._space = envs.single_observation_space
        self._flat = is_flat(self._space)
        self._owned = getattr(base, "copy", False) is True  # no later step writes to what it gave
        self._own_infos = None
        if envs is base and isinstance(envs, SyncVectorEnv | AsyncVectorEnv):
            self._own_infos = RowInfos(envs)
        self._actions: Any = None
        super().__init__(
            envs.num_envs - spare_slots,
            self._space if self._flat else spaces.flatten_space(self._space),
            envs.single_action_space,
        )
        self.metadata = dict(envs.metadata)

    @property
    def slots(self) -> np.ndarray:  # type: ignore[override]
        """`[num_envs] int64`, the slot that each row plays in."""
        return self._whole if self.places is None else self.places.slots

    def reset(self) -> Any:
        """Starts an episode in each row, with what `seed` and `set_options` asked for."""
        options = self._options[0]
        if any(others != options for others in self._options):
            raise ValueError(
                f"`set_options` was given {self._options}; expected the same for all rows, since "
                "a vector environment is reset as one"
            )
        if self.places is not None:
            self.places.start()
        # The rows' seeds follow each other, as a vector environment's do from the first.
        batch, infos = self.envs.reset(seed=self._seeds[0], options=deepcopy(options) or None)
        self.reset_infos = self._infos_of(infos)
        self._reset_seeds()
        self._reset_options()
        self._require_live()
        return self._observations(batch)

    def step_async(self, actions: np.ndarray) -> None:
        """Keeps the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Steps each row, and begins again where an episode ended."""
        self._require_live()
        actions = self._actions if self.places is None else self.places.spread(self._actions)
        batch, rewards, terminated, truncated, infos = self.envs.step(actions)
        if self.places is not None:
            rewards, terminated, truncated = (
                values[self.slots] for values in (rewards, terminated, truncated)
            )
        rows = self._infos_of(infos)
        for info, cut in zip(rows, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = cut
        dones = terminated | truncated
        if dones.any():
            ended = np.flatnonzero(dones).tolist()
            if self._same_step:
                for row in ended:
                    rows[row] = self._final(row, rows[row])
            else:
                batch = self._begin_again(ended, rows, self._observations(batch))
            self._require_live()
        return self._observations(batch), np.array(rewards, dtype=np.float32), dones, rows

    def close(self) -> None:
        """Closes the vector environment."""
        self.envs.close()

    def save(self) -> Saved:
        """Keeps the population as it stands; changes nothing."""
        return self._spare("save").save()

    def branch(
        self, saved: Saved, parents: Sequence[int], luck: np.random.Generator
    ) -> tuple[Any, Saved]:
        """Begins a new episode in every row, some of them in a saved population.

        Episodes under way are dropped without an end: whoever learns from them must look upon the
        rows as cut here.

        Args:
            saved: What `save` or an earlier `branch` returned.
            parents: Rows of `saved`, of different roots or the same row again, at most
                `spare_slots`: row `k` plays on as a child of `parents[k]`, with luck of its own.
                The other rows begin at the start.
            luck: Seeds the episodes that begin, now and later, since a population that went back
                in time would repeat its luck.

        Returns:
            The observations, and what to keep in the place of `saved` to branch from the same
            parents again, or some of them: their next children will have other luck.
        """
        batch, again = self._spare("branch").branch(saved, parents, luck)
        self._require_live()
        return self._observations(batch), again

    def _final(self, row: int, info: dict[str, Any]) -> dict[str, Any]:
        """Parts the infos of a SAME_STEP row into its last step's, returned, and its reset's."""
        last = info.pop("final_obs")
        if not self._flat:
            last = spaces.flatten(self._space, last)
        final = {**info.pop("final_info", {}), "terminal_observation": last}
        final["TimeLimit.truncated"] = info.pop("TimeLimit.truncated")
        if "episode" in info:  # of RecordEpisodeStatistics, in the form that the library reads
            final["episode"] = info.pop("episode")
        self.reset_infos[row] = info
        return final

    def _begin_again(self, ended: list[int], rows: list[dict[str, Any]], last: Any) -> Any:
        """Keeps the last observations of rows that ended, restarts them and returns the batch."""
        for row in ended:
            rows[row]["terminal_observation"] = map_leaves(lambda leaf, at=row: leaf[at], last)
        if self.places is None:
            seeds, mask = None, np.zeros(self.num_envs, dtype=bool)
            mask[ended] = True
        else:
            seeds, mask = self.places.seeds(), self.places.begin_again(ended)
        batch, infos = self.envs.reset(seed=seeds, options={"reset_mask": mask})  # type: ignore[arg-type]
        begun = self._infos_of(infos)
        for row in ended:
            self.reset_infos[row] = begun[row]
        return batch

    def _spare(self, call: str) -> Places:
        if self.places is None:
            raise ValueError(
                f"`{call}` needs slots for branches; make the population with more slots than "
                "roots, in DISABLED mode, and pass their number as `spare_slots`"
            )
        return self.places

    def _require_live(self) -> None:
        if self.population is None:
            return
        live = self.population.live[self.slots]
        if not live.all():
            row = int(np.argmin(live))
            raise SlotError(
                f"`envs` has no live branch in slot {self.slots[row]}, row {row}; expected one, "
                "since Stable-Baselines3 needs an episode in every row. Make it with a root in "
                "each slot (`num_roots=num_envs`), or keep slots for branches with `spare_slots`; "
                "branch by `BranchingVecEnv.branch`, not by `fork` and `prune` beneath it"
            )

    def _observations(self, batch: Any) -> Any:
        if self.places is not None:
            batch = map_leaves(lambda leaf: leaf[self.slots], batch)
        if not self._flat:
            return flatten_batch(self._space, batch, self.num_envs)
        if self._owned or self.places is not None:
            return batch
        return map_leaves(np.array, batch)

    def _infos_of(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        if self._own_infos is not None:
            return self._own_infos.take()
        rows = split_infos(infos, self.envs.num_envs)
        return rows if self.places is None else [rows[slot] for slot in self.slots.tolist()]
