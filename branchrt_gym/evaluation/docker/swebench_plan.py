"""Tasks × candidates of a SWE-bench run, as an evaluation has them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from branchrt_gym.evaluation.docker.grading import Grader
from branchrt_gym.evaluation.docker.swebench import Prediction
from branchrt_gym.evaluation.docker.swebench_files import (
    Predictions,
    SweBenchFileError,
    SweBenchTask,
    read_predictions,
    read_tasks,
)
from branchrt_gym.evaluation.orderings import CandidateTable

__all__ = ["SweBenchPlan", "read_plan"]


@dataclass(frozen=True)
class SweBenchPlan:
    """Attempts: root `r` is `tasks[r]`, candidate `c` one model's patch of it, if it has one.

    Attributes:
        tasks: The instances.
        predictions: `predictions[r][c]`, or None.
        names: What the roots are called. models: What the candidates are called.
    """

    tasks: tuple[SweBenchTask, ...]
    predictions: tuple[tuple[Prediction | None, ...], ...]
    names: tuple[str, ...]
    models: tuple[str, ...]

    @property
    def table(self) -> CandidateTable:
        """What an ordering may know: who has a patch, and whether it is empty."""
        rows = self.predictions
        present = np.array([[each is not None for each in row] for row in rows])
        empty = np.array([[not (each and each.patch) for each in row] for row in rows])
        return CandidateTable(self.models, len(self.tasks), empty=empty, present=present)

    def content(self, root: int, candidate: int) -> str:
        """Returns the digest of a patch."""
        found = self.predictions[root][candidate]
        patch = "" if found is None else found.patch
        return sha256(patch.encode("utf-8", "surrogatepass")).hexdigest()

    def apart(self) -> SweBenchPlan:
        """Returns the same attempts with a root for each, so that every one of them is run."""
        pairs = [
            (task, name, prediction)
            for task, name, row in zip(self.tasks, self.names, self.predictions, strict=True)
            for prediction in row
            if prediction is not None
        ]
        return SweBenchPlan(
            tuple(task for task, _, _ in pairs),
            tuple((prediction,) for _, _, prediction in pairs),
            tuple(f"{name} of {prediction.model}" for _, name, prediction in pairs),
            ("each",),
        )


def read_plan(
    tasks: Path, predictions: Sequence[Path], grader: Grader, only: Collection[str] = ()
) -> tuple[SweBenchPlan, list[Predictions]]:
    """Reads a run's files.

    Args:
        tasks: See `read_tasks`.
        predictions: A file for each candidate; see `read_predictions`.
        grader: Who will grade.
        only: Instances to take; all if empty.

    Raises:
        SweBenchFileError: For files that cannot be run together.
    """
    rows = read_tasks(tasks, grader)
    known = {task.instance_id for task in rows}
    candidates = [read_predictions(path) for path in predictions]
    models = [each.model for each in candidates]
    twice = sorted({name for name in models if models.count(name) > 1})
    if twice:
        raise SweBenchFileError(
            f"`model_name_or_path` is {twice[0]!r} in two files of predictions; expected a name "
            "for each, since reports are kept under it"
        )
    for candidate, path in zip(candidates, predictions, strict=True):
        _known(candidate.patches, known, f"`{path}` has predictions of")
    _known(only, known, "`--instance` names")
    rows = [task for task in rows if not only or task.instance_id in only]
    found = tuple(
        tuple(
            Prediction(each.model, each.patches[task.instance_id])
            if task.instance_id in each.patches
            else None
            for each in candidates
        )
        for task in rows
    )
    names = tuple(task.instance_id for task in rows)
    return SweBenchPlan(tuple(rows), found, names, tuple(models)), candidates


def _known(names: Collection[str], known: Collection[str], where: str) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise SweBenchFileError(
            f"{where} {', '.join(unknown[:5])}{more}, which the tasks do not have"
        )
