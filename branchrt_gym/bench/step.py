"""`branchrt bench step`: stepping a full frontier beside Gymnasium's vector env of oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.measure import Summary, clock, ratio, summarize
from branchrt_gym.envs.deep_tree_oracle import DeepTreeOracle
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["StepComparison", "StepSizes", "compare_step"]

ENV_ID = "branchrt/DeepTree-v0"
SEED = 7


@dataclass(frozen=True)
class StepSizes:
    """The size of the comparison.

    Attributes:
        slots: Slots of the vector env, all of them forked full.
        roots: Its roots, and the oracles beside it.
        width: Entries of a context.
        depth: Steps of an episode; all but the last are taken.
    """

    slots: int = 4096
    roots: int = 16
    width: int = 262_144
    depth: int = 64

    def __post_init__(self) -> None:
        """Checks that there is something to step."""
        if self.depth < 2:
            raise ValueError(f"`depth` is {self.depth}; expected 2 or more: a step before the end")
        if not 1 <= self.roots <= self.slots:
            raise ValueError(f"`roots` is {self.roots}; expected 1 … {self.slots}, the slots")


@dataclass(frozen=True)
class StepComparison:
    """What stepping came to; times are None where the results differ.

    Attributes:
        sizes: The sizes.
        steps: Steps taken between resets.
        compared: Values compared.
        mismatches: How many differ.
        first: The first of them, in words.
        branching: Live slots stepped per second by the branching vector env.
        oracles: Likewise, by `SyncVectorEnv` of one oracle per root.
        ratio: The first over the second.
        oracle: Steps per second of one oracle, stepped in a plain loop.
        reset_seconds: A seeded reset of as many slots with the default roots and contexts.
    """

    sizes: StepSizes
    steps: int
    compared: int
    mismatches: int
    first: str | None
    branching: Summary | None = None
    oracles: Summary | None = None
    ratio: Summary | None = None
    oracle: Summary | None = None
    reset_seconds: Summary | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {
            "bench": "step",
            "sizes": asdict(self.sizes),
            "steps": self.steps,
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            "branching_steps_per_second": self.branching,
            "oracles_steps_per_second": self.oracles,
            "ratio": self.ratio,
            "oracle_steps_per_second": self.oracle,
            "reset_seconds": self.reset_seconds,
        }


def compare_step(
    sizes: StepSizes,
    *,
    repetitions: int = 7,
    progress: Progress = lambda stage, done, total: None,
) -> StepComparison:
    """Compares one slot of each root with the oracles, then times both by turns."""
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    stages = 2 + repetitions
    rules: dict[str, Any] = {"width": sizes.width, "depth": sizes.depth}
    steps = sizes.depth - 1
    progress("Making both and comparing them", 0, stages)
    made = gymnasium.make_vec(
        ENV_ID, num_envs=sizes.slots, num_roots=sizes.roots, num_contexts=sizes.roots, **rules
    )
    assert isinstance(made, BranchingVectorEnv)
    oracles = SyncVectorEnv([lambda: DeepTreeOracle(**rules)] * sizes.roots)
    chance = np.random.default_rng(SEED)
    fanout = int(oracles.single_action_space.n)  # type: ignore[attr-defined]
    actions = chance.integers(fanout, size=(steps, sizes.slots))
    compared, mismatches, first = _compare(made, oracles, actions, chance)
    comparison = StepComparison(sizes, steps, compared, mismatches, first)
    if not comparison.equal:
        return comparison

    oracle = DeepTreeOracle(**rules)
    oracle.reset(seed=SEED)
    ours, theirs, alone = list(actions), list(actions[:, : sizes.roots]), actions[:, 0].tolist()
    rates: dict[str, list[float]] = {"branching": [], "oracles": [], "oracle": []}
    for repetition in range(repetitions):
        progress(f"Timing, repetition {repetition + 1} of {repetitions}", 1 + repetition, stages)
        _start_full(made)
        oracles.reset()
        oracle.reset()
        rates["branching"].append(sizes.slots * steps / clock(lambda: _steps(made.step, ours)))
        rates["oracles"].append(sizes.roots * steps / clock(lambda: _steps(oracles.step, theirs)))
        rates["oracle"].append(steps / clock(lambda: _steps(oracle.step, alone)))
    progress("Timing resets", 1 + repetitions, stages)
    plain = gymnasium.make_vec(ENV_ID, num_envs=sizes.slots, **rules)
    resets = [clock(lambda: plain.reset(seed=SEED)) for _ in range(3)]
    for envs in (made, oracles, plain):
        envs.close()
    progress("Done", stages, stages)
    return StepComparison(
        sizes,
        steps,
        compared,
        mismatches,
        first,
        branching=summarize(rates["branching"]),
        oracles=summarize(rates["oracles"]),
        ratio=ratio(rates["branching"], rates["oracles"]),
        oracle=summarize(rates["oracle"]),
        reset_seconds=summarize(resets),
    )


def _steps(step: Callable[[Any], object], actions: list[Any]) -> None:
    for action in actions:
        step(action)


def _start_full(envs: BranchingVectorEnv, seed: int = SEED) -> NDArray[np.float32]:
    """Starts every root and forks it until no slot is free; returns the first observations."""
    envs.reset(seed=seed)
    parents = np.arange(envs.num_roots)
    free = envs.num_envs - envs.num_roots
    counts = free // envs.num_roots + (parents < free % envs.num_roots)
    envs.fork(parents[counts > 0], counts[counts > 0])
    assert envs.live.all()
    observations: NDArray[np.float32] = envs.observe()
    return observations


def _compare(
    envs: BranchingVectorEnv,
    oracles: SyncVectorEnv,
    actions: NDArray[np.int64],
    chance: np.random.Generator,
) -> tuple[int, int, str | None]:
    """Steps both through an episode; one slot of each root, drawn, must equal its oracle."""
    observations = _start_full(envs)
    roots = envs.roots
    slots = np.array([chance.choice(np.flatnonzero(roots == r)) for r in range(envs.num_roots)])
    expected, _ = oracles.reset(seed=SEED)
    compared = mismatches = 0
    first = None

    def same(what: str, step: int, want: NDArray[Any], got: NDArray[Any]) -> None:
        nonlocal compared, mismatches, first
        differs = want != got
        compared += want.size
        mismatches += int(differs.sum())
        if first is None and differs.any():
            place = tuple(np.argwhere(differs)[0])
            first = (
                f"`{what}` of root {place[0]} after {step} steps: the oracle has "
                f"{want[place]}, slot {slots[place[0]]} has {got[place]}"
            )

    same("observation", 0, expected, observations[slots])
    for step, taken in enumerate(actions, start=1):
        *ours, _ = envs.step(taken)
        *theirs, _ = oracles.step(taken[slots])
        names = ("observation", "reward", "terminated", "truncated")
        for name, got, want in zip(names, ours, theirs, strict=True):
            same(name, step, np.asarray(want), got[slots])
    return compared, mismatches, first
