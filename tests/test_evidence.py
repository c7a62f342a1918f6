"""Every row of evidence is whole, and the README's figures are those of the rows."""

from pathlib import Path

import pytest

from branchrt_gym.bench.readme import BEGIN, END, figures, written
from branchrt_gym.bench.record import read_rows

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "evidence").glob("*.jsonl"))
ROWS = [row for path in FILES for row in read_rows(path)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['bench']}-{row['commit'][:7]}")
def test_a_row_says_where_it_comes_from_and_that_results_were_equal(row):
    assert row["command"].startswith("branchrt ")
    assert len(row["commit"]) == 40
    assert {"cpu", "cores", "device"} <= set(row["hardware"])
    assert {"python", "torch", "numpy", "gymnasium"} <= set(row["versions"])
    assert row["mismatches"] == 0 and row["compared"] > 0


def test_the_figures_of_the_readme_are_those_of_the_rows():
    readme = (ROOT / "README.md").read_text()
    assert readme.count(BEGIN) == readme.count(END) == 1
    assert written(readme, figures(ROWS)) == readme, "run: python -m branchrt_gym.bench.readme"


def test_another_figure_would_be_noticed():
    readme = (ROOT / "README.md").read_text()
    wrong = readme.replace("0 mismatches", "1 mismatches")
    assert wrong != readme and written(wrong, figures(ROWS)) == readme
