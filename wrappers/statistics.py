"""`RecordBranchStatistics`, and which of Gymnasium's vector wrappers go around branching envs.

A wrapper that looks at one row at a time may lie around a population; one that keeps something for
each slot is wrong after a fork, since a child's slot holds what its last tenant left. Tested with
Gymnasium 1.4; `fork` and the like are called on `envs.unwrapped`.

| Gymnasium's wrapper | around a branching environment |
|---|---|
| ClipAction, RescaleAction, TransformAction, VectorizeTransformAction | safe |
| ClipReward, TransformReward, VectorizeTransformReward | safe |
| DtypeObservation, FilterObservation, FlattenObservation, GrayscaleObservation, \
RescaleObservation, ReshapeObservation, ResizeObservation, TransformObservation, \
VectorizeTransformObservation | safe; in SAME_STEP mode they raise at an episode's end, as they do \
around other environments |
| DictInfoToList | safe |
| HumanRendering, RecordVideo | only call `render`, which draws an empty slot as it last stood |
| RecordEpisodeStatistics | wrong after a fork: use RecordBranchStatistics |
| NormalizeReward | wrong after a fork, and empty slots count as rewards of 0 |
| NormalizeObservation | right while every slot is live; else it averages the constants of empty \
slots too |
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv, VectorWrapper

from branchrt_gym.slots import FREE, NO_BRANCH

__all__ = ["RecordBranchStatistics"]

HEADER = "branch_statistics"


class RecordBranchStatistics(VectorWrapper[Any, Any, Any, Any, Any]):
    """Gymnasium's RecordEpisodeStatistics, right under fork, prune, compact and restore.

    A child inherits its parent's return and length so far, and the time its episode began. A branch
    that ends is an episode, with the return from its root on; one that is pruned is none. At an
    episode's end `info["episode"]` has `r`, `l` and `t` (seconds) as arrays, `info["_episode"]`
    says for which slots; both are NumPy's, whatever the population's output.

    `fork` and the others are called on `envs.unwrapped`, as ever; steps go through the wrapper.
    What branches are in the slots is read from their ids, before and after each step. Where ids are
    not enough (a child of a child that is gone, an expansion by `branch_step`, a step behind the
    wrapper's back, a snapshot from elsewhere), returns are summed up from the lineage, equal up to
    rounding. Ends within `branch_step` are not counted.

    Args:
        env: A BranchingVectorEnv, or one with wrappers around it.
        buffer_length: Episodes that the queues keep.
        stats_key: The key in `info`.

    Attributes:
        episode_returns: `[N] float64`, so far; 0 in a free slot.
        episode_lengths: `[N] int64`, transitions so far.
        return_queue, length_queue, time_queue: Of the last episodes.
        episode_count: How many ended.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], buffer_length: int = 100, stats_key: str = "episode"
    ) -> None:
        """Listens to the population's `snapshot` and `restore`; see the class."""
        super().__init__(env)
        population: Any = env.unwrapped
        if not hasattr(population, "frontier"):
            raise TypeError(
                f"`env` is {env}; expected a BranchingVectorEnv. For others Gymnasium's "
                "RecordEpisodeStatistics is right"
            )
        self.population: Any = population
        self._sees_rewards = env is population  # no wrapper changes them on their way
        self.stats_key = stats_key
        self.episode_count = 0
        self.return_queue: deque[float] = deque(maxlen=buffer_length)
        self.length_queue: deque[int] = deque(maxlen=buffer_length)
        self.time_queue: deque[float] = deque(maxlen=buffer_length)
        self._ids = np.full(env.num_envs, NO_BRANCH)
        self.episode_returns = np.zeros(env.num_envs)
        self.episode_lengths = np.zeros(env.num_envs, dtype=np.int64)
        self.episode_start_times = np.zeros(env.num_envs)
        # Not the population's own methods: a pickled one is looked up again, and would be ours.
        self._inner = {n: vars(population).get(n) for n in ("snapshot", "restore")}
        population.snapshot, population.restore = self._take, self._put

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets; the statistics of branches that go on are kept."""
        result = super().reset(seed=seed, options=options)
        if not (options and "reset_mask" in options):
            self._ids[:] = NO_BRANCH  # ids may begin again
        self._look()
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps, and adds the statistics of branches that ended to the infos."""
        self._look()
        live = _host(self.population.live)
        result = super().step(actions)
        _, rewards, terminated, truncated, infos = result
        if self.stats_key in infos:
            raise ValueError(
                f"`stats_key` is {self.stats_key!r}, which the infos have already; expected a key "
                "of its own"
            )
        self.episode_returns[live] += _host(rewards)[live]
        self.episode_lengths[live] += 1
        ended = _host(terminated) | _host(truncated)
        if ended.any():
            self._count(ended, infos)
        self._look()
        return result

    def _count(self, ended: np.ndarray, infos: dict[str, Any]) -> None:
        seconds = np.round(time.perf_counter() - self.episode_start_times, 6)
        infos[self.stats_key] = {
            "r": np.where(ended, self.episode_returns, 0.0),
            "l": np.where(ended, self.episode_lengths, 0),
            "t": np.where(ended, seconds, 0.0),
        }
        infos[f"_{self.stats_key}"] = ended
        self.episode_count += int(ended.sum())
        self.return_queue.extend(self.episode_returns[ended].tolist())
        self.length_queue.extend(self.episode_lengths[ended].tolist())
        self.time_queue.extend(seconds[ended].tolist())

    def _look(self) -> None:
        """Finds which branches are in the slots now, and what is known of each."""
        frontier = self.population.frontier
        ids = np.where(_host(frontier.status) == FREE, NO_BRANCH, _host(frontier.branch_id))
        length = np.where(ids == NO_BRANCH, 0, _host(frontier.depth))
        if np.array_equal(ids, self._ids) and np.array_equal(length, self.episode_lengths):
            return
        order = np.argsort(self._ids, kind="stable")
        sorted_ids = self._ids[order]

        def find(wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Returns where these branches were, and whether they were, and as long as now."""
            at = order[np.searchsorted(sorted_ids, wanted).clip(max=len(order) - 1)]
            right = (self._ids[at] == wanted) & (self.episode_lengths[at] == length)
            return at, right & (wanted != NO_BRANCH)

        source, known = find(ids)
        mother, inherits = find(_host(frontier.parent_id))
        source, known = np.where(known, source, mother), known | inherits
        known &= ids != NO_BRANCH
        returns = np.where(known, self.episode_returns[source], 0.0)
        since = np.where(known, self.episode_start_times[source], time.perf_counter())
        foreign = ~known & (ids != NO_BRANCH) & (length > 0)
        if foreign.any():
            returns[foreign] = self._from_lineage(ids[foreign])
        self._ids, self.episode_returns, self.episode_lengths = (
            ids,
            returns,
            length.astype(np.int64),
        )
        self.episode_start_times = since

    def _from_lineage(self, ids: np.ndarray) -> np.ndarray:
        if not (self._sees_rewards and self.population.frontier.lineage.recorded):
            raise ValueError(
                f"branches {ids.tolist()} took steps that this wrapper did not see: their returns "
                "are in the lineage, which needs `record_lineage=True` and no wrapper between that "
                "one and the population"
            )
        return _host(self.population.trajectories(ids).reward.to(torch.float64).sum(1))

    def _call(self, name: str, *arguments: Any) -> Any:
        inner = self._inner[name]
        if inner is not None:  # of another such wrapper
            return inner(*arguments)
        return getattr(type(self.population), name)(self.population, *arguments)

    def _take(self) -> Any:
        """The population's `snapshot`, with the statistics in its header."""
        snapshot = self._call("snapshot")
        self._look()
        kept = (self._ids, self.episode_returns, self.episode_lengths)
        snapshot.header[HEADER] = [column.tolist() for column in kept]
        return snapshot

    def _put(self, snapshot: Any) -> Any:
        """The population's `restore`; times go on from now."""
        observations = self._call("restore", snapshot)
        self._ids[:] = NO_BRANCH
        if HEADER in snapshot.header:
            ids, returns, lengths = snapshot.header[HEADER]
            self._ids[:], self.episode_returns[:], self.episode_lengths[:] = ids, returns, lengths
            self.episode_start_times[:] = time.perf_counter()
        self._look()
        return observations


def _host(values: Any) -> np.ndarray:
    """Returns a tensor or array as an array."""
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
