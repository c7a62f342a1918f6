"""The snapshots' bench compares before it times, and leaves out what is not installed."""

import json
from functools import partial

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

from branchrt_gym.bench import snapshot_cases, snapshot_times
from branchrt_gym.bench.snapshot_cases import CASES, Case
from branchrt_gym.bench.snapshot_times import branch_bytes, call_times
from branchrt_gym.bench.snapshots import SnapshotSizes, compare_snapshots
from branchrt_gym.bench.snapshots_report import snapshot_lines, snapshots_table
from branchrt_gym.cli import app
from branchrt_gym.errors import MissingExtraError

SMALL = SnapshotSizes(points=2, steps=10, branches=0)
CART = CASES["CartPole-v1"]


class Shared(gymnasium.Env):
    """Counts in a list that all of its copies find again."""

    kept = {}  # noqa: RUF012

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(0, 999, (1,), np.int64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.number = len(self.kept)
        self.kept[self.number] = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kept[self.number] = 0
        return np.array([0]), {}

    def step(self, action):
        self.kept[self.number] += 1
        return np.array([self.kept[self.number]]), 0.0, False, False, {}


@pytest.fixture
def wrong(monkeypatch):
    gymnasium.register("branchrt-test/SharedInBench-v0", Shared)
    case = Case("branchrt-test/SharedInBench-v0")
    monkeypatch.setitem(CASES, case.env, case)
    yield case
    del gymnasium.registry[case.env]


def test_what_is_compared_and_timed():
    found = compare_snapshots(CART, SMALL, repetitions=2, seeds=2)
    assert (found.provider, found.deepcopy) == ("structural", "exact")
    assert (found.compared, found.mismatches, found.first) == (2 * 2 * 10, 0, None)
    assert {*found.seconds} == {"fork", "snapshot", "restore", "deepcopy", "step"}
    for name, each in found.seconds.items():
        assert (each.seeds, each.count) == (2, 4)
        assert 0 < found.least[name] <= each.interquartile_mean
    assert found.branch_bytes is None
    row = json.loads(json.dumps(found.row(), default=vars))
    ((what, told),) = snapshot_lines(row)
    assert what == "fork of `CartPole-v1` by the provider structural"
    assert f"({found.ratio.interquartile_mean:.1%})" in told and "0 of 2 points differ" in told


def test_a_difference_is_told_and_no_figure_is_given(wrong):
    found = compare_snapshots(wrong, SMALL, repetitions=1, seeds=1)
    assert found.mismatches and found.first.startswith("copied after 37 steps: ")
    assert not found.seconds and snapshots_table(found).row_count == 2
    done = CliRunner().invoke(app, [*COMMAND, "--env", wrong.env])
    assert done.exit_code == 1 and "No figure is given. First: copied after 37" in done.output


def test_deepcopy_may_fail():
    times = call_times(CART, 0, 1, deepcopied=False)
    assert {*times} == {"fork", "snapshot", "restore", "step"}


def test_mujoco_is_copied_into_kept_slots(monkeypatch):
    mujoco = pytest.importorskip("mujoco", reason="`mujoco` is not installed")
    into = []
    copied = mujoco.mj_copyData
    monkeypatch.setattr(
        mujoco, "mj_copyData", lambda to, *given: into.append(id(to)) or copied(to, *given)
    )
    env = CASES["Hopper-v5"].make()
    env.reset(seed=1)
    env.unwrapped.data.qpos[:] = 0.5
    call = snapshot_times._data_copies(env.unwrapped)
    for _ in range(snapshot_times.KEPT * 2):
        call()
    assert len(into) == 2 * len(set(into)) == 2 * snapshot_times.KEPT


def test_as_many_copies_live_as_are_kept():
    class Copy:
        living = most = 0

        def __init__(self):
            Copy.living += 1
            Copy.most = max(Copy.most, Copy.living)

        def __del__(self):
            Copy.living -= 1

    snapshot_times._batch(Copy, 100)
    assert (Copy.most, Copy.living) == (snapshot_times.KEPT + 1, 0)


def test_memory_of_branches():
    each = branch_bytes(partial(Case, "CartPole-v1")(), 300)
    assert each is None or 500 < each < 100_000


COMMAND = "bench snapshots --points 2 --steps 10 --branches 0 --seeds 1 --repetitions 2".split()


def test_the_command_keeps_a_row_for_each_environment(tmp_path):
    out = tmp_path / "rows.jsonl"
    ids = ["CartPole-v1", "FrozenLake-v1"]
    done = CliRunner().invoke(app, [*COMMAND, "--env", ids[0], "--env", ids[1], "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["environment"] for row in rows] == ids
    assert rows[1]["command"] == (
        "branchrt bench snapshots --env FrozenLake-v1 --points 2 --steps 10 --branches 0 "
        "--seeds 1 --repetitions 2"
    )
    assert all(row["mismatches"] == 0 < row["compared"] for row in rows)


def test_what_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(snapshot_cases, "find_spec", lambda package: None)
    done = CliRunner().invoke(app, [*COMMAND, "--env", "Ant-v5", "--env", "ALE/Breakout-v5"])
    assert done.exit_code == 0
    text = " ".join(done.output.split())
    assert "Ant-v5 is left out: `mujoco` is not installed" in text
    assert "branchrt-gym[atari]" in text
    with pytest.raises(MissingExtraError, match="mujoco"):
        CASES["Hopper-v5"].make()


def test_wrong_calls():
    done = CliRunner().invoke(app, [*COMMAND, "--env", "NoSuch-v0"])
    assert done.exit_code == 2 and "`--env` is NoSuch-v0" in done.output
    with pytest.raises(ValueError, match="`seeds` is 0"):
        compare_snapshots(CART, SMALL, seeds=0)
