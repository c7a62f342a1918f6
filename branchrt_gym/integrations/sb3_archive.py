"""`ForkFromArchive`: Stable-Baselines3 learns from episodes that begin in promising states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from branchrt_gym.integrations.places import Saved
from branchrt_gym.integrations.sb3_vec_env import BranchingVecEnv

__all__ = ["ForkFromArchive"]

KNOWN = (VecCheckNan, VecMonitor, VecNormalize, VecTransposeImage)
Score = Callable[[Any], Any]


@dataclass
class Entry:
    """An archived population: rows' scores, and what a VecMonitor had counted of each."""

    saved: Saved
    scores: np.ndarray
    counted: dict[VecMonitor, tuple[np.ndarray, np.ndarray]]

    @property
    def promise(self) -> float:
        """The best row's score."""
        return float(self.scores.max())


class ForkFromArchive(BaseCallback):
    """Archives populations, and begins episodes in their most promising states between rollouts.

    When a rollout begins, every row begins a new episode: `branches` of them as children of the
    best rows of an archived population, drawn evenly from the archive, the rest at the start.
    Nothing is learned across the cut: the rollout before it is complete, with the values of its
    last observations, and in the next one each row is marked as the start of an episode. A child
    has luck of its own, and in a VecMonitor its parent's return and length so far.

    It works with on-policy algorithms (PPO, A2C), over a `BranchingVecEnv` with `spare_slots` and
    any of VecMonitor, VecNormalize, VecTransposeImage and VecCheckNan.

    Args:
        score: Of observations as the policy sees them, `[num_envs]` numbers, the more promising the
            higher; None for the policy's own values.
        branches: Rows that branch, at most `spare_slots`; None for half of the rows.
        parents: Rows of the archived population that they are children of, by turns.
        every: Rollouts between branchings; between them all rows just play on.
        record_every: Steps between looks at the population.
        size: Populations that the archive keeps, those with the best row.
        seed: Of the draws from the archive, and of the episodes after them.
        verbose: As of any callback.

    Attributes:
        archive: The entries, worst first.
        branchings: How often rows have branched.
    """

    def __init__(
        self,
        score: Score | None = None,
        *,
        branches: int | None = None,
        parents: int = 1,
        every: int = 1,
        record_every: int = 16,
        size: int = 16,
        seed: int = 0,
        verbose: int = 0,
    ) -> None:
        """Checks the numbers; see the class."""
        super().__init__(verbose)
        numbers = {"parents": parents, "every": every, "record_every": record_every, "size": size}
        for name, number in numbers.items():
            if number < 1:
                raise ValueError(f"`{name}` is {number}; expected 1 or more")
        self.score = score
        self.branches = branches
        self.parents = parents
        self.every = every
        self.record_every = record_every
        self.size = size
        self.luck = np.random.default_rng(seed)
        self.archive: list[Entry] = []
        self.branchings = 0
        self.rollouts = 0

    def _init_callback(self) -> None:
        """Looks whether the model and its environment are such that branching is safe."""
        if not isinstance(self.model, OnPolicyAlgorithm):
            raise TypeError(
                f"`model` is {type(self.model).__name__}; expected an on-policy algorithm, such as "
                "PPO: a replay buffer may join the rows before and after a branching"
            )
        env: VecEnv = self.training_env
        self.wrappers: list[VecEnvWrapper] = []  # the innermost first
        while isinstance(env, VecEnvWrapper):
            if type(env) not in KNOWN:
                raise TypeError(
                    f"the environment has a {type(env).__name__}, whose state of each row cannot "
                    f"be branched; expected none but {', '.join(c.__name__ for c in KNOWN)}"
                )
            self.wrappers.insert(0, env)
            env = env.venv
        if not isinstance(env, BranchingVecEnv) or env.places is None:
            raise TypeError(
                f"the environment is {env}; expected a BranchingVecEnv with `spare_slots`, to "
                "branch into"
            )
        self.envs = env
        most = min(env.places.spare, env.num_envs)
        self.number = max(env.num_envs // 2, 1) if self.branches is None else self.branches
        if not 1 <= self.number <= most:
            raise ValueError(f"`branches` is {self.number}; expected 1 … {most}, the spare slots")

    def _on_step(self) -> bool:
        if self.n_calls % self.record_every == 0:
            self._record(self.locals["new_obs"])
        return True

    def _on_rollout_start(self) -> None:
        if self.archive and self.rollouts % self.every == 0:
            self._branch(self.archive[int(self.luck.integers(len(self.archive)))])
        self.rollouts += 1

    def _record(self, observations: Any) -> None:
        """Takes the population into the archive if its best row is among the best."""
        scores = self._scores(observations)
        if len(self.archive) == self.size and scores.max() <= self.archive[0].promise:
            return
        counted = {
            wrapper: (wrapper.episode_returns.copy(), wrapper.episode_lengths.copy())
            for wrapper in self.wrappers
            if isinstance(wrapper, VecMonitor)
        }
        self.archive.append(Entry(self.envs.save(), scores, counted))
        self.archive.sort(key=lambda entry: entry.promise)
        del self.archive[: -self.size]

    def _scores(self, observations: Any) -> np.ndarray:
        if self.score is None:
            policy: Any = self.model.policy
            with torch.no_grad():
                values = policy.predict_values(obs_as_tensor(observations, self.model.device))
            return np.asarray(values.cpu()).ravel()
        scores = np.asarray(self.score(observations), dtype=np.float64)
        if scores.shape != (self.envs.num_envs,) or np.isnan(scores).any():
            raise ValueError(
                f"`score` returned {scores}; expected {self.envs.num_envs} numbers, one for each "
                "row"
            )
        return scores

    def _branch(self, entry: Entry) -> None:
        """Begins an episode in every row, and tells the model."""
        rows = np.argsort(-entry.scores, kind="stable")
        _, first = np.unique(entry.saved.roots[rows], return_index=True)  # of each root the best
        best = rows[np.sort(first)][: self.parents]
        parents = np.resize(best, self.number)
        batch, entry.saved = self.envs.branch(entry.saved, parents.tolist(), self.luck)
        for wrapper in self.wrappers:
            if isinstance(wrapper, VecMonitor):
                for counts, then in zip(
                    (wrapper.episode_returns, wrapper.episode_lengths),
                    entry.counted[wrapper],
                    strict=True,
                ):
                    counts[:] = 0
                    counts[: self.number] = then[parents]
            elif isinstance(wrapper, VecNormalize):
                wrapper.returns[:] = 0
                wrapper.old_obs = batch
                batch = wrapper.normalize_obs(batch)
            elif isinstance(wrapper, VecTransposeImage):
                batch = wrapper.transpose_observations(batch)
        self.model._last_obs = batch
        self.model._last_episode_starts = np.ones(self.envs.num_envs, dtype=bool)
        self.branchings += 1
