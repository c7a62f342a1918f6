"""The shell's bench compares branches with their replay before it shows a figure."""

import json

import pytest
from typer.testing import CliRunner

pytest.importorskip("docker", reason="the docker SDK is not installed")

from branchrt_gym.bench import shell
from branchrt_gym.cli import app

SIZES = {"branches": 2, "ancestors": 3, "child": 1, "modules": 3, "fixtures": 2}


@pytest.fixture
def run(engine, base_image, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", engine.url)

    def run():
        words = ["bench", "shell", "--image", base_image, "--repetitions", "2"]
        for name, value in SIZES.items():
            words += [f"--{name}", str(value)]
        result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "rows.jsonl")])
        (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
        return result, row

    return run


def test_figures_of_a_small_run(run, client):
    result, row = run()
    assert result.exit_code == 0, result.output
    assert row["sizes"] == SIZES and row["mismatches"] == 0
    assert row["compared"] == 4 * SIZES["branches"]  # the build, a change, tests, files
    forks, one, other = row["forks"], row["branched"], row["independent"]
    assert 1e6 <= forks["new_bytes"] < 1.5e6  # the child's megabyte, not the ancestors' three
    assert other["disk"] > 2 * 2e6 > one["disk"] > 2e6
    assert "0 of 8" in result.output and "branches per GiB of memory" in result.output
    assert not client.api.containers(all=True, filters={"label": "branchrt.run"})
    assert not client.api.images(filters={"label": "branchrt.run"})


def test_no_figure_where_a_branch_differs_from_its_replay(run, monkeypatch):
    work, calls = shell._work, []

    def differs(session, number, sizes):
        calls.append(number)
        return work(session, number + (len(calls) == 4), sizes)

    monkeypatch.setattr(shell, "_work", differs)
    result, row = run()
    assert result.exit_code == 1
    assert row["mismatches"] > 0 and row["forks"] is row["branched"] is None
    assert " ms" not in result.output
