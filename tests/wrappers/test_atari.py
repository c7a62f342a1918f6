"""Atari against untouched environments: sticky actions, frames, other emulators."""

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving import actions_of, begin, bits, check_exact, follow, needs
from gymnasium import wrappers as W

from branchrt_gym.wrappers.branch_wrapper import BranchWrapper

needs("ale_py")

GAMES = ("Breakout", "Pong", "MsPacman", "Seaquest", "SpaceInvaders", "MontezumaRevenge")


def make(game: str, **kwargs: Any) -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make(f"ALE/{game}-v5", **kwargs)


@pytest.mark.parametrize("sticky", [0.25, 0.0])
@pytest.mark.parametrize("game", GAMES)
def test_family(game: str, sticky: float) -> None:
    check_exact(
        lambda: make(game, repeat_action_probability=sticky), BranchWrapper, "atari", after=60
    )


@pytest.mark.parametrize("obs_type", ["ram", "grayscale"])
def test_observations(obs_type: str) -> None:
    check_exact(lambda: make("Pong", obs_type=obs_type), BranchWrapper, "atari", after=40)


def test_rendered() -> None:
    check_exact(
        lambda: make("Breakout", render_mode="rgb_array"),
        BranchWrapper,
        "atari",
        after=30,
        render=True,
    )


def test_stochastic_frameskip() -> None:
    check_exact(lambda: make("MsPacman", frameskip=(2, 5)), BranchWrapper, "atari", after=60)


def test_preprocessed() -> None:
    needs("cv2")

    def made() -> Any:
        env = make("Breakout", frameskip=1, repeat_action_probability=0.0)
        return W.FrameStackObservation(W.AtariPreprocessing(env), 4)

    check_exact(made, BranchWrapper, "atari", after=60)


@pytest.mark.parametrize("frameskip", [1, 4])
def test_many_points_with_sticky_actions(frameskip: int) -> None:
    """Which action goes on is not in ale-py's state; 40 points in a row come back exactly."""
    env = BranchWrapper(make("Breakout", obs_type="ram", frameskip=frameskip))
    other = BranchWrapper(make("Breakout", obs_type="ram", frameskip=frameskip))
    other.reset(seed=1)
    begin(env, steps=3)
    actions = actions_of(env, 60)
    for i in range(40):
        snapshot = env.snapshot()
        other.restore(snapshot)
        truth = follow(env, actions[i : i + 12])
        assert follow(other, actions[i : i + 12]) == truth, f"point {i}"


def test_the_frame_is_not_stale() -> None:
    env = BranchWrapper(make("Breakout", render_mode="rgb_array"))
    actions = begin(env)
    snapshot, frame = env.snapshot(), env.render()
    follow(env, actions[:20])
    assert bits(env.render()) != bits(frame)
    observation = env.restore(snapshot)
    assert bits(env.render()) == bits(frame) == bits(observation)
    assert bits(env.fork(1)[0].render()) == bits(frame)
    env.step(actions[0])
    assert bits(env.render()) == bits(env.observation)


def test_emulators_are_used_again() -> None:
    env = BranchWrapper(make("Breakout", obs_type="ram"))
    begin(env)
    first = env.fork(1)[0]
    emulator = id(first.unwrapped.ale)
    del first
    assert id(env.fork(1)[0].unwrapped.ale) == emulator


def test_split_luck_reaches_the_emulator() -> None:
    """Only stickiness is random here: siblings on the same actions differ all the same."""
    env = BranchWrapper(make("Breakout", obs_type="ram"))
    actions = begin(env)
    futures = [follow(child, actions[:60]) for child in env.fork(4)]
    assert len({repr(future) for future in futures}) == 4
    again = BranchWrapper(make("Breakout", obs_type="ram"))
    begin(again)
    assert [follow(child, actions[:60]) for child in again.fork(4)] == futures


def test_deepcopy_is_what_it_is() -> None:
    """The reason for all this: a deep copy is another environment."""
    env = make("Breakout", obs_type="ram")
    begin(env)
    assert copy.deepcopy(env).unwrapped.ale.getFrameNumber() != env.unwrapped.ale.getFrameNumber()
    assert isinstance(env.unwrapped.ale.getRAM(), np.ndarray)
