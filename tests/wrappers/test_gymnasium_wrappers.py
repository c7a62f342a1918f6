"""Every wrapper of Gymnasium, under ours: copies against environments that nobody touched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving import AFTER, check_exact, needs
from gymnasium import spaces
from gymnasium import wrappers as W
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import vector as V

from branchrt_gym.wrappers import BranchVectorWrapper, BranchWrapper

ONE = spaces.Box(-np.inf, np.inf, (4,), np.float64)


def cart(**kwargs: Any) -> Any:
    return gymnasium.make("CartPole-v1", **kwargs)


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1", max_episode_steps=90)


class Picture(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A small picture, every pixel of which the state decides."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def observation(self, observation: Any) -> Any:
        shades = (np.resize(observation, (8, 8, 3)) * 1000).astype(np.int64)
        return (shades % 256).astype(np.uint8)


class Named(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A Dict."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        part = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(place=part, speed=part)

    def observation(self, observation: Any) -> Any:
        return {"place": observation[::2], "speed": observation[1::2]}


def picture(**kwargs: Any) -> Any:
    return Picture(cart(**kwargs))


def bounded() -> Any:
    return gymnasium.make("MountainCarContinuous-v0", max_episode_steps=90)


def atari(**kwargs: Any) -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Breakout-v5", **kwargs)


# Every wrapper of `gymnasium.wrappers`, and the packages that some of them need.
WRAPPERS: dict[str, Callable[[], Any]] = {
    "AddRenderObservation": lambda: W.AddRenderObservation(
        cart(render_mode="rgb_array"), render_only=False
    ),
    "AddWhiteNoise": lambda: W.AddWhiteNoise(cart(render_mode="rgb_array"), 0.2),
    "ArrayConversion": lambda: W.ArrayConversion(cart(), env_xp=np, target_xp=torch()),
    "AtariPreprocessing": lambda: W.AtariPreprocessing(atari(frameskip=1), noop_max=5),
    "Autoreset": lambda: W.Autoreset(cart()),
    "ClipAction": lambda: W.ClipAction(pendulum()),
    "ClipReward": lambda: W.ClipReward(pendulum(), -3.0, 0.0),
    "DelayObservation": lambda: W.DelayObservation(cart(), 3),
    "DiscretizeAction": lambda: W.DiscretizeAction(pendulum(), 5),
    "DiscretizeObservation": lambda: W.DiscretizeObservation(bounded(), 8),
    "DtypeObservation": lambda: W.DtypeObservation(cart(), np.float16),
    "FilterObservation": lambda: W.FilterObservation(Named(cart()), ["speed"]),
    "FlattenObservation": lambda: W.FlattenObservation(Named(cart())),
    "FrameStackObservation": lambda: W.FrameStackObservation(cart(), 4, padding_type="zero"),
    "GrayscaleObservation": lambda: W.GrayscaleObservation(picture()),
    "HumanRendering": lambda: W.HumanRendering(cart(render_mode="rgb_array")),
    "MaxAndSkipObservation": lambda: W.MaxAndSkipObservation(cart(), 2),
    "NormalizeObservation": lambda: W.NormalizeObservation(cart()),
    "NormalizeReward": lambda: W.NormalizeReward(pendulum()),
    "NumpyToTorch": lambda: W.NumpyToTorch(cart()),
    "ObstructView": lambda: W.ObstructView(cart(render_mode="rgb_array"), 0.2, 30),
    "OrderEnforcing": lambda: W.OrderEnforcing(cart().unwrapped),
    "PassiveEnvChecker": lambda: W.PassiveEnvChecker(W.TimeLimit(cart().unwrapped, 30)),
    "RecordEpisodeStatistics": lambda: W.RecordEpisodeStatistics(cart(), buffer_length=3),
    "RenderCollection": lambda: W.RenderCollection(cart(render_mode="rgb_array")),
    "RepeatAction": lambda: W.RepeatAction(cart(), 2),
    "RescaleAction": lambda: W.RescaleAction(pendulum(), np.float32(-1), np.float32(3)),
    "RescaleObservation": lambda: W.RescaleObservation(bounded(), np.float32(0), np.float32(1)),
    "ReshapeObservation": lambda: W.ReshapeObservation(cart(), (2, 2)),
    "ResizeObservation": lambda: W.ResizeObservation(picture(), (4, 6)),
    "StickyAction": lambda: W.StickyAction(cart(), 0.3, (1, 4)),
    "TimeAwareObservation": lambda: W.TimeAwareObservation(
        cart(), flatten=False, normalize_time=True
    ),
    "TimeLimit": lambda: W.TimeLimit(cart(), 11),
    "TransformAction": lambda: W.TransformAction(cart(), lambda a: 1 - a, spaces.Discrete(2)),
    "TransformObservation": lambda: W.TransformObservation(cart(), lambda o: o * 2.0, ONE),
    "TransformReward": lambda: W.TransformReward(cart(), lambda r: r - 0.5),
}
NEEDED = {
    "AddRenderObservation": ["pygame"],
    "AddWhiteNoise": ["pygame"],
    "ArrayConversion": ["array_api_compat"],
    "AtariPreprocessing": ["ale_py", "cv2"],
    "HumanRendering": ["pygame"],
    "NumpyToTorch": ["array_api_compat"],
    "ObstructView": ["pygame"],
    "RenderCollection": ["pygame"],
    "ResizeObservation": ["cv2"],
}
DRAWN = ("AddWhiteNoise", "ObstructView", "RenderCollection")  # seen in a picture alone
SLOW = {"AddRenderObservation": 60, "HumanRendering": 20} | dict.fromkeys(DRAWN, 40)


def torch() -> Any:
    import torch

    return torch


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDED.get(name, []):
        needs(package)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    provider = "atari" if name == "AtariPreprocessing" else "structural"
    check_exact(
        WRAPPERS[name],
        BranchWrapper,
        provider,
        after=SLOW.get(name, AFTER),
        render=name in DRAWN,
    )


def test_every_wrapper_is_named() -> None:
    # Those of JAX are left out, and the recorder, which is below.
    assert set(W.__all__) - {"vector", "JaxToNumpy", "JaxToTorch", "RecordVideo"} == set(WRAPPERS)


def test_a_recorder(tmp_path: Path) -> None:
    needs("moviepy")
    needs("pygame")
    check_exact(
        lambda: W.RecordVideo(cart(render_mode="rgb_array"), str(tmp_path)),
        BranchWrapper,
        "structural",
        after=40,
    )


def rows(make: Callable[[], Any] = cart, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Any:
    return SyncVectorEnv([make] * 3, autoreset_mode=mode)


def both(space: Any) -> dict[str, Any]:
    """A space for the rows, and one for each."""
    return {"observation_space": batch_space(space, 3), "single_observation_space": space}


VECTORS: dict[str, Callable[[], Any]] = {
    "ArrayConversion": lambda: V.ArrayConversion(rows(), env_xp=np, target_xp=torch()),
    "ClipAction": lambda: V.ClipAction(rows(pendulum)),
    "ClipReward": lambda: V.ClipReward(rows(pendulum), -3.0, 0.0),
    "DictInfoToList": lambda: V.DictInfoToList(rows()),
    "DtypeObservation": lambda: V.DtypeObservation(rows(), np.float16),
    "FilterObservation": lambda: V.FilterObservation(rows(lambda: Named(cart())), ["speed"]),
    "FlattenObservation": lambda: V.FlattenObservation(rows(lambda: Named(cart()))),
    "GrayscaleObservation": lambda: V.GrayscaleObservation(rows(picture)),
    "NormalizeObservation": lambda: V.NormalizeObservation(rows()),
    "NormalizeReward": lambda: V.NormalizeReward(rows(pendulum)),
    "NumpyToTorch": lambda: V.NumpyToTorch(rows()),
    "RecordEpisodeStatistics": lambda: V.RecordEpisodeStatistics(rows()),
    "RescaleAction": lambda: V.RescaleAction(rows(pendulum), np.float32(-1), np.float32(3)),
    "RescaleObservation": lambda: V.RescaleObservation(rows(bounded), np.float32(0), np.float32(1)),
    "ReshapeObservation": lambda: V.ReshapeObservation(rows(), (2, 2)),
    "ResizeObservation": lambda: V.ResizeObservation(rows(picture), (4, 6)),
    "TransformAction": lambda: V.TransformAction(rows(), lambda a: 1 - a),
    "TransformObservation": lambda: V.TransformObservation(rows(), lambda o: o * 2.0, **both(ONE)),
    "TransformReward": lambda: V.TransformReward(rows(), lambda r: r - 0.5),
    "VectorizeTransformAction": lambda: V.VectorizeTransformAction(rows(pendulum), W.ClipAction),
    "VectorizeTransformObservation": lambda: V.VectorizeTransformObservation(
        rows(), W.ReshapeObservation, shape=(2, 2)
    ),
    "VectorizeTransformReward": lambda: V.VectorizeTransformReward(
        rows(pendulum), W.ClipReward, min_reward=-3.0, max_reward=0.0
    ),
    "SAME_STEP": lambda: rows(mode=AutoresetMode.SAME_STEP),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vector_wrapper(name: str) -> None:
    for package in NEEDED.get(name, []):
        needs(package)
    check_exact(VECTORS[name], BranchVectorWrapper, "structural")


def test_every_vector_wrapper_is_named() -> None:
    without = {"JaxToNumpy", "JaxToTorch", "RecordVideo", "HumanRendering"}
    assert set(V.__all__) - without == set(VECTORS) - {"SAME_STEP"}
