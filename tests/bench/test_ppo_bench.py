"""The bench of Stable-Baselines3 compares what was learned before it tells a time."""

import json

import pytest
from typer.testing import CliRunner

pytest.importorskip("stable_baselines3", reason="`stable_baselines3` is not installed")

from branchrt_gym.bench import ppo
from branchrt_gym.bench.ppo import PPOSizes, compare_ppo
from branchrt_gym.bench.snapshots_report import ppo_lines, ppo_table
from branchrt_gym.cli import app

SMALL = PPOSizes(rows=4, steps=2048, stepped=20)


@pytest.fixture(autouse=True)
def one_epoch(monkeypatch):
    plain = ppo._model

    def model(envs):
        made = plain(envs)
        made.n_epochs = 1
        return made

    monkeypatch.setattr(ppo, "_model", model)


def test_both_learn_the_same():
    found = compare_ppo(SMALL, repetitions=2)
    assert found.mismatches == 0
    assert found.compared > 2 * 9_000 + 256 * 4 * 6  # weights of a network, and rows
    for seconds, ratio in (
        (found.train_seconds, found.train_ratio),
        (found.step_seconds, found.step_ratio),
    ):
        ours, theirs = seconds["BranchingVecEnv"], seconds["DummyVecEnv"]
        assert ratio.median == ours.median / theirs.median
    row = json.loads(json.dumps(found.row(), default=vars))
    assert row["environment"] == "CartPole-v1"
    ((what, told),) = ppo_lines(row)
    assert what.startswith("PPO for 2,048 steps of 4 rows of `CartPole-v1`")
    assert told.startswith(f"**{found.train_ratio.median:.2f}×**")
    assert ppo_table(found).row_count == 3


def test_a_difference_leaves_no_figure(monkeypatch):
    plain = ppo._makers

    def makers(sizes):
        made = plain(sizes)
        theirs = made["DummyVecEnv"]

        def late():
            envs = theirs()
            envs.seed = lambda seed: type(envs).seed(envs, seed + 1)
            return envs

        return made | {"DummyVecEnv": late}

    monkeypatch.setattr(ppo, "_makers", makers)
    found = compare_ppo(SMALL, repetitions=1)
    assert found.mismatches > 0 and found.train_seconds is None
    assert ppo_table(found).row_count == 1
    done = CliRunner().invoke(app, "bench sb3 --rows 4 --steps 2048 --repetitions 1".split())
    assert done.exit_code == 1


def test_the_command(tmp_path):
    out = tmp_path / "rows.jsonl"
    command = "bench sb3 --env CartPole-v1 --rows 4 --steps 2048 --repetitions 1"
    done = CliRunner().invoke(app, [*command.split(), "--out", str(out)])
    assert done.exit_code == 0, done.output
    row = json.loads(out.read_text())
    assert row["command"] == f"branchrt {command}"
    assert row["mismatches"] == 0 < row["compared"]


def test_a_wrong_call():
    with pytest.raises(ValueError, match="`repetitions` is 0"):
        compare_ppo(SMALL, repetitions=0)
