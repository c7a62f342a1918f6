"""The widest beams that fit a budget, dense and shared; what they find, and how sure that is."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from branchrt_gym import Beam, DeepTree, search
from branchrt_gym.bench import beams
from branchrt_gym.bench.beams import BeamFigures, BeamPoint, BeamSizes, Mean, measure_beams
from branchrt_gym.bench.beams_report import beams_notes, beams_table
from branchrt_gym.bench.mismatches import Mismatches
from branchrt_gym.bench.readme import figures
from branchrt_gym.bench.record import plain
from branchrt_gym.cli import app

SIZES = BeamSizes(roots=2, width=65_536, depth=6, budgets=(3 << 20, 6 << 20), seeds=2, widest=900)


def test_beams_of_both_forms_find_what_a_search_of_their_width_finds():
    found = measure_beams(SIZES)
    assert (found.mismatches, found.first, found.falls("dense")) == (0, None, [])
    row = 2 * 65_536 + 8  # the context, a position and a score
    assert found.dense_bytes == row and found.batcher_bytes > 2 * row - 10
    assert [(point.form, point.budget >> 20) for point in found.points] == [
        ("dense", 3),
        ("shared", 3),
        ("dense", 6),
        ("shared", 6),
    ]
    for point in found.points:
        if point.form == "dense":
            assert point.beam == point.budget // (2 * row)
            assert point.bytes == point.beam * 2 * row
        else:
            assert point.beam == 900 or point.bytes <= point.budget
        env = DeepTree(width=65_536, depth=6)
        results = [search(env, range(first, first + 2), Beam(point.beam), 6) for first in (0, 2)]
        best = [
            score / target
            for result in results
            for score, target in zip(
                result.score.tolist(), result.roots.shared["target"].tolist(), strict=True
            )
        ]
        assert point.best.mean == pytest.approx(np.mean(best))
        assert point.solved.mean == np.mean([result.solved.float().mean() for result in results])
        assert point.best.low <= point.best.mean <= point.best.high


def test_a_search_that_takes_too_much_is_narrowed(monkeypatch):
    asked = []

    def memory(sizes, beam, device):
        asked.append(beam)
        return 1000 + 10 * beam

    monkeypatch.setattr(beams, "_memory", memory)
    assert beams._fitting(SIZES, 50, 1300, "cpu") == (asked[-1], 1000 + 10 * asked[-1])
    assert asked[-1] <= 30 < 50 == asked[0]
    assert beams._fitting(SIZES, 50, 900, "cpu")[0] == 1  # nothing fits


def point(form, beam, best, solved):
    means = (Mean(value, value, value) for value in (best, solved))
    return BeamPoint(form, 1 << 20, beam, None, *means)


def test_a_wider_beam_that_does_worse_is_told():
    found = BeamFigures(SIZES, "cpu")
    found.points = [
        point("dense", 2, 0.5, 0.25),
        point("shared", 40, 0.75, 0.5),
        point("dense", 8, 0.625, 0.5),
        point("shared", 90, 0.75, 0.375),
    ]
    assert found.falls("dense") == [] and found.falls() == [(40, 90, "solved", 0.125)]
    row = plain(found.row())
    assert not row["monotone"] and row["points"][0]["best"]["mean"] == 0.5
    assert beams_notes(row)[-1] == "Beam 90 did worse than 40 in `solved`, by 0.1250."
    assert beams_table(row).row_count == 4


def test_an_interval_of_a_mean_draws_roots_again_within_their_seed():
    assert beams._mean([[1.0, 1.0], [0.0, 0.0]]) == Mean(0.5, 0.5, 0.5)
    chance = np.random.default_rng(5)
    seeds = chance.normal(3.0, 1.0, size=(4, 100))
    mean = beams._mean(seeds.tolist())
    assert mean.mean == pytest.approx(seeds.mean())
    assert mean.high - mean.low == pytest.approx(2 * 1.96 / 20, rel=0.2)


def test_a_difference_ends_the_bench(monkeypatch):
    monkeypatch.setattr(beams, "compare", lambda *both: Mismatches(7, 1, "`score` of root 0"))
    found = measure_beams(SIZES)
    assert found.points == [] and found.mismatches == 1
    assert "First: `score` of root 0." in beams_notes(plain(found.row()))[0]
    ran = CliRunner().invoke(app, "bench beams --roots 2 --budget 3 --width 65536".split())
    assert ran.exit_code == 1 and "The results differ" in ran.output


def test_the_command_writes_a_row_that_the_readme_shows(tmp_path):
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "rows.jsonl", tmp_path / "beams.png"
    words = "bench beams --roots 2 --width 65536 --depth 4 --seeds 1 --widest 100".split()
    words += ["--budget", "4", "--budget", "2", "--out", str(out), "--plot", str(plot)]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    row = json.loads(out.read_text())
    assert row["sizes"]["budgets"] == [2 << 20, 4 << 20] and plot.stat().st_size > 10_000
    assert "widest beams in 4 MiB" in figures([{**row, "commit": "0123456789"}])


def test_a_budget_that_is_too_small_for_the_contexts():
    ran = CliRunner().invoke(app, "bench beams --budget 3".split())
    assert ran.exit_code == 2
    assert "at least 4,194,304 bytes, twice the contexts of 16 roots" in ran.output
