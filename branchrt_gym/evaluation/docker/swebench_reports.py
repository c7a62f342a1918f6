"""What a SWE-bench run leaves on the disk, as swebench 5.x has it, so that its tools read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from branchrt_gym.evaluation.docker.grading import ENVIRONMENT, classify
from branchrt_gym.evaluation.docker.swebench_files import Predictions

__all__ = ["LOG", "OUTPUT", "PATCH", "REPORT", "SCRIPT", "AttemptFiles", "write_summary"]

REPORT: Final = "report.json"
OUTPUT: Final = "test_output.txt"
LOG: Final = "run_instance.log"
PATCH: Final = "patch.diff"
SCRIPT: Final = "eval.sh"


class AttemptFiles:
    """The files of a run's attempts, under `logs/run_evaluation/<run>/<model>/<instance>`.

    Args:
        out: The folder of everything.
        run_id: The run.
    """

    def __init__(self, out: Path, run_id: str) -> None:
        """Writes nothing yet."""
        self.out, self.run_id = out, run_id
        self.root = out / "logs/run_evaluation" / run_id

    def folder(self, model: str, instance_id: str) -> Path:
        """Returns an attempt's folder."""
        return self.root / model.replace("/", "__") / instance_id

    def begin(self, tasks: Path) -> None:
        """Writes what the run is of, for who grades it again."""
        self.root.mkdir(parents=True, exist_ok=True)
        run = {
            "dataset": str(tasks.resolve()),
            "split": "test",
            "task_repo": None,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        (self.root / "run.json").write_text(json.dumps(run, indent=2) + "\n")

    def write(
        self,
        model: str,
        instance_id: str,
        *,
        patch: str,
        script: str | None,
        output: str | None,
        log: str,
        report: dict[str, Any] | None,
    ) -> None:
        """Writes the files of an attempt, the report last; what is None is not there then."""
        folder = self.folder(model, instance_id)
        folder.mkdir(parents=True, exist_ok=True)
        entry = None if report is None else json.dumps({instance_id: report}, indent=4)
        texts = {PATCH: patch, SCRIPT: script, OUTPUT: output, LOG: log, REPORT: entry}
        (folder / REPORT).unlink(missing_ok=True)
        for name, text in texts.items():
            if text is None:
                (folder / name).unlink(missing_ok=True)
            else:
                (folder / name).write_text(text, "utf-8", "replace", newline="")

    def write_log(self, model: str, instance_id: str, text: str) -> None:
        """Writes the log of an attempt that came to nothing."""
        folder = self.folder(model, instance_id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_text(text)


def write_summary(
    files: AttemptFiles, tasks: Sequence[str], candidate: Predictions, skipped: Iterable[str]
) -> Path:
    """Writes `<model>.<run>.json`, schema version 2, from the attempts' files.

    Args:
        files: The run's.
        tasks: All instances.
        candidate: The model's predictions.
        skipped: Instances that were not run for it, since another candidate had solved them: they
            are "incomplete", like those without a prediction.

    Returns:
        The file.
    """
    left_out = set(skipped)
    ids: dict[str, set[str]] = {
        name: set()
        for name in (
            *("completed", "incomplete", "empty_patch", "resolved", "unresolved"),
            *("infra_failure", "ambiguous_failure", "error"),
        )
    }
    reasons = {}
    for name in tasks:
        if not candidate.patches.get(name, True):
            ids["empty_patch"].add(name)
        elif name not in candidate.patches or name in left_out:
            ids["incomplete"].add(name)
        else:
            folder = files.folder(candidate.model, name)
            kinds = _outcome(folder / REPORT, name)
            if "resolved" not in kinds:
                logs = (folder / OUTPUT, folder / LOG)
                texts = [log.read_text(errors="replace") for log in logs if log.exists()]
                found = classify("\n".join(texts))
                if found is not None:
                    reasons[name] = found[0]
                    kinds.append(
                        "infra_failure" if found[1] == ENVIRONMENT else "ambiguous_failure"
                    )
            for kind in kinds:
                ids[kind].add(name)
    submitted = list(candidate.patches)
    order = ("completed", "resolved", "unresolved", "infra_failure", "ambiguous_failure")
    report = {
        "total_instances": len(tasks),
        "submitted_instances": len(submitted),
        **{f"{kind}_instances": len(ids[kind]) for kind in (*order, "empty_patch", "error")},
        **{f"{kind}_ids": sorted(found) for kind, found in ids.items()},
        "submitted_ids": sorted(submitted),
        "failure_reasons": dict(sorted(reasons.items())),
        "schema_version": 2,
    }
    path = files.out / f"{candidate.model.replace('/', '__')}.{files.run_id}.json"
    path.write_text(json.dumps(report, indent=4) + "\n")
    return path


def _outcome(report: Path, name: str) -> list[str]:
    if not report.exists():
        return ["error"]
    try:
        resolved = json.loads(report.read_text())[name]["resolved"]
    except (ValueError, KeyError):
        return ["completed", "error"]
    return ["completed", "resolved" if resolved else "unresolved"]
