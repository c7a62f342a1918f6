"""Verification finds what is wrong, and says that all is well only where it is."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving import needs
from gymnasium import wrappers as W
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

from branchrt_gym.cli import app
from branchrt_gym.errors import SnapshotUnsupportedError
from branchrt_gym.wrappers import BranchWrapper, verify


class Counting(gymnasium.Env[Any, Any]):
    """Shows how many steps it took."""

    made = 0

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = Discrete(2)
        self.count = 0
        self.number = Counting.made = Counting.made + 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._see(), 1.0, False, False, {}

    def _see(self) -> Any:
        return np.array([float(self.count)])


class Shared(Counting):
    """Counts in a list that its author wrongly tells all copies to share."""

    def __init__(self, late: int = 0) -> None:
        super().__init__()
        self.kept = [0]
        self.late = late

    def reset(self, **kwargs: Any) -> Any:
        self.kept[0] = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.kept[0] += 1
        return super().step(action)

    def _see(self) -> Any:
        return np.array([float(self.count if self.count < self.late else self.kept[0])])


class Unrepeatable(Counting):
    def _see(self) -> Any:
        return np.array([float(self.number)])


def test_exact() -> None:
    result = verify(lambda: gymnasium.make("FrozenLake-v1"), points=4, steps=60)
    assert result.exact
    assert result.provider == "structural"
    assert result.points == [37, 44, 51, 58]
    assert result.fork_us > 0 and result.snapshot_us > 0 and result.restore_us > 0
    assert result.snapshot_bytes is not None and result.snapshot_bytes > 100
    assert result.deepcopy == "exact"


def test_the_first_difference_is_told() -> None:
    result = verify(Shared, points=3, steps=5, share=["kept"])
    assert not result.exact
    assert result.differences[0] == (
        "copied after 37 steps: the restored environment, at step 1: `observation[0]` is 43.0, the "
        "untouched one's 38.0"
    )


def test_a_difference_that_comes_late_is_found() -> None:
    result = verify(lambda: Shared(late=58), points=3, steps=9, share=["kept"])
    assert result.differences
    assert not any(f.startswith("copied after 37 steps: the copy") for f in result.differences)


def test_an_environment_that_does_not_repeat_is_no_ones_fault() -> None:
    with pytest.raises(ValueError, match=r"does not repeat itself.* step 0, `observation\[0\]`"):
        verify(Unrepeatable, points=1, steps=3)


def test_deepcopy_of_mujoco_is_told_to_be_wrong() -> None:
    needs("mujoco")
    result = verify(lambda: gymnasium.make("Hopper-v5"), points=2, steps=40)
    assert result.exact
    assert result.deepcopy.startswith("wrong at step 1: `observation[0]`")


def test_nothing_to_verify() -> None:
    with pytest.raises(ValueError, match="`points` is 0"):
        verify(Counting, points=0)


def test_verify_at_construction() -> None:
    env = BranchWrapper(gymnasium.make("CartPole-v1"), verify=True)
    assert env.snapshot_provider == "structural"
    gymnasium.register("branchrt-test/Shared-v0", Shared)
    with pytest.raises(SnapshotUnsupportedError, match="are not exact: copied after 37 steps"):
        BranchWrapper(gymnasium.make("branchrt-test/Shared-v0"), share=["kept"], verify=True)
    lambdas = W.TransformObservation(gymnasium.make("CartPole-v1"), lambda o: o, None)
    assert BranchWrapper(lambdas, verify=True).snapshot_provider == "structural"
    with pytest.raises(ValueError, match=r"call `branchrt_gym.wrappers.verify\(make_env\)`"):
        BranchWrapper(Counting(), verify=True)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["snapshot", *arguments])


def test_command() -> None:
    result = run("CartPole-v1", "--points", "2", "--steps", "20")
    assert result.exit_code == 0
    assert "structural" in result.output
    assert "2 of 2 points" in result.output


def test_command_in_json() -> None:
    result = run(
        *("FrozenLake-v1", "--points", "2", "--steps", "20", "--json"),
        *("--provider", "replay", "--kwargs", '{"is_slippery": false}'),
    )
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["exact"] is True
    assert told["provider"] == "replay"


def test_command_finds_a_fault() -> None:
    class Slipping(Shared):
        """Its copies count together: the list is the class's, which no copy owns."""

        def __init__(self) -> None:
            super().__init__()
            self.kept = KEPT.setdefault(self.number, [0])
            self.key = self.number

        def step(self, action: Any) -> Any:
            self.kept = KEPT[self.key]
            return super().step(action)

    gymnasium.register("branchrt-test/Slipping-v0", Slipping)
    result = run("branchrt-test/Slipping-v0", "--points", "2", "--steps", "5")
    assert result.exit_code == 1
    assert "copied after 37 steps" in result.output


KEPT: dict[int, list[int]] = {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["NoSuch-v0"], "`NoSuch-v0` cannot be made"),
        (["CartPole-v1", "--kwargs", "["], "which is no JSON"),
        (["CartPole-v1", "--kwargs", "[]"], "expected an object of arguments"),
        (["CartPole-v1", "--provider", "mujoco"], "no exact snapshot"),
    ],
)
def test_command_refuses(arguments: list[str], text: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())
