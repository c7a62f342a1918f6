"""Stable-Baselines3 over populations of ordinary environments."""

from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs the package stable-baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from branchrt_gym import make_branching
from branchrt_gym.integrations.sb3 import BranchingVecEnv, ForkFromArchive


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_it_is_dummy_vec_env(env_id: str, mode: str) -> None:
    ours = BranchingVecEnv(make_branching(env_id, 3, autoreset_mode=mode))
    theirs = DummyVecEnv([lambda: gymnasium.make(env_id)] * 3)
    ours.seed(4)
    theirs.seed(4)
    assert np.array_equal(ours.reset(), theirs.reset())
    ours.action_space.seed(0)
    dones = 0
    for _ in range(250):
        actions = np.array([ours.action_space.sample() for _ in range(3)])
        one, two = ours.step(actions), theirs.step(actions)
        for mine, other in zip(one[:3], two[:3], strict=True):
            assert np.array_equal(mine, other) and mine.dtype == other.dtype
        dones += one[2].sum()
        for mine, other in zip(one[3], two[3], strict=True):
            assert mine.keys() - {"live", "solved"} == other.keys()
            for key, value in other.items():
                assert np.array_equal(mine[key], value)
    assert dones > 2
    assert ours.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True] * 3


def test_episodes_fork_from_an_archive() -> None:
    envs: Any = make_branching(
        "CartPole-v1", 6, num_roots=4, autoreset_mode="Disabled", record_lineage=False
    )
    callback = ForkFromArchive(lambda observations: -abs(observations[:, 2]), record_every=4)
    model = PPO("MlpPolicy", BranchingVecEnv(envs, spare_slots=2), n_steps=32, device="cpu", seed=0)
    model.learn(512, callback=callback)
    assert callback.branchings >= 2
