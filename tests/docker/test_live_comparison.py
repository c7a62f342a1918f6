"""`branchrt bench live` and `branchrt eval swebench`, each as it is called."""

import json
import os
import subprocess
import sys
import time

import pytest
import typer
from tasks import TASKS, make_images, write_kinds, write_tasks, write_two_roots
from typer.testing import CliRunner

from branchrt_gym.bench.live_command import bench_live
from branchrt_gym.cli import app
from branchrt_gym.evaluation.docker import Engine

pytestmark = pytest.mark.slow

TWO = TASKS[:2]
SMALL = ("--memory", "160", "--work", "32", "--workers", "2")


@pytest.fixture(scope="module")
def folder(make_image, tmp_path_factory):
    make_images(make_image, TWO)
    return tmp_path_factory.mktemp("two")


@pytest.fixture
def command(engine, monkeypatch):
    """Runs `branchrt eval swebench`; returns its exit code and what it printed, read as JSON."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)

    def call(*words):
        done = CliRunner().invoke(app, ["eval", "swebench", *map(str, words), *SMALL, "--json"])
        if done.exit_code not in (0, 1):
            return done.exit_code, done.output
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, json.loads(done.stdout)

    return call


def test_early_stop_halves_the_live_calls(folder, engine, client, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    alone = typer.Typer()
    alone.command()(bench_live)
    given = ["--tasks", write_tasks(folder, TWO), "--predictions", *write_two_roots(folder, TWO)]
    given += ["--repetitions", 7 if os.environ.get("BRANCHRT_ALL_TASKS") else 1]
    done = CliRunner().invoke(alone, [*map(str, given), "--out", str(tmp_path / "rows.jsonl")])
    print(f"\n{done.output}")
    assert done.exit_code == 0, done.exception
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert (row["mismatches"], row["first"]) == (0, "")
    assert {name: form["calls"] for name, form in row["forms"].items()} == {
        "run all": 4,
        "host controller, manifest_order": 3,
        "EvalFrontier, manifest_order": 3,
        "host controller, nonempty_patch_first": 2,
        "EvalFrontier, nonempty_patch_first": 2,
    }
    assert client.containers.list(all=True) == []


def test_the_command_stops_early_and_reports(folder, command, client, tmp_path):
    rows, files = write_tasks(folder, TWO), write_two_roots(folder, TWO)
    given = ("--tasks", rows, "--predictions", *files, "--run-id", "early", "--out", tmp_path)
    code, found = command(*given, "--order", "nonempty_patch_first")
    assert code == 0
    assert (found["solved"], found["attempts"], found["attempts_possible"]) == (2, 2, 4)
    a, b = found["candidates"]["a"], found["candidates"]["b"]
    assert (a["resolved"], a["empty_patch"], a["incomplete"]) == (1, 1, 0)
    assert (b["resolved"], b["unresolved"], b["incomplete"]) == (1, 0, 1)
    report = json.loads((tmp_path / "b.early.json").read_text())
    assert report["incomplete_ids"] == [TWO[1].instance_id]
    run = json.loads((tmp_path / "logs/run_evaluation/early/run.json").read_text())
    assert run["dataset"] == str(rows)
    code, text = command(*given)  # what is there is not mixed with another run
    assert code == 2 and "of which there are files" in text


def test_the_command_runs_all_where_it_is_told_to(folder, command, tmp_path):
    rows = write_tasks(folder, TWO)
    files = write_kinds(folder, TWO, ("right", "wrong"))
    given = ("--tasks", rows, "--predictions", *files, "--all", "--warm", 1, "--out", tmp_path)
    code, found = command(*given, "--instance", TWO[1].instance_id)
    assert code == 0 and (found["attempts"], found["instances"], found["solved"]) == (2, 1, 1)
    assert found["candidates"]["right"]["resolved"] == 1
    assert found["candidates"]["wrong"]["unresolved"] == 1


def test_a_journaled_run_goes_on(folder, command, tmp_path):
    rows, files = write_tasks(folder, TWO), write_two_roots(folder, TWO)
    given = ("--tasks", rows, "--predictions", *files, "--out", tmp_path)
    _, first = command(*given, "--journal", tmp_path / "journal")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("logs/*/*/*/*/*")}
    _, again = command(*given, "--journal", tmp_path / "journal")
    assert first["solved"] == again["solved"] == 2 and len(times) == 10
    assert again["candidates"] == first["candidates"]
    assert {path: path.stat().st_mtime_ns for path in times} == times  # nothing ran again


def test_a_killed_run_is_resumed(folder, engine, client, tmp_path):
    rows, files = write_tasks(folder, TWO), write_kinds(folder, TWO, ("wrong", "hang", "right"))
    words = ["--tasks", rows, "--predictions", *files, "--out", tmp_path, "--seconds", 20]
    words += ["--journal", tmp_path / "journal", *SMALL, "--json"]
    env = {**os.environ, "DOCKER_HOST": engine.url}
    branchrt = [sys.executable, "-P", "-m", "branchrt_gym.cli", "eval"]
    process = subprocess.Popen([*branchrt, "swebench", *map(str, words)], env=env)
    reports = tmp_path / "logs/run_evaluation/branchrt/wrong"
    until = time.monotonic() + 120
    # Of the first candidate all is known; those that hang are running.
    while time.monotonic() < until:
        if len(list(reports.glob("*/report.json"))) == 2 and client.containers.list():
            break
        time.sleep(0.1)
    time.sleep(1)
    process.kill()
    process.wait()
    assert client.containers.list()  # nobody removes them now
    done = subprocess.run(
        [*branchrt, "resume", tmp_path / "journal"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("\n{") :])
    assert (found["solved"], found["without_verdict"]) == (2, [])
    assert found["candidates"]["right"]["resolved"] == 2
    assert found["candidates"]["wrong"]["unresolved"] == found["candidates"]["hang"]["error"] == 2
    assert client.containers.list(all=True) == []


def test_failures_of_the_engine_are_no_verdicts(folder, command, monkeypatch, tmp_path):
    monkeypatch.setattr(Engine, "check_images", lambda self, names: dict.fromkeys(names, "gone"))
    lines = [{**task.row, "image": "branchrt/none:1"} for task in TWO[:1]]
    (tmp_path / "rows.json").write_text(json.dumps(lines))
    (right,) = write_kinds(tmp_path, TWO[:1], ["right"])
    words = ("--tasks", tmp_path / "rows.json", "--predictions", right, "--retries", 0)
    code, found = command(*words, "--out", tmp_path)
    assert code == 1
    assert found["without_verdict"] == [[TWO[0].instance_id, "right"]]
    assert found["infrastructure_failures"] == 2 and "branchrt/none:1" in str(found["causes"])
    report = json.loads((tmp_path / "right.branchrt.json").read_text())
    assert report["error_ids"] == report["infra_failure_ids"] == [TWO[0].instance_id]
    assert report["failure_reasons"] == {TWO[0].instance_id: "container_unavailable"}


def test_what_cannot_be_run_is_refused(folder, command, tmp_path):
    rows, files = write_tasks(folder, TWO), write_two_roots(folder, TWO)
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    for line in lines:
        line["image"] = "branchrt/none:1"
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "one.jsonl").write_text(json.dumps(lines[0]))
    for tasks, predictions, text in (
        (tmp_path / "rows.jsonl", files, "are not in the engine: branchrt/none:1"),
        (tmp_path / "one.jsonl", files, "which the tasks do not have"),
        (rows, [files[0], files[0]], "is 'a' in two files"),
    ):
        code, printed = command(
            "--tasks", tasks, "--predictions", *predictions, "--out", tmp_path / "out"
        )
        assert code == 2 and text in printed.replace("\n", " "), printed
    assert not (tmp_path / "out").exists()
