"""Go-Explore finds a reward that PPO does not find in as many frames, because it can go back.

Go-Explore (Ecoffet et al. 2021, "First return, then explore") keeps an archive of cells, coarse
descriptions of where it has been, each with a snapshot of the shortest way there. It restores one
that was not tried often, plays at random from there for a while, and archives what is new. In
MiniGrid's KeyCorridor the agent opens a door, takes the key behind it, unlocks another door and
picks up the ball behind that: the only reward. As in the paper, each level is one fixed layout, to
restore costs no frames, and a cell is made of what one knows of the task: where the agent is, what
it carries, which doors are locked. The actions found are played again in an untouched environment.

Stable-Baselines3's PPO plays the same levels for the same number of frames (it sees the whole grid,
and stops at its first reward), and so does random play.

    pip install "branchrt-gym[minigrid,sb3]"
    python examples/go_explore.py [--quick]
"""

import argparse
from dataclasses import dataclass
from typing import Any

import gymnasium
import minigrid  # noqa: F401  makes the environments known
import numpy as np
import torch
from minigrid.wrappers import FullyObsWrapper, ImgObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv

from branchrt_gym.wrappers import BranchWrapper, Snapshot


@dataclass
class Args:
    """What the experiment varies."""

    env_id: str = "MiniGrid-KeyCorridorS4R3-v0"
    levels: int = 5
    frames: int = 50_000  # at most, of each method on each level
    explore: int = 20  # random actions after each return
    seed: int = 0
    num_envs: int = 8  # of PPO
    n_steps: int = 128
    entropy: float = 0.01


@dataclass
class Cell:
    """The shortest way to a cell so far."""

    snapshot: Snapshot
    actions: tuple[int, ...]


def describe(env: BranchWrapper[Any, Any]) -> tuple[Any, ...]:
    """Returns the cell that an environment is in."""
    grid: Any = env.unwrapped
    carried = grid.carrying and grid.carrying.type
    doors = [each for each in grid.grid.grid if each is not None and each.type == "door"]
    return (*map(int, grid.agent_pos), carried, *(door.is_locked for door in doors))


def go_explore(args: Args, level: int) -> tuple[int | None, tuple[int, ...], int]:
    """Returns the frames to the first reward, the actions that lead to it, and the cells found."""
    rng = np.random.default_rng([args.seed, level])
    env = BranchWrapper(gymnasium.make(args.env_id))
    env.reset(seed=level)
    names = [describe(env)]
    archive = {names[0]: Cell(env.snapshot(), ())}
    seen = {names[0]: 0}
    frame = 0
    while frame < args.frames:
        weights = np.array([(seen[name] + 1) ** -0.5 for name in names])
        start = names[rng.choice(len(names), p=weights / weights.sum())]
        env.restore(archive[start].snapshot)  # first return ...
        actions = archive[start].actions
        met = {start}
        for _ in range(min(args.explore, args.frames - frame)):  # ... then explore
            action = int(rng.integers(7))
            _, reward, terminated, truncated, _ = env.step(action)
            frame += 1
            actions = (*actions, action)
            if float(reward) > 0:
                return frame, actions, len(archive)
            if terminated or truncated:
                break
            name = describe(env)
            met.add(name)
            known = archive.get(name)
            if known is None or len(actions) < len(known.actions):
                archive[name] = Cell(env.snapshot(), actions)
                seen[name] = 0
                if known is None:
                    names.append(name)
        for name in met:
            seen[name] += 1
    return None, (), len(archive)


def replayed(args: Args, level: int, actions: tuple[int, ...]) -> float:
    """Returns the reward at the end of a way, in an environment that was never copied."""
    env = gymnasium.make(args.env_id)
    env.reset(seed=level)
    reward = 0.0
    for action in actions:
        reward = float(env.step(action)[1])
    return reward


class SmallCnn(BaseFeaturesExtractor):
    """Convolutions for a few cells by a few, as NatureCNN needs 36 by 36."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        """Makes the layers."""
        super().__init__(observation_space, features_dim=128)
        channels, height, width = observation_space.shape
        self.layers = torch.nn.Sequential(
            *(torch.nn.Conv2d(channels, 16, 2), torch.nn.ReLU()),
            *(torch.nn.Conv2d(16, 32, 2), torch.nn.ReLU()),
            *(torch.nn.Conv2d(32, 64, 2), torch.nn.ReLU()),
            *(torch.nn.Flatten(), torch.nn.Linear(64 * (height - 3) * (width - 3), 128)),
            torch.nn.ReLU(),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the features; a cell's numbers go up to 10."""
        features: torch.Tensor = self.layers(observations.float() / 10)
        return features


class FirstReward(BaseCallback):
    """Ends the training at the first reward."""

    frame: int | None = None

    def _on_step(self) -> bool:
        if (self.locals["rewards"] > 0).any():
            self.frame = self.num_timesteps
        return self.frame is None


class OneLevel(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every episode is on the same level."""

    def __init__(self, env: gymnasium.Env[Any, Any], level: int) -> None:
        """Takes the level's seed."""
        super().__init__(env)
        self.level = level

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets to the level, whatever the seed."""
        return self.env.reset(seed=self.level, options=options)


def ppo(args: Args, level: int) -> int | None:
    """Returns the frames that PPO takes to its first reward."""

    def make() -> gymnasium.Env[Any, Any]:
        return OneLevel(ImgObsWrapper(FullyObsWrapper(gymnasium.make(args.env_id))), level)

    first = FirstReward()
    model = PPO(
        "CnnPolicy",
        DummyVecEnv([make] * args.num_envs),
        n_steps=args.n_steps,
        batch_size=256,
        n_epochs=4,
        ent_coef=args.entropy,
        policy_kwargs={"features_extractor_class": SmallCnn, "normalize_images": False},
        seed=args.seed,
        device="cpu",
    )
    model.learn(args.frames, callback=first)
    return first.frame


def random_play(args: Args, level: int) -> int | None:
    """Returns the frames that random play takes to its first reward."""
    rng = np.random.default_rng([args.seed, level])
    env = gymnasium.make(args.env_id)
    env.reset(seed=level)
    for frame in range(1, args.frames + 1):
        _, reward, terminated, truncated, _ = env.step(int(rng.integers(7)))
        if float(reward) > 0:
            return frame
        if terminated or truncated:
            env.reset(seed=level)
    return None


def main() -> None:
    """Runs the three on each level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within two minutes")
    quick = parser.parse_args().quick
    args = Args(levels=2, frames=20_000) if quick else Args()
    torch.set_num_threads(1)  # the network is small

    print(f"{args.env_id}: frames to the first reward, of at most {args.frames:,}")
    print(f"{'level':>5} {'Go-Explore':>11} {'cells':>6} {'way':>5} {'PPO':>9} {'random':>9}")
    found = []
    for level in range(args.levels):
        frames, actions, cells = go_explore(args, level)
        assert frames is None or replayed(args, level, actions) > 0
        found.append((frames, ppo(args, level), random_play(args, level)))
        told = [f"{each:,}" if each else "–" for each in found[-1]]
        print(
            f"{level:5} {told[0]:>11} {cells:6} {len(actions):5} {told[1]:>9} {told[2]:>9}",
            flush=True,
        )
    solved = [sum(each is not None for each in method) for method in zip(*found, strict=True)]
    for name, count in zip(("Go-Explore", "PPO", "random play"), solved, strict=True):
        print(f"{name} finds the reward of {count} of {args.levels} levels")
    assert solved[0] == args.levels > max(solved[1:])


if __name__ == "__main__":
    main()
