"""Statistics against NumPy, and rows that come back as they were written."""

import json

import numpy as np
import pytest

from branchrt_gym.bench.measure import interquartile_mean, ratio, summarize
from branchrt_gym.bench.record import append_row, provenance, read_rows


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 40])
def test_summaries(count):
    samples = np.random.default_rng(count).gamma(2.0, size=count).tolist()
    found = summarize(samples)
    assert found.median == pytest.approx(np.median(samples))
    assert (found.least, found.most, found.count) == (min(samples), max(samples), count)
    assert found.least <= found.low <= found.median <= found.high <= found.most
    assert summarize(samples) == found  # the same in every run
    assert found.least <= interquartile_mean(samples) <= found.most


def test_a_ratio_and_its_interval():
    found = ratio([4.0, 4.2, 3.8], [2.0, 2.1, 1.9])
    assert found.median == pytest.approx(2.0)
    assert found.least == pytest.approx(3.8 / 2.1) and found.most == pytest.approx(4.2 / 1.9)
    assert found.low <= found.median <= found.high


def test_the_interval_covers_the_median_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = summarize(rng.normal(10.0, 1.0, size=25).tolist())
        covered += found.low <= 10.0 <= found.high
    assert 170 <= covered <= 200


def test_rows_come_back(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    row = {**provenance("branchrt bench step"), "figure": summarize([1.0, 2.0])}
    append_row(path, row)
    append_row(path, {"second": 2})
    first, second = read_rows(path)
    assert second == {"second": 2}
    assert first["command"] == "branchrt bench step" and first["figure"]["median"] == 1.5
    assert {"torch", "numpy", "python", "gymnasium"} <= set(first["versions"])
    assert json.dumps(first)


@pytest.mark.parametrize("line", ["{", "[1]", "nothing"])
def test_a_broken_row_is_named(line, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl:2"):
        read_rows(path)
