"""Replay against untouched environments: Box2D, and others that Python cannot copy."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving import begin, check_exact, follow, needs
from gymnasium import wrappers as W
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import EzPickle
from gymnasium.vector import SyncVectorEnv

from branchrt_gym.errors import SnapshotUnsupportedError
from branchrt_gym.wrappers.branch_wrapper import BranchVectorWrapper, BranchWrapper

BOX2D = {
    "LunarLander-v3": {},
    "BipedalWalker-v3": {},
}


@pytest.mark.parametrize("env_id", BOX2D)
def test_box2d(env_id: str) -> None:
    needs("Box2D")
    check_exact(lambda: gymnasium.make(env_id), BranchWrapper, "replay")


def test_wind() -> None:
    needs("Box2D")
    check_exact(lambda: gymnasium.make("LunarLander-v3", enable_wind=True), BranchWrapper, "replay")


@pytest.mark.parametrize("env_id", BOX2D)
def test_after_other_episodes(env_id: str) -> None:
    """BipedalWalker's world keeps traces of earlier episodes, which show in the last bits."""
    needs("Box2D")
    for steps in (150, 290):
        check_exact(lambda: gymnasium.make(env_id), BranchWrapper, "replay", steps=steps)


def test_car_racing() -> None:
    needs("Box2D")
    needs("pygame")
    check_exact(lambda: gymnasium.make("CarRacing-v3"), BranchWrapper, "replay", steps=8, after=8)


def test_rendered() -> None:
    """To draw LunarLander ages its sparks, which are bodies of its world."""
    needs("Box2D")
    needs("pygame")
    check_exact(
        lambda: gymnasium.make("LunarLander-v3", render_mode="rgb_array"),
        BranchWrapper,
        "replay",
        after=60,
        render=True,
    )


def test_before_the_first_step() -> None:
    needs("Box2D")
    check_exact(lambda: gymnasium.make("LunarLander-v3"), BranchWrapper, "replay", steps=0)


def test_stack() -> None:
    needs("Box2D")

    def make() -> Any:
        env = W.StickyAction(gymnasium.make("LunarLander-v3"), 0.25)
        return W.TransformObservation(
            W.NormalizeObservation(env), lambda o: o + env.unwrapped.lander.position.x, None
        )

    check_exact(make, BranchWrapper, "replay")


def test_vector() -> None:
    needs("Box2D")
    check_exact(
        lambda: SyncVectorEnv([lambda: gymnasium.make("LunarLander-v3")] * 2),
        BranchVectorWrapper,
        "replay",
        after=60,
    )


class Locked(gymnasium.Env[np.ndarray, int], EzPickle):
    """Holds a lock, which nothing can copy, and draws a number at each step."""

    def __init__(self, honest: bool = True) -> None:
        self.observation_space = Box(0, 1, (1,), np.float64)
        self.action_space = Discrete(2)
        EzPickle.__init__(self, honest)
        self.lock = threading.Lock()
        self.honest = honest
        self.hidden = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: int) -> Any:
        return self._draw(), float(action), False, False, {}

    def _draw(self) -> np.ndarray:
        source = self.np_random if self.honest else self.hidden
        return source.random(1)


def test_any_environment_that_can_be_made_again() -> None:
    check_exact(Locked, BranchWrapper, "replay")


def test_bare_environment_is_recorded_under_the_wrapper() -> None:
    env = BranchWrapper(Locked())
    assert isinstance(env.unwrapped, Locked)


def test_luck_that_the_seed_does_not_give_is_refused() -> None:
    env = BranchWrapper(Locked(honest=False))
    env.reset(seed=1)
    env.step(0)
    with pytest.raises(SnapshotUnsupportedError, match="has luck or memory outside `np_random`"):
        env.fork(1)


def test_replay_by_name_for_an_environment_that_has_a_faster_provider() -> None:
    check_exact(
        lambda: gymnasium.make("FrozenLake-v1"),
        lambda env: BranchWrapper(env, provider="replay"),
        "replay",
    )


def test_children_of_split_children_keep_their_luck() -> None:
    env = BranchWrapper(gymnasium.make("FrozenLake-v1"), provider="replay")
    actions = begin(env)
    child = env.fork(1)[0]
    child.step(actions[0])
    twin = child.fork(1, rng="shared")[0]
    assert follow(twin, actions) == follow(child, actions)
