"""`branchrt bench decisions`: equality first, then times and rows."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from branchrt_gym.bench import decisions as module
from branchrt_gym.bench.decisions import DecisionSizes, measure_decisions
from branchrt_gym.bench.record import read_rows
from branchrt_gym.cli import app


@pytest.mark.parametrize(
    "sizes", [(40, 4, 0.3, 0.7), (7, 3, 0.2, 1.0, 2), (20, 3, 0.3, 0.9, 1, True)]
)
def test_equal_decisions_are_timed(sizes):
    found = measure_decisions(DecisionSizes(*sizes), seeds=2, repetitions=2)
    assert found.equal and found.compared > found.sizes.roots
    assert found.waves >= 1 and found.attempts >= found.sizes.roots
    per_wave = found.host_us.interquartile_mean * found.waves / found.attempts * 1e3
    assert found.host_ns.interquartile_mean == pytest.approx(per_wave, rel=0.5)
    more = found.ours_us.interquartile_mean - found.host_us.interquartile_mean
    assert found.more_us == pytest.approx(more)


class Wrong(module.Decisions):
    """Forgets the last root of each wave."""

    def wave(self, limit=None):
        roots, candidates = super().wave(limit)
        return roots[:-1], candidates[:-1]


def test_no_time_where_decisions_differ(monkeypatch):
    monkeypatch.setattr(module, "Decisions", Wrong)
    found = measure_decisions(DecisionSizes(10, 3), seeds=1, repetitions=1)
    assert not found.equal
    assert found.ours_us is None and found.ratio is None
    assert "wave 0" in found.first


def test_the_command_writes_rows(tmp_path):
    out = tmp_path / "rows.jsonl"
    command = ["bench", "decisions", "--roots", "5", "--roots", "9", "--seeds", "1"]
    done = CliRunner().invoke(app, [*command, "--repetitions", "2", "--costs", "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = read_rows(out)
    assert [row["sizes"]["roots"] for row in rows] == [5, 9]
    assert all(row["bench"] == "decisions" and row["mismatches"] == 0 for row in rows)
    assert rows[0]["command"].endswith("--device cpu --costs")
    assert np.isfinite(rows[0]["ratio"]["interquartile_mean"])
    assert json.dumps(rows[0]["first_difference"]) == "null"
