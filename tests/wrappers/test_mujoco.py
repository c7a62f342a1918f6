"""MuJoCo against untouched environments, and the slots that its copies are made in."""

from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving import begin, bits, check_exact, follow, needs
from gymnasium import wrappers as W
from gymnasium.vector import SyncVectorEnv

from branchrt_gym.wrappers.branch_wrapper import BranchVectorWrapper, BranchWrapper
from branchrt_gym.wrappers.mujoco import Mujoco
from branchrt_gym.wrappers.verify import verify

needs("mujoco")

ENVS = ("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "InvertedPendulum-v5",
        "Reacher-v5", "Walker2d-v5")  # fmt: skip


@pytest.mark.parametrize("env_id", ENVS)
def test_family(env_id: str) -> None:
    check_exact(lambda: gymnasium.make(env_id), BranchWrapper, "mujoco")


@pytest.mark.parametrize("steps", [0, 1, 12])
def test_at_other_points(steps: int) -> None:
    check_exact(lambda: gymnasium.make("Humanoid-v5"), BranchWrapper, "mujoco", steps=steps)


def test_stack() -> None:
    def make() -> Any:
        env = W.NormalizeObservation(gymnasium.make("HalfCheetah-v5", max_episode_steps=60))
        return W.RecordEpisodeStatistics(W.FrameStackObservation(env, 2))

    check_exact(make, BranchWrapper, "mujoco")


def test_vector() -> None:
    check_exact(
        lambda: SyncVectorEnv([lambda: gymnasium.make("Hopper-v5")] * 2),
        BranchVectorWrapper,
        "mujoco",
        after=60,
    )


@cache
def randomised_class() -> Any:
    from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

    class Randomised(HopperEnv):
        def reset_model(self) -> Any:
            self.model.body_mass[1:] *= self.np_random.uniform(0.9, 1.1)
            return super().reset_model()

    return Randomised


def randomised() -> Any:
    return W.TimeLimit(randomised_class()(), 40)


def test_an_environment_that_writes_to_its_model() -> None:
    check_exact(
        randomised, lambda env: BranchWrapper(env, provider=Mujoco(own_models=True)), "mujoco"
    )
    found = verify(randomised, points=2, steps=60)
    assert not found.exact


def test_slots_are_used_again() -> None:
    env = BranchWrapper(gymnasium.make("Hopper-v5"))
    actions = begin(env)
    first = env.fork(1)[0]
    slot = id(first.unwrapped.data)
    del first
    second = env.fork(1, rng="shared")[0]
    assert id(second.unwrapped.data) == slot
    assert follow(second, actions) == follow(env, actions)


@pytest.mark.parametrize("name", ["qpos", "qvel", "xpos"])
def test_a_slot_that_is_looked_at_is_left_alone(name: str) -> None:
    env = BranchWrapper(gymnasium.make("Hopper-v5"))
    actions = begin(env)
    child = env.fork(1, rng="shared")[0]
    seen = getattr(child.unwrapped.data, name)
    before = bits(np.array(seen))
    del child
    follow(env, actions[:5])
    kept = env.fork(3)
    assert bits(np.array(seen)) == before
    del seen, kept


def test_the_layers_and_the_data_stay_the_objects_they_are() -> None:
    env = BranchWrapper(gymnasium.make("Ant-v5"))
    actions = begin(env)
    inner, data, renderer = env.unwrapped, env.unwrapped.data, env.unwrapped.mujoco_renderer
    snapshot = env.snapshot()
    follow(env, actions[:5])
    env.restore(snapshot)
    assert env.unwrapped is inner
    assert inner.data is data
    assert inner.mujoco_renderer is renderer
    assert renderer.data is data


def test_a_copy_renders_its_own_data() -> None:
    env = BranchWrapper(gymnasium.make("Ant-v5"))
    begin(env)
    child = env.fork(1)[0].unwrapped
    assert child.mujoco_renderer.data is child.data
    assert child.data is not env.unwrapped.data
    assert child.model is env.unwrapped.model
