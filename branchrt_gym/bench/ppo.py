"""`branchrt bench sb3`: PPO through `BranchingVecEnv` and through `DummyVecEnv`, by turns.

Both train from the same seed. As the rows are equal bit for bit, so are the networks in the end,
and these are compared before any time is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.measure import Summary, clock, ratio, summarize

__all__ = ["PPOComparison", "PPOSizes", "compare_ppo"]

SEED = 7
WARM_UP = 256  # steps of a row, before anything is timed


@dataclass(frozen=True)
class PPOSizes:
    """The size of the comparison.

    Attributes:
        env: Id of the environment.
        rows: Episodes at a time.
        steps: Transitions that PPO is trained for.
        stepped: Steps of all rows that are timed without a learner.
    """

    env: str = "CartPole-v1"
    rows: int = 8
    steps: int = 100_000
    stepped: int = 4_000


@dataclass(frozen=True)
class PPOComparison:
    """What training came to; times are None where the results differ.

    Attributes:
        sizes: The sizes.
        compared: Weights of the trained networks, and values of rows stepped beside each other.
        mismatches: How many differ.
        train_seconds: Of the whole training, through `BranchingVecEnv` and `DummyVecEnv`.
        train_ratio: The first over the second.
        step_seconds: Likewise, of a step of all rows without a learner.
        step_ratio: The first over the second.
    """

    sizes: PPOSizes
    compared: int
    mismatches: int
    train_seconds: dict[str, Summary] | None = None
    train_ratio: Summary | None = None
    step_seconds: dict[str, Summary] | None = None
    step_ratio: Summary | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {
            "bench": "sb3",
            "environment": self.sizes.env,
            **{name: getattr(self, name) for name in vars(self) if name != "sizes"},
            "sizes": asdict(self.sizes),
        }


def compare_ppo(
    sizes: PPOSizes,
    *,
    repetitions: int = 3,
    progress: Progress = lambda stage, done, total: None,
) -> PPOComparison:
    """Trains and steps through both adapters by turns.

    Args:
        sizes: The sizes.
        repetitions: Trainings through each.
        progress: Called with what is done.
    """
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    stages = 2 + 2 * repetitions
    makers = _makers(sizes)
    progress("Comparing rows", 0, stages)
    compared, mismatches = _compare_rows(sizes, makers)
    progress("Timing steps", 1, stages)
    stepped: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(max(5, repetitions)):
        for name, make in makers.items():
            stepped[name].append(_step_seconds(sizes, make()))
    trained: dict[str, list[float]] = {name: [] for name in makers}
    weights: dict[str, torch.Tensor] = {}
    for repetition in range(repetitions):
        turns = [*makers] if repetition % 2 == 0 else [*makers][::-1]
        for place, name in enumerate(turns):
            progress(f"Training through {name}", 2 + 2 * repetition + place, stages)
            model = _model(makers[name]())
            trained[name].append(clock(partial(model.learn, sizes.steps)))
            weights[name] = torch.cat([p.detach().flatten() for p in model.policy.parameters()])
            model.get_env().close()
        ours, theirs = (weights[name] for name in makers)
        compared += ours.numel()
        mismatches += int((ours != theirs).sum())
    progress("Done", stages, stages)
    if mismatches:
        return PPOComparison(sizes, compared, mismatches)
    return PPOComparison(
        sizes,
        compared,
        mismatches,
        train_seconds={name: summarize(samples) for name, samples in trained.items()},
        train_ratio=ratio(*trained.values()),
        step_seconds={name: summarize(samples) for name, samples in stepped.items()},
        step_ratio=ratio(*stepped.values()),
    )


def _makers(sizes: PPOSizes) -> dict[str, Callable[[], Any]]:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from branchrt_gym.integrations.sb3 import BranchingVecEnv

    def one() -> Any:
        # As the library makes environments for itself; it would warn of one that is not monitored.
        return Monitor(gymnasium.make(sizes.env))

    def ours() -> Any:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        envs = gymnasium.vector.SyncVectorEnv([one] * sizes.rows, autoreset_mode=mode)
        return BranchingVecEnv(envs)

    return {"BranchingVecEnv": ours, "DummyVecEnv": lambda: DummyVecEnv([one] * sizes.rows)}


def _model(envs: Any) -> Any:
    from stable_baselines3 import PPO

    return PPO("MlpPolicy", envs, n_steps=2048 // envs.num_envs, seed=SEED, device="cpu")


def _actions(envs: Any, count: int) -> list[Any]:
    envs.action_space.seed(SEED)
    return [
        np.array([envs.action_space.sample() for _ in range(envs.num_envs)]) for _ in range(count)
    ]


def _compare_rows(sizes: PPOSizes, makers: dict[str, Callable[[], Any]]) -> tuple[int, int]:
    """Steps rows of both; returns the values compared, and how many differ."""
    ours, theirs = (make() for make in makers.values())
    for envs in (ours, theirs):
        envs.seed(SEED)
    pairs = [(ours.reset(), theirs.reset())]
    for actions in _actions(theirs, WARM_UP):
        one, other = ours.step(actions), theirs.step(actions)
        pairs += zip(one[:3], other[:3], strict=True)
        ends = [(a.get("terminal_observation"), b.get("terminal_observation"))
                for a, b in zip(one[3], other[3], strict=True)]  # fmt: skip
        pairs += [(a, b) for a, b in ends if a is not None or b is not None]
    for envs in (ours, theirs):
        envs.close()
    compared = sum(np.size(b) for _, b in pairs)
    return compared, sum(int(np.sum(np.asarray(a) != np.asarray(b))) for a, b in pairs)


def _step_seconds(sizes: PPOSizes, envs: Any) -> float:
    actions = _actions(envs, WARM_UP)
    envs.seed(SEED)
    envs.reset()

    def steps(count: int) -> None:
        for number in range(count):
            envs.step(actions[number % WARM_UP])

    steps(WARM_UP)
    seconds = clock(partial(steps, sizes.stepped)) / sizes.stepped
    envs.close()
    return seconds
