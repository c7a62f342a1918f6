"""One branch of the scalar model: an oracle, its place in the lineage and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from branchrt_gym.oracle import Oracle

__all__ = ["NO_PARENT", "AnyOracle", "Branch", "Link", "Rng", "constant_observation"]

AnyOracle = Oracle[Any, Any]
Rng = Literal["split", "shared"]

NO_PARENT = -1  # parent id of a root's first branch


@dataclass(frozen=True, slots=True)
class Link:
    """One transition; following `previous` leads back to the root's start."""

    previous: Link | None
    action: Any
    reward: float
    log: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Branch:
    """A branch that was born, live or ended.

    Attributes:
        oracle: Its environment. A restart may reset it for the next branch, so it is this
            branch's own only while the branch is in a slot.
        last: The last transition on the way to it, its ancestors' included.
        length: Transitions on that way.
        pruned: Stopped before its end, by a prune or by a reset; then `truncated` too.
    """

    oracle: AnyOracle
    root: int
    context_index: int
    branch_id: int
    parent_id: int = NO_PARENT
    last: Link | None = None
    length: int = 0
    live: bool = True
    terminated: bool = False
    truncated: bool = False
    solved: bool = False
    pruned: bool = False

    def step(self, action: Any, max_episode_steps: int | None = None) -> tuple[Any, float]:
        """Takes one transition; returns the observation and the reward."""
        observation, reward, terminated, truncated, info = self.oracle.step(action)
        if max_episode_steps is not None and self.oracle.depth >= max_episode_steps:
            truncated = True
        self.last = Link(self.last, action, float(reward), dict(self.oracle.log))
        self.length += 1
        self.terminated, self.truncated = terminated, truncated
        self.solved = bool(info["solved"])
        self.live = not (terminated or truncated)
        return observation, float(reward)

    def child(self, branch_id: int, oracle: AnyOracle) -> Branch:
        """Returns the branch that a fork of this one starts with `oracle`."""
        return Branch(
            oracle,
            self.root,
            self.context_index,
            branch_id,
            parent_id=self.branch_id,
            last=self.last,
            length=self.length,
        )

    def stop(self) -> None:
        """Ends the branch without a transition."""
        self.live = False
        self.pruned = self.truncated = True

    def path(self) -> list[Link]:
        """Returns the transitions from the root's start to this branch's last step."""
        links: list[Link] = []
        link = self.last
        while link is not None:
            links.append(link)
            link = link.previous
        links.reverse()
        return links

    def trajectory(self) -> tuple[list[Any], list[float]]:
        """Returns the actions and rewards of `path`."""
        links = self.path()
        return [link.action for link in links], [link.reward for link in links]


def constant_observation(space: spaces.Space[Any]) -> Any:
    """Returns what a slot without a live branch shows: zeros, or the lowest allowed values."""
    if isinstance(space, spaces.Box):
        zero_is_inside = (space.low <= 0) & (space.high >= 0)
        return np.where(zero_is_inside, 0, space.low).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        inside = space.start <= 0 < space.start + space.n
        return space.dtype.type(0 if inside else space.start)
    if isinstance(space, spaces.MultiDiscrete):
        inside = (space.start <= 0) & (space.start + space.nvec > 0)
        return np.where(inside, 0, space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, dtype=space.dtype)
    if isinstance(space, spaces.Dict):
        return {name: constant_observation(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(constant_observation(part) for part in space.spaces)
    raise TypeError(
        f"the observation space is {type(space).__name__}; expected Box, Discrete, "
        "MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
    )
