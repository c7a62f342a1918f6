"""Structural copies against untouched environments: Gymnasium's Python families and wrappers."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving import check_exact, needs
from gymnasium import wrappers as W
from gymnasium.vector import SyncVectorEnv

from branchrt_gym.wrappers.branch_wrapper import BranchVectorWrapper, BranchWrapper


def made(env_id: str, **kwargs: Any) -> Callable[[], Any]:
    return lambda: gymnasium.make(env_id, **kwargs)


def closing_over_env() -> Any:
    env = gymnasium.make("CartPole-v1")
    return W.TransformObservation(
        env, lambda o: np.concatenate([o, np.array(env.unwrapped.state)]), None
    )


def counting_in_a_closure() -> Any:
    count = 0

    def count_up(observation: Any) -> Any:
        nonlocal count
        count += 1
        return observation + count

    return W.TransformObservation(gymnasium.make("CartPole-v1"), count_up, None)


FAMILIES = {
    "CartPole": made("CartPole-v1"),
    "Acrobot": made("Acrobot-v1"),
    "MountainCar": made("MountainCar-v0"),
    "MountainCarContinuous": made("MountainCarContinuous-v0"),
    "Pendulum": made("Pendulum-v1"),
    "FrozenLake": made("FrozenLake-v1"),
    "FrozenLake8x8": made("FrozenLake8x8-v1"),
    "Taxi": made("Taxi-v4", is_rainy=True, fickle_passenger=True),
    "Blackjack": made("Blackjack-v1"),
    "CliffWalking": made("CliffWalking-v1", is_slippery=True),
    "bare": lambda: gymnasium.make("CartPole-v1").unwrapped,
}

STACKS = {
    "limit and statistics": lambda: W.RecordEpisodeStatistics(
        gymnasium.make("CartPole-v1", max_episode_steps=50)
    ),
    "scaled, stacked, normalised": lambda: W.NormalizeReward(
        W.NormalizeObservation(
            W.FrameStackObservation(W.RescaleAction(gymnasium.make("Pendulum-v1"), -2.0, 3.0), 3)
        )
    ),
    "time, delay, stickiness": lambda: W.StickyAction(
        W.DelayObservation(W.TimeAwareObservation(gymnasium.make("CartPole-v1")), 3), 0.25
    ),
    "lambda": lambda: W.TransformObservation(gymnasium.make("CartPole-v1"), lambda o: 2 * o, None),
    "lambda over the env": closing_over_env,
    "count in a closure": counting_in_a_closure,
    "autoreset": lambda: W.Autoreset(gymnasium.make("CartPole-v1")),
    "torch": lambda: W.NumpyToTorch(gymnasium.make("CartPole-v1")),
    "flattened, clipped, cast": lambda: W.ClipReward(
        W.DtypeObservation(W.FlattenObservation(gymnasium.make("Blackjack-v1")), np.float32), -1, 1
    ),
    "max and skip": lambda: W.MaxAndSkipObservation(gymnasium.make("CartPole-v1"), 2),
}

MINIGRID = {
    "MiniGrid-DoorKey-6x6-v0": lambda env: env,
    "MiniGrid-Dynamic-Obstacles-6x6-v0": lambda env: env,
    "MiniGrid-MultiRoom-N4-S5-v0": lambda env: env,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str) -> None:
    check_exact(FAMILIES[name], BranchWrapper, "structural")


@pytest.mark.parametrize("name", STACKS)
def test_stack(name: str) -> None:
    if name == "torch":
        needs("array_api_compat")
    check_exact(STACKS[name], BranchWrapper, "structural")


@pytest.mark.parametrize(
    "env_id",
    [
        "CartPole-v1",
        "MountainCar-v0",
        "Pendulum-v1",
        "FrozenLake-v1",
        "Taxi-v4",
        "CliffWalking-v1",
        "Acrobot-v1",
        "Blackjack-v1",
    ],
)
def test_rendered(env_id: str) -> None:
    needs("pygame")
    check_exact(
        made(env_id, render_mode="rgb_array"), BranchWrapper, "structural", after=40, render=True
    )


@pytest.mark.parametrize("env_id", MINIGRID)
@pytest.mark.parametrize("picture", [False, True])
def test_minigrid(env_id: str, picture: bool) -> None:
    needs("minigrid")
    import minigrid.wrappers

    def make() -> Any:
        env = gymnasium.make(env_id)
        return minigrid.wrappers.RGBImgObsWrapper(env) if picture else env

    check_exact(make, BranchWrapper, "structural", after=60 if picture else 200)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
@pytest.mark.parametrize("statistics", [False, True])
def test_vector(env_id: str, statistics: bool) -> None:
    def make() -> Any:
        envs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * 3)
        return W.vector.RecordEpisodeStatistics(envs) if statistics else envs

    check_exact(make, BranchVectorWrapper, "structural")


def test_vector_entry_point() -> None:
    check_exact(lambda: gymnasium.make_vec("CartPole-v1", 4), BranchVectorWrapper, "structural")
