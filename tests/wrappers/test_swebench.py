"""The readers of SWE-bench files, on small made-up folders."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from branchrt_gym.evaluation.attempts import BatchVerifier
from branchrt_gym.wrappers.swebench import SweBenchReplay
from branchrt_gym.wrappers.swebench_files import SweBenchFilesError, read_submission
from branchrt_gym.wrappers.swebench_runs import is_diff, read_run

DIFF = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def rows(resolved: str, cost: float = 0.5, calls: int = 9) -> dict[str, Any]:
    """Details of instances i0, i1, …: resolved where there is a 1."""
    return {
        f"i{number}": {"resolved": flag == "1", "cost": cost, "api_calls": calls}
        for number, flag in enumerate(resolved)
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    split = tmp_path / "evaluation" / "bash-only"
    for name, resolved, cost in (
        ("20250101_old", "1000", 0.1),
        ("20250303_strong", "1110", 2.0),
        ("20250202_fair", "0011", 0.3),
    ):
        write(split / name / "per_instance_details.json", rows(resolved, cost))
        share = 100 * resolved.count("1") / 4
        write(
            split / name / "metadata.json",
            {"date": f"{name[:4]}-{name[4:6]}-01", "resolved": share},
        )
    write(split / "20240101_unpublished" / "metadata.json", {"resolved": 50.0})
    return tmp_path


def names(checkout: Path, *submissions: str) -> tuple[str, ...]:
    return SweBenchReplay.load(checkout, submissions).table.names


def test_a_checkout_is_read_into_a_table(checkout: Path) -> None:
    found = SweBenchReplay.load(checkout)
    assert found.table.names == ("20250101_old", "20250202_fair", "20250303_strong")
    assert found.table.dates == ("2025-01-01", "2025-02-01", "2025-03-01")
    assert found.instances == found.tasks == ("i0", "i1", "i2", "i3")
    assert found.resolved.astype(int).T.tolist() == [[1, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 0]]
    assert found.table.cost is not None and found.table.calls is not None
    assert found.table.cost[0].tolist() == [0.1, 0.3, 2.0]
    assert (found.table.calls == 9).all()
    assert found.table.empty is None and found.table.present is None
    (why,) = found.left_out.values()
    assert "`20240101_unpublished` has neither" in why
    assert isinstance(found, BatchVerifier)


def test_submissions_are_chosen_by_name_date_and_strength(checkout: Path) -> None:
    assert names(checkout, "strong", "20250101_old") == ("20250303_strong", "20250101_old")
    assert names(checkout, "latest:2") == ("20250202_fair", "20250303_strong")
    assert names(checkout, "best:2") == ("20250303_strong", "20250202_fair")
    assert names(checkout, "best:2:2") == ("20250202_fair", "20250101_old")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("2025", r"'2025' fits 3 of 4 folders; .*20250101_old, 20250202_fair, 20250303_strong$"),
        ("none", r"'none' fits 0 of 4 folders"),
        ("", r"'' fits 0 of 4"),
        ("unpublished", "were not published; leave it out"),
        ("latest:4", "`latest:4` asks for 4 of 3"),
        ("best:2:1", "`best:2:1` asks for 2 of 1"),
        ("best:0", "`best:0` asks for 0 of 3"),
    ],
)
def test_a_wrong_choice_is_explained(checkout: Path, wanted: str, message: str) -> None:
    with pytest.raises(SweBenchFilesError, match=message):
        SweBenchReplay.load(checkout, [wanted])


def test_a_split_is_named_where_there_are_two(checkout: Path) -> None:
    write(checkout / "evaluation/verified/20250101_x/per_instance_details.json", rows("01"))
    with pytest.raises(SweBenchFilesError, match=r"`split` is None, .*bash-only, verified"):
        SweBenchReplay.load(checkout)
    assert SweBenchReplay.load(checkout, split="verified").table.names == ("20250101_x",)
    with pytest.raises(SweBenchFilesError, match="`split` is 'lite'"):
        SweBenchReplay.load(checkout, split="lite")
    folder = checkout / "evaluation/bash-only"  # or the split's own folder
    assert len(SweBenchReplay.load(folder).table.names) == 3


def test_folders_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SweBenchFilesError, match="is no folder"):
        SweBenchReplay.load(tmp_path / "nowhere")
    (tmp_path / "docs").mkdir()
    with pytest.raises(SweBenchFilesError, match=r"has no submission with a per_instance"):
        SweBenchReplay.load(tmp_path)


def test_results_tell_empty_patches(tmp_path: Path) -> None:
    folder = tmp_path / "20250101_x"
    write(folder / "per_instance_details.json", rows("1000"))
    write(folder / "results.json", {"resolved": ["i0"], "no_generation": ["i2"], "no_logs": ["i3"]})
    found = read_submission(folder)
    assert [row.empty for row in found.outcomes.values()] == [False, False, True, False]
    table = SweBenchReplay.of([found]).table
    assert table.empty is not None and table.without_patch is table.empty
    (folder / "per_instance_details.json").unlink()
    (folder / "results").mkdir()
    (folder / "results.json").rename(folder / "results" / "results.json")  # as it also lies
    alone = read_submission(folder)
    assert {name: (row.resolved, row.empty) for name, row in alone.outcomes.items()} == {
        "i0": (True, False),
        "i2": (False, True),
        "i3": (False, False),
    }
    # What failed is not listed: the others know which instances there are.
    with pytest.raises(SweBenchFilesError, match="`20250101_x` and all others list only some"):
        SweBenchReplay.of([alone])
    write(tmp_path / "20250102_y" / "per_instance_details.json", rows("01001"))
    both = SweBenchReplay.load(tmp_path)
    assert both.resolved.astype(int).T.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 1]]
    assert both.table.present is None and both.table.empty is None  # of y it is not known
    # The summary that the harness itself writes.
    write(folder / "results.json", {"schema_version": 2, "submitted_ids": ["i0", "i1"],
          "resolved_ids": ["i1"], "empty_patch_ids": ["i0"], "resolved_instances": 1})  # fmt: skip
    assert SweBenchReplay.of([read_submission(folder)]).instances == ("i0", "i1")
    assert read_submission(folder).outcomes["i0"].empty
    assert read_submission(folder).resolved == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("per_instance_details.json", "{", "is no JSON: "),
        ("per_instance_details.json", "version https://git-lfs", "git LFS pointer"),
        ("per_instance_details.json", [1], "has a list; expected an object"),
        ("per_instance_details.json", {"i0": True}, "has True for i0; expected an object"),
        ("per_instance_details.json", {"i0": {"resolved": "yes"}}, "for i0; expected an object"),
        ("per_instance_details.json", {"i0": {"resolved": True, "cost": -1}}, "`cost` in dollars"),
        ("per_instance_details.json", {"i0": {"resolved": True, "cost": "1"}}, "`cost` in dollars"),
        ("results.json", {"resolved": ["i0", "i3"]}, "differ in 1 instances, such as i3"),
        ("metadata.json", {"resolved": 52.8}, r"25.0 %, but its metadata.json says 52.8 %"),
    ],
)
def test_damage_and_contradictions_are_named(
    tmp_path: Path, file: str, content: Any, message: str
) -> None:
    folder = tmp_path / "20250101_x"
    write(folder / "per_instance_details.json", rows("1000"))
    assert read_submission(folder).resolved == 1
    write(folder / file, content)
    with pytest.raises(SweBenchFilesError, match=message):
        read_submission(folder)


def test_costs_not_on_record_are_zero_and_a_share_may_miss_an_instance(tmp_path: Path) -> None:
    folder = tmp_path / "20250101_x"
    details = rows("1" * 50 + "0" * 50)
    details["i0"] |= {"cost": None, "api_calls": None}
    write(folder / "per_instance_details.json", details)
    write(folder / "metadata.json", {"resolved": 100 * 50 / 99})
    row = read_submission(folder).outcomes["i0"]
    assert (row.cost, row.calls, row.limit_hit) == (0.0, 0, False)


def test_limits_are_told_by_cost_and_calls_without_the_verdict() -> None:
    def hit(cost: float, calls: int, resolved: bool = False) -> bool:
        details = {"resolved": resolved, "cost": cost, "api_calls": calls}
        from branchrt_gym.wrappers.swebench_files import _outcome

        return _outcome(Path("x"), "i0", details).limit_hit

    assert [hit(2.99, 249), hit(3.0, 1), hit(0.1, 250)] == [False, True, True]
    assert hit(3.0, 1, resolved=True)


def test_an_instance_that_one_lacks_is_absent(tmp_path: Path) -> None:
    for name, resolved in (("20250101_a", "11"), ("20250102_b", "110")):
        write(tmp_path / name / "per_instance_details.json", rows(resolved))
    found = SweBenchReplay.load(tmp_path)
    assert found.table.present is not None
    assert found.table.present.tolist() == [[True, True], [True, True], [False, True]]


def test_verdicts_come_out_of_the_table(checkout: Path) -> None:
    found = SweBenchReplay.load(checkout)
    roots, candidates = np.array([0, 3, 2]), np.array([2, 1, 0])
    told = found.verify(roots, candidates)
    assert told.passed.tolist() == [True, True, False]
    assert told.cost.tolist() == [2.0, 0.3, 0.1]
    tensors = found.verify(torch.from_numpy(roots), torch.from_numpy(candidates))
    assert tensors.passed.tolist() == told.passed.tolist()
    assert tensors.cost.dtype == torch.float64


def test_the_version_is_of_the_outcomes(checkout: Path) -> None:
    before = SweBenchReplay.load(checkout).version
    assert before == SweBenchReplay.load(checkout).version
    path = checkout / "evaluation/bash-only/20250202_fair/per_instance_details.json"
    write(path, rows("0101", 0.3))
    assert before != SweBenchReplay.load(checkout).version


def test_repetition_repeats_and_names_the_copies(checkout: Path) -> None:
    found = SweBenchReplay.load(checkout).repeated(6)
    assert found.tasks == ("i0", "i1", "i2", "i3", "i0#1", "i1#1")
    assert (found.resolved[4:] == found.resolved[:2]).all()
    with pytest.raises(ValueError, match="`num_roots` is 0"):
        found.repeated(0)


def trajectory(status: str, submission: str = "", version: str = "2.4.6") -> dict[str, Any]:
    return {
        "info": {
            "model_stats": {"instance_cost": 0.25, "api_calls": 12},
            "mini_version": version,
            "exit_status": status,
            "submission": submission,
        },
        "messages": [],
        "trajectory_format": "mini-swe-agent-1.1" if version > "2" else "mini-swe-agent-1",
    }


def write_run(folder: Path, patches: dict[str, tuple[str, str | None]], version: str) -> Path:
    """Writes a run: of each instance the patch, and its exit status (None: no trajectory)."""
    predictions = {}
    for name, (patch, status) in patches.items():
        predictions[name] = {
            "model_name_or_path": "some/model",
            "instance_id": name,
            "model_patch": patch,
        }
        if status is not None:
            write(folder / name / f"{name}.traj.json", trajectory(status, patch, version))
    write(folder / "preds.json", predictions)
    return folder


def test_a_run_of_version_2(tmp_path: Path) -> None:
    patches = {
        "i0": (DIFF, "Submitted"),
        "i1": ("", "LimitsExceeded"),
        "i2": ("", "RuntimeError"),
        "i3": (DIFF, None),
    }
    found = read_run(write_run(tmp_path / "20260101_run", patches, "2.4.6"))
    assert found.date == "2026-01-01"
    row = found.outcomes["i0"]
    assert (row.cost, row.calls, row.empty, row.patch) == (0.25, 12, False, DIFF)
    assert [each.empty for each in found.outcomes.values()] == [False, True, True, False]
    assert [each.limit_hit for each in found.outcomes.values()] == [False, True, False, False]
    assert (found.outcomes["i3"].calls, found.outcomes["i3"].exit_status) == (0, None)
    with pytest.raises(SweBenchFilesError, match="has no verdict of 4 instances, such as i0"):
        SweBenchReplay.of([found])


def test_a_report_gives_the_verdicts_and_patches_their_addresses(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"i0": (DIFF, "Submitted"), "i1": ("", "TimeExceeded")}, "2")
    report = write(tmp_path / "model.run.json", {"schema_version": 2, "resolved_ids": ["i0"]})
    found = SweBenchReplay.of([read_run(run, report)]).repeated(4)
    assert found.resolved[:, 0].tolist() == [True, False, True, False]
    assert found.content(0, 0) == found.content(2, 0) == sha256(DIFF.encode()).hexdigest()
    assert found.content(1, 0) == sha256(b"").hexdigest()
    write(report, {"resolved": 3})
    with pytest.raises(SweBenchFilesError, match="has no list 'resolved_ids'"):
        read_run(run, report)


@pytest.mark.parametrize("status", ["BadRequestError", None])
def test_an_exceptions_text_as_the_patch_is_refused_or_taken_as_empty(
    tmp_path: Path, status: str | None
) -> None:
    text = "litellm.BadRequestError: context length exceeded"
    patches = {"i0": (DIFF, "Submitted"), "i1": (text, status), "i2": ("", "LimitsExceeded")}
    run = write_run(tmp_path / "run", patches, "1.17.2")
    with pytest.raises(SweBenchFilesError) as caught:
        read_run(run)
    told = str(caught.value)
    assert "1 patches that are no diff, such as that of i1: 'litellm.BadRequest" in told
    assert f"exit status {status or 'not on record'}" in told and "faulty='empty'" in told
    found = read_run(run, faulty="empty").outcomes
    assert [row.empty for row in found.values()] == [False, True, True]
    assert found["i1"].patch == ""
    submitted = write_run(tmp_path / "said", {"i0": (text, "Submitted")}, "1.17.2")
    assert read_run(submitted).outcomes["i0"].patch == text  # the agent's own words: it may fail


def test_predictions_may_be_a_list_or_lines(tmp_path: Path) -> None:
    rows = [{"instance_id": f"i{n}", "model_patch": patch} for n, patch in enumerate([DIFF, None])]
    write(tmp_path / "list" / "preds.json", rows)
    lines = "\n".join(map(json.dumps, rows)) + "\n\n"
    write(tmp_path / "lines" / "all_preds.jsonl", lines)
    for name in ("list", "lines"):
        assert [row.empty for row in read_run(tmp_path / name).outcomes.values()] == [False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"i0": {"model', "is no JSON: .* killed meanwhile"),
        ([{"instance_id": "i0", "model_patch": 3}], "expected objects with `instance_id`"),
        (["i0"], "expected objects with `instance_id`"),
    ],
)
def test_damaged_predictions_are_named(tmp_path: Path, content: Any, message: str) -> None:
    write(tmp_path / "preds.json", content)
    with pytest.raises(SweBenchFilesError, match=message):
        read_run(tmp_path)


def test_a_run_without_predictions_or_with_another_trajectory(tmp_path: Path) -> None:
    with pytest.raises(SweBenchFilesError, match=r"has no preds.json"):
        read_run(tmp_path)
    run = write_run(tmp_path / "run", {"i0": (DIFF, "Submitted")}, "2.4.6")
    write(run / "i0" / "i0.traj.json", {"messages": []})
    with pytest.raises(SweBenchFilesError, match="has no object `info`"):
        read_run(run)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DIFF, True),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n", True),
        ("\n" + DIFF, True),
        ("Error: diff --git failed", False),
        ("--- a line of dashes\nand no more", False),
        ("", False),
    ],
)
def test_diffs_are_told_from_other_text(text: str, expected: bool) -> None:
    assert is_diff(text) is expected
