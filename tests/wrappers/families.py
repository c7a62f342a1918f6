"""An environment of each family, for tests of many operations on many of its branches."""

import gc
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import wrappers as W

WHOLE = bool(os.environ.get("BRANCHRT_SOAK"))  # an hour of one core; else a minute
LEAK = 24 << 20  # bytes that a process may grow by while all is done a second time


@dataclass(frozen=True)
class Family:
    """An environment, its package, and whether a step or a copy takes more than a millisecond.

    `calls` are those of the whole on a population, each of which steps up to all of its branches.
    """

    make: Callable[[], Any]
    package: str = ""
    costly: bool = False
    only_whole: bool = False
    calls: int = 10_000

    @property
    def operations(self) -> int:
        if WHOLE:
            return 500 if self.costly else 10_000
        return 80 if self.small else 300

    @property
    def population_operations(self) -> int:
        return min(self.operations, self.calls)

    @property
    def slots(self) -> int:
        if WHOLE:
            return 16 if self.costly else 256
        return 8 if self.small else 32

    @property
    def small(self) -> bool:
        return self.costly or self.calls < 10_000


def stack() -> Any:
    env = W.StickyAction(gymnasium.make("CartPole-v1"), 0.3)
    return W.NormalizeReward(W.FrameStackObservation(env, 2))


def minigrid() -> Any:
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gymnasium.make("MiniGrid-Dynamic-Obstacles-5x5-v0"))


def made(env_id: str, **kwargs: Any) -> Callable[[], Any]:
    return lambda: gymnasium.make(env_id, **kwargs)


def resident() -> int:
    found = re.search(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def left_open() -> tuple[int, int]:
    """File descriptors and child processes."""
    children = Path("/proc/self/task", str(os.getpid()), "children")
    running = len(children.read_text().split()) if children.exists() else 0
    return len(os.listdir("/proc/self/fd")), running + len(multiprocessing.active_children())


@contextmanager
def nothing_left(name: str) -> Iterator[Callable[[], None]]:
    """Fails if its block leaves files or processes open, or grows from when it calls on."""
    if not os.path.isdir("/proc/self/fd"):
        yield lambda: None
        return
    sizes: list[int] = []

    def measure() -> None:
        gc.collect()
        sizes.append(resident())

    before = left_open()
    yield measure
    measure()
    assert left_open() == before
    grown = sizes[-1] - sizes[0]
    print(f"{name}: {grown / 2**20:+.1f} MiB the second time, of {sizes[-1] / 2**20:.0f}")
    assert not WHOLE or grown < LEAK


FAMILIES = {
    "CartPole": Family(made("CartPole-v1")),
    "Pendulum": Family(made("Pendulum-v1", max_episode_steps=60)),
    "FrozenLake": Family(made("FrozenLake-v1")),
    "Taxi": Family(made("Taxi-v4", is_rainy=True, fickle_passenger=True)),
    "Blackjack": Family(made("Blackjack-v1")),
    "stack": Family(stack),
    "Hopper": Family(made("Hopper-v5"), "mujoco"),
    "Ant": Family(made("Ant-v5", max_episode_steps=60), "mujoco"),
    "MiniGrid": Family(minigrid, "minigrid"),
    "Atari": Family(made("ale_py:ALE/Pong-v5", obs_type="ram"), "ale_py", calls=120),
    "LunarLander": Family(made("LunarLander-v3"), "Box2D", costly=True),
    "BipedalWalker": Family(made("BipedalWalker-v3"), "Box2D", costly=True),
    "CarRacing": Family(
        made("CarRacing-v3", max_episode_steps=30), "Box2D", costly=True, only_whole=True
    ),
}
