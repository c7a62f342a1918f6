"""The files of mini-swe-agent's runs, 1.x and 2.x: predictions and trajectories."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from branchrt_gym.wrappers.swebench_files import (
    RESOLVED,
    Outcome,
    Submission,
    SweBenchFilesError,
    date_of,
    listed,
    read_object,
    short,
)

__all__ = ["is_diff", "read_run"]

PREDICTIONS = ("preds.json", "preds.jsonl", "all_preds.jsonl")


def read_run(
    folder: Path,
    report: Path | None = None,
    *,
    faulty: Literal["refuse", "empty"] = "refuse",
) -> Submission:
    """Reads a run of mini-swe-agent, 1.x or 2.x: `preds.json` and the trajectories that are there.

    In 1.x an uncaught exception left its text as the patch, which looks like an attempt and can
    never apply. Such a patch is found as text that is no diff and was not submitted.

    Args:
        folder: Of `preds.json` (or `preds.jsonl`), with `<instance>/<instance>.traj.json`.
        report: What the harness wrote about it, with `resolved_ids`; None if it has not run yet.
        faulty: What to do with an exception's text in place of a patch: refuse the run, or take
            the patch as the empty one that later versions write.

    Returns:
        The submission; without a report its outcomes have no `resolved`.
    """
    told = {} if report is None else read_object(report)
    solved = None if told is None else listed(told, RESOLVED)
    if report is not None and solved is None:
        raise SweBenchFilesError(f"`{report}` has no list 'resolved_ids'; expected a report")
    predictions = dict(_predictions(folder))
    rows, wrong = {}, []
    for name, patch in sorted(predictions.items()):
        info = _trajectory(folder, name)
        status = info.get("exit_status")
        stats = info.get("model_stats") or {}
        if patch.strip() and status != "Submitted" and not is_diff(patch):
            wrong.append((name, status, patch))
            patch = ""
        cost, calls = stats.get("instance_cost") or 0.0, stats.get("api_calls") or 0
        resolved = None if solved is None else name in solved
        rows[name] = Outcome(resolved, float(cost), int(calls), not patch.strip(), status, patch)
    if wrong and faulty == "refuse":
        name, status, patch = wrong[0]
        raise SweBenchFilesError(
            f"`{folder}` has {len(wrong)} patches that are no diff, such as that of {name}: "
            f"{short(patch)} (exit status {status or 'not on record'}). mini-swe-agent 1.x writes "
            "an exception's text there: run these instances again, or take the patches as empty "
            "ones with faulty='empty'"
        )
    return Submission(folder.name, date_of(folder.name, {}), rows)


def is_diff(patch: str) -> bool:
    """Whether a text has the beginning of a file's changes: `diff --git`, or `---` and `+++`."""
    return bool(re.search(r"^diff --git |^--- .*\n\+\+\+ ", patch, re.MULTILINE))


def _predictions(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields instance ids and patches of a preds file: a dict, a list, or JSON lines."""
    path = next((folder / name for name in PREDICTIONS if (folder / name).is_file()), None)
    if path is None:
        raise SweBenchFilesError(f"`{folder}` has no preds.json; expected a run of mini-swe-agent")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            text = f"[{','.join(line for line in text.splitlines() if line)}]"
        rows = json.loads(text)
    except ValueError as error:
        raise SweBenchFilesError(
            f"`{path}` is no JSON: {error}; it is rewritten whole at every instance: was the run "
            "killed meanwhile, or does it go on?"
        ) from error
    for row in rows.values() if isinstance(rows, dict) else rows:
        found = row if isinstance(row, dict) else {}
        name, patch = found.get("instance_id"), found.get("model_patch")
        if not isinstance(name, str) or not isinstance(patch, str | None):
            raise SweBenchFilesError(
                f"`{path}` has {short(row)}; expected objects with `instance_id` and `model_patch`"
            )
        yield name, patch or ""


def _trajectory(folder: Path, name: str) -> dict[str, Any]:
    """Returns the `info` of an instance's trajectory; empty where there is none."""
    for path in (folder / name / f"{name}.traj.json", folder / f"{name}.traj.json"):
        found = read_object(path)
        if found is not None:
            info = found.get("info")
            if not isinstance(info, dict):
                raise SweBenchFilesError(f"`{path}` has no object `info`; expected a trajectory")
            return info
    return {}
