"""`branchrt bench step`: stepping a population beside Gymnasium's vector env of oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.measure import Summary, clock, ratio, summarize
from branchrt_gym.envs.blackjack_oracle import BlackjackOracle
from branchrt_gym.envs.deep_tree_oracle import DeepTreeOracle
from branchrt_gym.oracle import Oracle
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["HandSizes", "StepComparison", "StepSizes", "compare_step"]

SEED = 7


@dataclass(frozen=True)
class StepSizes:
    """The size of the comparison on DeepTree: a frontier forked full, within one episode.

    Attributes:
        slots: Slots of the vector env, all of them forked full.
        roots: Its roots, and the oracles beside it.
        width: Entries of a context.
        depth: Steps of an episode; all but the last are taken.
    """

    env: ClassVar[str] = "branchrt/DeepTree-v0"

    slots: int = 4096
    roots: int = 16
    width: int = 262_144
    depth: int = 64

    def __post_init__(self) -> None:
        """Checks that there is something to step."""
        if self.depth < 2:
            raise ValueError(f"`depth` is {self.depth}; expected 2 or more: a step before the end")
        _expect_slots("roots", self.roots, self.slots)

    @property
    def steps(self) -> int:
        """Steps between resets."""
        return self.depth - 1

    @property
    def oracles(self) -> int:
        """Oracles, the first roots'."""
        return self.roots

    def oracle(self) -> Oracle[Any, Any]:
        """Makes an oracle."""
        return DeepTreeOracle(width=self.width, depth=self.depth)

    def make(self, **sizes: int) -> BranchingVectorEnv:
        """Makes a vector env of as many slots."""
        return _make(self.env, self.slots, width=self.width, depth=self.depth, **sizes)


@dataclass(frozen=True)
class HandSizes:
    """The size of the comparison on Blackjack: a root in each slot, restarting when it ends.

    Attributes:
        slots: Slots of the vector env, a root in each.
        oracles: The oracles beside it, the first roots'.
        steps: Steps between resets, those in which a root restarts among them.
    """

    env: ClassVar[str] = "branchrt/Blackjack-v0"

    slots: int = 4096
    oracles: int = 16
    steps: int = 256

    def __post_init__(self) -> None:
        """Checks that there is something to step."""
        if self.steps < 1:
            raise ValueError(f"`steps` is {self.steps}; expected 1 or more")
        _expect_slots("oracles", self.oracles, self.slots)

    @property
    def roots(self) -> int:
        """Roots of the vector env."""
        return self.slots

    def oracle(self) -> Oracle[Any, Any]:
        """Makes an oracle."""
        return BlackjackOracle()

    def make(self, **sizes: int) -> BranchingVectorEnv:
        """Makes a vector env of as many slots."""
        return _make(self.env, self.slots, **sizes)


def _expect_slots(name: str, count: int, slots: int) -> None:
    if not 1 <= count <= slots:
        raise ValueError(f"`{name}` is {count}; expected 1 … {slots}, the slots")


def _make(env: str, slots: int, **arguments: Any) -> BranchingVectorEnv:
    made = gymnasium.make_vec(env, num_envs=slots, **arguments)
    assert isinstance(made, BranchingVectorEnv)
    return made


@dataclass(frozen=True)
class StepComparison:
    """What stepping came to; times are None where the results differ.

    Attributes:
        sizes: The sizes, and the environment.
        compared: Values compared.
        mismatches: How many differ.
        first: The first of them, in words.
        branching: Slots stepped per second by the branching vector env.
        oracles: Likewise, by `SyncVectorEnv` of the oracles.
        ratio: The first over the second.
        oracle: Steps per second of one oracle, stepped in a plain loop.
        reset_seconds: A seeded reset of as many slots with the default roots and contexts.
    """

    sizes: StepSizes | HandSizes
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
            "env": self.sizes.env,
            "sizes": asdict(self.sizes),
            "steps": self.sizes.steps,
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
    sizes: StepSizes | HandSizes,
    *,
    repetitions: int = 7,
    progress: Progress = lambda stage, done, total: None,
) -> StepComparison:
    """Compares one slot of each oracle's root with it, then times both by turns.

    Both sides restart ended roots in Gymnasium's NEXT_STEP mode, so a step of a slot that
    restarts counts on either.
    """
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    stages = 2 + repetitions
    progress("Making both and comparing them", 0, stages)
    made = sizes.make(num_roots=sizes.roots, num_contexts=min(sizes.roots, 64))
    oracles = SyncVectorEnv([sizes.oracle] * sizes.oracles)
    chance = np.random.default_rng(SEED)
    choices = int(oracles.single_action_space.n)  # type: ignore[attr-defined]
    actions = chance.integers(choices, size=(sizes.steps, sizes.slots))
    found = _compare(made, oracles, actions, chance)
    comparison = StepComparison(sizes, *found)
    if not comparison.equal:
        return comparison

    oracle = sizes.oracle()
    ours, theirs, alone = list(actions), list(actions[:, : sizes.oracles]), actions[:, 0].tolist()
    rates: dict[str, list[float]] = {"branching": [], "oracles": [], "oracle": []}
    for repetition in range(repetitions):
        progress(f"Timing, repetition {repetition + 1} of {repetitions}", 1 + repetition, stages)
        _start_full(made)
        oracles.reset(seed=SEED)
        oracle.reset(seed=SEED)
        for name, count, call in (
            ("branching", sizes.slots, lambda: _steps(made.step, ours)),
            ("oracles", sizes.oracles, lambda: _steps(oracles.step, theirs)),
            ("oracle", 1, lambda: _steps_alone(oracle, alone)),
        ):
            rates[name].append(count * sizes.steps / clock(call))
    progress("Timing resets", 1 + repetitions, stages)
    plain = sizes.make()
    resets = [clock(lambda: plain.reset(seed=SEED)) for _ in range(3)]
    for envs in (made, oracles, plain):
        envs.close()
    progress("Done", stages, stages)
    return StepComparison(
        sizes,
        *found,
        branching=summarize(rates["branching"]),
        oracles=summarize(rates["oracles"]),
        ratio=ratio(rates["branching"], rates["oracles"]),
        oracle=summarize(rates["oracle"]),
        reset_seconds=summarize(resets),
    )


def _steps(step: Callable[[Any], object], actions: list[Any]) -> None:
    for action in actions:
        step(action)


def _steps_alone(oracle: Oracle[Any, Any], actions: list[int]) -> None:
    for action in actions:
        if oracle.live:
            oracle.step(action)
        else:
            oracle.reset()


def _start_full(envs: BranchingVectorEnv) -> Any:
    """Starts every root and forks it until no slot is free; returns the first observations."""
    envs.reset(seed=SEED)
    parents = np.arange(envs.num_roots)
    free = envs.num_envs - envs.num_roots
    counts = free // envs.num_roots + (parents < free % envs.num_roots)
    envs.fork(parents[counts > 0], counts[counts > 0])
    assert envs.live.all()
    return envs.observe()


def _leaves(name: str, values: Any, slots: Any = slice(None)) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields the arrays of an observation, or of anything else, at these slots."""
    if isinstance(values, tuple):
        for place, part in enumerate(values):
            yield from _leaves(f"{name}[{place}]", part, slots)
    else:
        yield name, np.asarray(values)[slots]


def _compare(
    envs: BranchingVectorEnv,
    oracles: SyncVectorEnv,
    actions: NDArray[np.int64],
    chance: np.random.Generator,
) -> tuple[int, int, str | None]:
    """Steps both; one slot of each oracle's root, drawn, must equal the oracle all the time."""
    observations = _start_full(envs)
    roots = envs.roots
    slots = np.array([chance.choice(np.flatnonzero(roots == r)) for r in range(oracles.num_envs)])
    expected, _ = oracles.reset(seed=SEED)
    compared = mismatches = 0
    first = None

    def same(name: str, step: int, wanted: Any, found: Any) -> None:
        nonlocal compared, mismatches, first
        pairs = zip(_leaves(name, wanted), _leaves(name, found, slots), strict=True)
        for (what, want), (_, got) in pairs:
            differs = want != got
            compared += want.size
            mismatches += int(differs.sum())
            if first is None and differs.any():
                place = tuple(np.argwhere(differs)[0])
                first = (
                    f"`{what}` of root {place[0]} after {step} steps: the oracle has "
                    f"{want[place]}, slot {slots[place[0]]} has {got[place]}"
                )

    same("observation", 0, expected, observations)
    for step, taken in enumerate(actions, start=1):
        *ours, _ = envs.step(taken)
        *theirs, _ = oracles.step(taken[slots])
        names = ("observation", "reward", "terminated", "truncated")
        for name, got, want in zip(names, ours, theirs, strict=True):
            same(name, step, want, got)
    return compared, mismatches, first
