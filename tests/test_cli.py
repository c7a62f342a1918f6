"""The command line, at small sizes; no time is asserted."""

import json

import pytest
from typer.testing import CliRunner

import branchrt_gym
from branchrt_gym.certify import Certificate
from branchrt_gym.cli import app

SMALL = ["--roots", "3", "--width", "997", "--beam", "5", "--fanout", "3", "--depth", "6"]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_version_and_help():
    assert branchrt_gym.__version__ in run("--version").stdout
    shown = run("--help")
    assert shown.exit_code == 0
    for command in ("demo", "certify", "envs", "bench"):
        assert command in shown.stdout


def test_demo_compares_and_draws(tmp_path):
    pytest.importorskip("matplotlib", reason="the demo's picture needs the extra `plot`")
    done = run("demo", *SMALL, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "mismatches" in done.stdout and "ratio" in done.stdout
    picture = (tmp_path / "deep-tree.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_envs_lists_the_contract():
    shown = run("envs").stdout
    for word in ("branchrt/DeepTree-v0", "context", "262144", "int16", "position", "Discrete(4)"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("certify", "branchrt/Nothing-v0"), "branchrt/Nothing-v0"),
        (("certify", "branchrt/DeepTree-v0", "--matrix", "huge"), "huge"),
        (("certify", "no_such_module:branchrt/DeepTree-v0"), "no_such_module"),
        (("demo", *SMALL, "--device", "warp9"), "device"),
    ],
)
def test_a_wrong_call_is_answered_in_a_line(arguments, text):
    done = run(*arguments)
    assert done.exit_code == 2
    assert text in done.output and "Traceback" not in done.output


def certificate(monkeypatch, mismatches):
    """Replaces the certification, which has its own tests, by a few rows of it."""
    import branchrt_gym.certify as package

    whole = package.certify

    def few(env_id, matrix, *, device, jobs, progress):
        chosen = package.rows(branchrt_gym.registrations()[env_id], matrix, device=device)[:3]
        made = whole(env_id, matrix, device=device, jobs=jobs, progress=progress, rows=chosen)
        assert isinstance(made, Certificate) and made.ok
        return made

    monkeypatch.setattr(package, "certify", few)


def test_certify_writes_rows_and_certificates(monkeypatch, tmp_path):
    certificate(monkeypatch, 0)
    for name in ("rows.jsonl", "whole.json"):
        done = run("certify", "branchrt/DeepTree-v0", "--out", tmp_path / name)
        assert done.exit_code == 0, done.output
        assert "branchrt/DeepTree-v0" in done.stdout
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["mismatches"] == 0 and row["rows"] == 3 and row["compared"] > 0
    assert Certificate.load(tmp_path / "whole.json").ok


def test_benches_write_rows(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = run("bench", "deep-tree", *SMALL, "--repetitions", 2, "--out", out)
    assert done.exit_code == 0, done.output
    done = run(
        "bench", "step", "--slots", 24, "--roots", 3, "--width", 97, "--depth", 5,
        "--repetitions", 2, "--out", out,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["bench"] for row in rows] == ["deep-tree", "step"]
    assert all(row["mismatches"] == 0 and row["compared"] > 0 for row in rows)
