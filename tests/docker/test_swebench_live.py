"""Our tasks and candidates in real containers: each verdict, and what is left outside."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from real_engine import mounts_under, processes_of
from tasks import KINDS, TASKS, make_images, write_kinds, write_tasks

from branchrt_gym.evaluation import EvalFrontier
from branchrt_gym.evaluation.docker import Limits
from branchrt_gym.evaluation.docker.grading import find_grader
from branchrt_gym.evaluation.docker.swebench import Prediction, SweBenchVerifier
from branchrt_gym.evaluation.docker.swebench_files import read_predictions, read_tasks
from branchrt_gym.evaluation.docker.swebench_reports import AttemptFiles, write_summary

pytestmark = pytest.mark.slow

# All twelve tasks where this is set; three else, and what runs into its time limit of one only.
ALL = bool(os.environ.get("BRANCHRT_ALL_TASKS"))
SHORT = TASKS if ALL else TASKS[:3]
SLOW = () if ALL else ("hang", "fork")
MIB = 1 << 20
LIMITS = Limits(memory=160 * MIB, cpus=0.5, pids=24, work=32 * MIB, tmp=64 * MIB)
SECONDS = 30.0  # an honest one takes three on a busy machine


@pytest.fixture(scope="module")
def images(make_image):
    make_images(make_image, SHORT)


def left_over(client, engine):
    """What a run could leave: things of the engine, processes, and files on this machine."""
    commands = [Path(f"/proc/{pid}/comm").read_text() for pid in processes_of(engine.folder)]
    paths = ("/evil", "/etc/evil", "/usr/bin/evil", "/root/evil", "/var/evil", "/tmp/evil")
    return {
        "containers": [each.name for each in client.containers.list(all=True)],
        "volumes": [each.name for each in client.volumes.list()],
        "networks": sorted(each.name for each in client.networks.list()),
        "images": sorted((each.id, *each.tags) for each in client.images.list(all=True)),
        "processes": sorted(each for each in commands if each.strip() != "unshare"),
        "planted": [path for path in paths if os.path.lexists(path)],
        "core pattern": Path("/proc/sys/kernel/core_pattern").read_text(),
        "mounts": mounts_under(engine.folder),
    }


@pytest.fixture(scope="module")
def run(images, client, engine, tmp_path_factory):
    """All attempts, run once: the pairs, the result, the files, and what was there before."""
    out = tmp_path_factory.mktemp("swebench")
    grader = find_grader("own")
    rows = write_tasks(out, SHORT)
    tasks = read_tasks(rows, grader)
    models = [read_predictions(path) for path in write_kinds(out, SHORT)]
    pairs = [
        (task, Prediction(each.model, each.patches[task.instance_id]))
        for place, task in enumerate(tasks)
        for each in models
        if not place or each.model not in SLOW
    ]
    files = AttemptFiles(out, "live")
    files.begin(rows)
    before = left_over(client, engine)
    with SweBenchVerifier(
        [task for task, _ in pairs],
        [[prediction] for _, prediction in pairs],
        out=out,
        run_id="live",
        grader=grader,
        limits=LIMITS,
        seconds=SECONDS,
        workers=4,
        client=client,
    ) as verifier:
        result = EvalFrontier(len(pairs), 1, verifier).run()
    print(f"\n{len(pairs)} attempts in {result.wall:.1f} s")
    return pairs, result, files, before


def candidates(run):
    """Yields the candidate of each pair, whether it passed, and its folder."""
    by_name = {task.instance_id: task.candidates() for task in SHORT}
    pairs, result, files, _ = run
    for (task, prediction), solved in zip(pairs, result.solved, strict=True):
        folder = files.folder(prediction.model, task.instance_id)
        yield prediction.model, by_name[task.instance_id][prediction.model], bool(solved), folder


def test_each_candidate_gets_its_verdict(run):
    wrong = [
        (folder.name, kind, solved)
        for kind, each, solved, folder in candidates(run)
        if solved != each.resolved
    ]
    assert wrong == []
    assert run[1].infrastructure == 0


def test_nothing_is_left_and_nothing_outside_was_changed(run, client, engine):
    until = time.monotonic() + 10  # a container's own processes end shortly after it
    while (after := left_over(client, engine)) != run[3] and time.monotonic() < until:
        time.sleep(0.2)
    assert after == run[3]
    assert run[3]["containers"] == run[3]["planted"] == []


def test_each_attempt_has_its_files(run):
    for kind, each, solved, folder in candidates(run):
        if not each.patch:
            assert not folder.exists()  # never run
            continue
        assert (folder / "patch.diff").read_text() == each.patch
        log = (folder / "run_instance.log").read_text()
        assert (">>>>> Applied Patch" if each.applied else ">>>>> Patch Apply Failed") in log, kind
        assert (folder / "test_output.txt").exists() == each.applied
        late = kind in ("hang", "fork")
        assert (folder / "report.json").exists() == (each.applied and not late), kind
        if each.applied:
            output = (folder / "test_output.txt").read_text()
            assert each.log in output and each.never not in output, kind
            assert len(output) < LIMITS.output + 1000
            assert (f"Timeout error: {SECONDS:.0f} seconds exceeded." in output) == late
            assert ("killed for memory" in log) == (kind == "memory")
        if (folder / "report.json").exists():
            report = json.loads((folder / "report.json").read_text())[folder.name]
            assert report["resolved"] is solved


def test_tests_are_named_as_they_went(run):
    _, _, files, _ = run
    for task in SHORT:
        for kind in ("right", "forge", "no_tests"):
            path = files.folder(kind, task.instance_id) / "report.json"
            report = json.loads(path.read_text())[task.instance_id]
            if kind == "no_tests":  # nobody ran
                assert "tests_status" not in report
                continue
            for name, tests in (
                ("FAIL_TO_PASS", task.fail_to_pass),
                ("PASS_TO_PASS", task.pass_to_pass),
            ):
                failed = tests if (kind, name) == ("forge", "FAIL_TO_PASS") else []
                passed = [each for each in tests if each not in failed]
                assert report["tests_status"][name] == {"success": passed, "failure": failed}


def test_the_summaries_tell_the_outcomes(run):
    _, _, files, _ = run
    names = [task.instance_id for task in SHORT]
    lists = {
        "right": "resolved_ids",
        "print": "resolved_ids",
        "wrong": "unresolved_ids",
        "memory": "unresolved_ids",
        "empty": "empty_patch_ids",
        "no_apply": "error_ids",
    }
    for kind, where in lists.items():
        predictions = read_predictions(files.out / f"preds_{kind}.json")
        path = write_summary(files, names, predictions, ())
        assert path == files.out / f"{kind}.live.json"
        report = json.loads(path.read_text())
        assert report["schema_version"] == 2 and report["total_instances"] == len(names)
        assert report[where] == sorted(names)
        assert report[where.replace("_ids", "_instances")] == len(names)
    skipped = json.loads(
        write_summary(
            files, names, read_predictions(files.out / "preds_right.json"), names[:1]
        ).read_text()
    )
    assert skipped["incomplete_ids"] == names[:1] and len(skipped["resolved_ids"]) == len(names) - 1


def test_the_tools_of_swebench_read_the_run_and_agree(run, engine, monkeypatch, tmp_path):
    pytest.importorskip("swebench.harness.grading", reason="swebench is not installed")
    from swebench.harness.reporting import make_run_report
    from swebench.harness.run_evaluation import main

    shutil.copytree(run[2].out, tmp_path, dirs_exist_ok=True)
    files = AttemptFiles(tmp_path, "live")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    rows = [task.row for task in SHORT]
    names = [task.instance_id for task in SHORT]
    for kind in KINDS:
        path = tmp_path / f"preds_{kind}.json"
        summary = json.loads(write_summary(files, names, read_predictions(path), ()).read_text())
        predictions = json.loads(path.read_text())
        theirs = make_run_report(predictions, rows, "live", None, str(tmp_path / "theirs"))
        assert json.loads(theirs.read_text()) == summary
        if kind in ("hang", "fork"):
            continue  # what has no report is not graded again
        reports = sorted((files.root / kind).glob("*/report.json"))
        before = [json.loads(each.read_text()) for each in reports]
        main(
            dataset_name=str(tmp_path / "tasks.jsonl"),
            split="test",
            instance_ids=None,
            predictions_path=str(path),
            max_workers=1,
            open_file_limit=4096,
            run_id="live",
            timeout=60,
            rewrite_reports=True,
            modal=False,
            report_dir=str(tmp_path / "again"),
        )
        assert [json.loads(each.read_text()) for each in reports] == before
        again = json.loads((tmp_path / f"again/{kind}.live.json").read_text())
        assert {name: again[name] for name in summary} == summary
