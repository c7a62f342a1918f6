"""The environments whose copies are measured, and the packages that bring them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import gymnasium

from branchrt_gym.errors import MissingExtraError

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """An environment, and what it needs.

    Attributes:
        env: Its id.
        kwargs: Of its constructor.
        package: That has to be installed, and imported for the id to be known.
        extra: Of ours, that brings the package.
    """

    env: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    package: str = ""
    extra: str = ""

    def make(self) -> gymnasium.Env[Any, Any]:
        """Makes the environment.

        Raises:
            MissingExtraError: Without its package.
        """
        if self.missing:
            raise MissingExtraError(self.extra, self.package)
        if self.package:
            importlib.import_module(self.package)
        return gymnasium.make(self.env, **self.kwargs)

    @property
    def missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.package) and find_spec(self.package) is None


CASES = {
    case.env: case
    for case in (
        Case("CartPole-v1"),
        Case("FrozenLake-v1"),
        Case("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}),
        Case("MiniGrid-DoorKey-6x6-v0", {}, "minigrid", "minigrid"),
        Case("Hopper-v5", {}, "mujoco", "mujoco"),
        Case("Ant-v5", {}, "mujoco", "mujoco"),
        Case("ALE/Breakout-v5", {}, "ale_py", "atari"),
        Case("LunarLander-v3", {}, "Box2D", "box2d"),
    )
}
