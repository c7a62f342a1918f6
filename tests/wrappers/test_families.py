"""Families, pictures and refusals that the files of the providers leave out."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from driving import BEFORE, actions_of, begin, check_exact, follow, needs
from gymnasium import wrappers as W
from gymnasium.vector import SyncVectorEnv

from branchrt_gym.errors import SnapshotUnsupportedError
from branchrt_gym.wrappers import BranchVectorWrapper, BranchWrapper, verify


def atari(game: str = "Breakout", **kwargs: Any) -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make(f"ALE/{game}-v5", obs_type="ram", **kwargs)


def minigrid(**kwargs: Any) -> Callable[[], Any]:
    return lambda: gymnasium.make("minigrid:MiniGrid-DoorKey-5x5-v0", **kwargs)


@pytest.mark.parametrize(
    "env_id",
    ["HumanoidStandup-v5", "InvertedDoublePendulum-v5", "Pusher-v5", "Swimmer-v5"],
)
def test_the_other_mujoco_environments(env_id: str) -> None:
    needs("mujoco")
    check_exact(lambda: gymnasium.make(env_id), BranchWrapper, "mujoco")


DRAWING = """
import sys
sys.path.insert(0, sys.argv[1])
import gymnasium
from driving import check_exact
from branchrt_gym.wrappers import BranchWrapper

make = lambda: gymnasium.make("Hopper-v5", render_mode="rgb_array", width=64, height=64)
try:
    env = make()
    env.reset()
    env.render()
except Exception as error:
    sys.exit(f"no picture: {error}")
check_exact(make, BranchWrapper, "mujoco", after=8, render=True)
"""


def test_mujoco_rendered() -> None:
    """In a process of its own: which OpenGL is used is settled when `mujoco` is imported."""
    needs("mujoco")
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRAWING, str(Path(__file__).parent)],
        env=os.environ | {"MUJOCO_GL": "egl"},
        capture_output=True,
        text=True,
    )
    if "no picture" in done.stderr:
        pytest.skip("MuJoCo cannot draw here: no EGL")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("env_id", "steps", "after"), [("BipedalWalker-v3", 37, 30), ("CarRacing-v3", 5, 6)]
)
def test_box2d_rendered(env_id: str, steps: int, after: int) -> None:
    needs("Box2D")
    needs("pygame")
    check_exact(
        lambda: gymnasium.make(env_id, render_mode="rgb_array"),
        BranchWrapper,
        "replay",
        steps=steps,
        after=after,
        render=True,
    )


@pytest.mark.slow
def test_car_racing() -> None:
    """`test_replay.py` follows it for a few steps: each takes as long as a whole test elsewhere."""
    needs("Box2D")
    needs("pygame")
    result = verify(lambda: gymnasium.make("CarRacing-v3"), points=1)
    assert (result.exact, result.provider, result.points) == (True, "replay", [BEFORE])


def test_minigrid_rendered() -> None:
    needs("minigrid")
    needs("pygame")
    check_exact(
        minigrid(render_mode="rgb_array"), BranchWrapper, "structural", after=20, render=True
    )


def test_minigrid_in_rows() -> None:
    needs("minigrid")
    check_exact(
        lambda: SyncVectorEnv([minigrid(max_episode_steps=50)] * 3),
        BranchVectorWrapper,
        "structural",
    )


def test_atari_in_rows() -> None:
    needs("ale_py")
    check_exact(lambda: SyncVectorEnv([atari] * 2), BranchVectorWrapper, "atari", after=40)


def test_atari_in_a_stack() -> None:
    """Stickiness of Gymnasium's in the place of ale-py's, every frame a step."""
    needs("ale_py")

    def make() -> Any:
        env = atari(frameskip=1, repeat_action_probability=0.0)
        env = W.MaxAndSkipObservation(W.StickyAction(env, 0.25), 2)
        return W.RecordEpisodeStatistics(W.FrameStackObservation(W.TimeLimit(env, 60), 4))

    check_exact(make, BranchWrapper, "atari")


UNSTICKY = {"repeat_action_probability": 0.0}
EACH_FRAME = {"frameskip": 1}
POINT = 10  # steps; after 8 an emulator would have in force just what the next point takes first


@pytest.mark.parametrize(
    ("game", "kwargs"), [("Breakout", EACH_FRAME), ("Qbert", UNSTICKY), ("Tetris", UNSTICKY)]
)
def test_what_ale_py_leaves_out_of_a_state_is_found(
    game: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing put back beside the state, copies are wrong at a few points in 300."""
    needs("ale_py")
    from branchrt_gym.wrappers.atari import Emulator

    def load(self: Any, state: Any, force: Any, *others: Any) -> None:
        self.ale.restoreState(state)
        self.acts.clear()
        if force is not None:
            self.acts.append(force)

    monkeypatch.setattr(Emulator, "load", load)
    result = verify(lambda: atari(game, **kwargs), points=300, steps=POINT)
    assert result.provider == "atari" and not result.exact
    assert all("`observation[" in found for found in result.differences)


@pytest.mark.parametrize(
    ("game", "kwargs"), [("Breakout", EACH_FRAME), ("Qbert", UNSTICKY), ("Tetris", UNSTICKY)]
)
def test_what_ale_py_leaves_out_of_a_state_is_put_back(game: str, kwargs: dict[str, Any]) -> None:
    needs("ale_py")
    assert verify(lambda: atari(game, **kwargs), points=300, steps=POINT).differences == []


@pytest.mark.parametrize("rng", ["shared", "split"])
def test_copies_of_copies_keep_the_action_in_force(rng: Any) -> None:
    """Between them nobody steps, so that their luck does not tell what the last step did."""
    needs("ale_py")
    env = BranchWrapper(atari("Pong", **EACH_FRAME))
    begin(env, steps=3)
    actions = actions_of(env, 140)
    for i in range(120):
        (child,) = env.fork(1, rng=rng)
        (copied,) = child.fork(1, rng="shared")[0].fork(1, rng="shared")
        truth = follow(child, actions[i : i + 12])
        assert follow(copied, actions[i : i + 12]) == truth, f"point {i}"
        follow(env, actions[i : i + 12])


def test_envpool_is_refused() -> None:
    needs("envpool")
    import envpool

    envs = envpool.make_gymnasium("CartPole-v1", num_envs=2)
    with pytest.raises(SnapshotUnsupportedError, match=r"steps its environments in C\+\+ threads"):
        BranchWrapper(envs)
