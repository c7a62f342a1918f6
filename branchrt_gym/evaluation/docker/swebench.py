"""SWE-bench live: patches applied and graded in containers, by the contract of swebench 5.x."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from branchrt_gym.evaluation.attempts import Attempt, Verdict
from branchrt_gym.evaluation.docker.container import Outcome
from branchrt_gym.evaluation.docker.evaluation import DockerTask
from branchrt_gym.evaluation.docker.grading import (
    APPLY_FAILED,
    APPLY_PASSED,
    Expected,
    Grader,
    find_grader,
)
from branchrt_gym.evaluation.docker.swebench_files import SweBenchTask
from branchrt_gym.evaluation.docker.swebench_reports import OUTPUT, AttemptFiles
from branchrt_gym.evaluation.docker.verifier import DockerVerifier

__all__ = ["APPLY", "CLEAN", "Prediction", "SweBenchVerifier", "docker_task"]

# The last can leave a patch applied and fail all the same.
APPLY = (
    'git apply --verbose "$PATCH"',
    'git apply --verbose --3way "$PATCH"',
    'git apply --verbose --reject "$PATCH"',
    'patch --batch --forward --fuzz=5 -p1 -i "$PATCH" || git apply --check --reverse "$PATCH"',
)
CLEAN = "git checkout -- . ; git clean -fd"


class Prediction(NamedTuple):
    """One model's patch for an instance; an empty one fails without being run."""

    model: str
    patch: str


class SweBenchVerifier(DockerVerifier):
    """Verifies predictions as swebench does: patch, evaluation script, log, report.

    A patch that does not apply, and tests past their time, have failed and get no `report.json`,
    which is how swebench notes an error. A failure of the engine is none of the candidate's.

    Args:
        tasks: One for each root.
        predictions: `predictions[root][candidate]`; None where there is none.
        out: Where `logs/run_evaluation/<run>/<model>/<instance>` is written for each attempt; None
            for nowhere.
        run_id: The run's name in these paths; also part of the verifier's version.
        grader: Who grades; `find_grader()` if None.
        seconds: What an evaluation script may take.
        more: As `DockerVerifier` has it: limits, workers, capacity, warm, retries, run_empty,
            engine, client.
    """

    def __init__(
        self,
        tasks: Sequence[SweBenchTask],
        predictions: Sequence[Sequence[Prediction | None]],
        *,
        out: Path | None = None,
        run_id: str = "run",
        grader: Grader | None = None,
        seconds: float = 1800.0,
        **more: Any,
    ) -> None:
        """Checks the engine and the images; see `DockerVerifier`."""
        self._rows, self._predictions, self._limit = tasks, predictions, seconds
        self._grader = find_grader() if grader is None else grader
        self._files = None if out is None else AttemptFiles(out, run_id)
        # What `_mark` found, for `_note`, which the same thread calls next.
        self._found = threading.local()
        super().__init__(
            [docker_task(task, partial(self._mark, task.expected)) for task in tasks],
            self._patch,
            observe=self._note,
            seconds=seconds,
            **more,
        )
        digest = sha256(repr((self.version, run_id, self._grader.name)).encode())
        self.version = f"swebench {digest.hexdigest()[:16]}"

    def poll(self, timeout: float | None) -> list[tuple[Attempt, Verdict]]:
        """Returns what was decided since; see `Verifier`."""
        found = super().poll(timeout)
        for attempt, verdict in found:
            if verdict.infrastructure is not None and self._files is not None:
                # In the words that swebench knows a failing engine by.
                text = f"Error response from daemon: {verdict.infrastructure}\n"
                self._files.write_log(*self._names(attempt), text)
        return found

    def _prediction(self, root: int, candidate: int) -> Prediction:
        found = self._predictions[root][candidate]
        if found is None:
            raise ValueError(
                f"attempt ({root}, {candidate}) has no prediction; expected it to be absent"
            )
        return found

    def _patch(self, root: int, candidate: int) -> str:
        return self._prediction(root, candidate).patch

    def _names(self, attempt: Attempt) -> tuple[str, str]:
        model = self._prediction(attempt.root, attempt.candidate).model
        return model, self._rows[attempt.root].instance_id

    def _mark(self, expected: Expected, outcome: Outcome) -> Verdict:
        """Grades the log of an evaluation that ended by itself."""
        if expected.fail_only and outcome.truncated:
            return Verdict(False)  # what is missing may be the failures
        with TemporaryDirectory(prefix="branchrt-") as folder:
            log = Path(folder, OUTPUT)
            log.write_text(outcome.output, "utf-8", newline="")
            self._found.entry = self._grader.grade(expected, log)
        return Verdict(bool(self._found.entry["resolved"]))

    def _note(self, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> None:
        entry, self._found.entry = getattr(self._found, "entry", None), None
        if self._files is None:
            return
        prediction = self._prediction(attempt.root, attempt.candidate)
        task = self._rows[attempt.root]
        applied = outcome.applied is not False
        lines = [f"{APPLY_PASSED if applied else APPLY_FAILED}:\n{outcome.log}"]
        output = outcome.output if applied else None
        if outcome.timed_out:
            late = f"Timeout error: {math.ceil(self._limit)} seconds exceeded."
            output = f"{output or ''}\n\n{late}"
            lines.append(late)
        if outcome.memory_kills:
            lines.append(f"{outcome.memory_kills} processes killed for memory")
        if outcome.flooded:
            lines.append(f"Stopped after {outcome.printed} bytes of output")
        if outcome.truncated:
            lines.append(f"Of {outcome.printed} bytes of output the middle is left out")
        lines.append(f"Test runtime: {outcome.seconds:.2f} seconds")
        lines.append(f"Result for {task.instance_id}: resolved: {verdict.passed}")
        self._files.write(
            *self._names(attempt),
            patch=prediction.patch,
            script=task.eval_script if applied else None,
            output=output,
            log="\n".join(lines) + "\n",
            report=entry,
        )


def docker_task(task: SweBenchTask, grade: Callable[[Outcome], Verdict]) -> DockerTask:
    """Returns an instance as a task for containers; `grade` judges its log."""
    return DockerTask(
        image=task.image,
        # One stream, so that the marks and the tests' output keep their order.
        command=f"exec 2>&1\n{task.eval_script}",
        apply=APPLY,
        clean=CLEAN,
        grade=grade,
        name=task.instance_id,
    )
