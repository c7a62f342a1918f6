"""Live workers: two roots, two candidates each, run all or as controllers decide, in containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.live_runs import FORMS, NONEMPTY, RUN_ALL, LiveRun, Watched, measure
from branchrt_gym.bench.measure import Summary, summarize
from branchrt_gym.evaluation.docker.grading import find_grader
from branchrt_gym.evaluation.docker.limits import Limits
from branchrt_gym.evaluation.docker.swebench import SweBenchVerifier
from branchrt_gym.evaluation.docker.swebench_plan import SweBenchPlan, read_plan

__all__ = ["LiveComparison", "compare_live", "live_table"]


@dataclass
class LiveForm:
    """What the runs of one controller come to; see `LiveRun`."""

    calls: int
    seconds: Summary
    overhead_ms: Summary
    infrastructure_failures: int


@dataclass
class LiveComparison:
    """Controllers of live verifier calls, by turns.

    Attributes:
        roots, candidates: How many there are.
        settings: What else the figures depend on.
        forms: Of each controller its figures; none if anything differs.
        mismatches: Calls, verdicts and solved roots that are not those of a plain loop over the
            verdicts of running all.
        first: The first of them, in words.
    """

    roots: int
    candidates: int
    settings: dict[str, Any]
    forms: dict[str, LiveForm] = field(default_factory=dict)
    mismatches: int = 0
    first: str = ""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.mismatches

    def row(self) -> dict[str, Any]:
        """Returns the figures as plain values."""
        return {"bench": "live", **asdict(self)}


def compare_live(
    tasks: Path,
    predictions: Sequence[Path],
    *,
    repetitions: int = 5,
    workers: int = 2,
    warm: int = 0,
    seconds: float = 1800.0,
    limits: Limits | None = None,
    client: Any = None,
    progress: Progress = lambda stage, done, total: None,
) -> LiveComparison:
    """Runs each controller by turns against the same tasks and patches, in containers.

    Empty patches are run like others: which of them are worth a call is the ordering's business.

    Args:
        tasks: See `read_tasks`.
        predictions: See `read_predictions`.
        repetitions: Runs of each controller.
        workers: Containers at work at once.
        warm: Containers kept ready beyond these.
        seconds: What an evaluation may take.
        limits: What a container may do.
        client: The Docker SDK's; from the environment if None.
        progress: Called with the stage, the stages done, and all.
    """
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    grader = find_grader("own")
    plan, _ = read_plan(tasks, predictions, grader)
    settings = {"workers": workers, "warm": warm, "repetitions": repetitions}
    comparison = LiveComparison(len(plan.tasks), len(plan.models), settings)
    runs: dict[str, list[LiveRun]] = {name: [] for name in FORMS}
    total = repetitions * len(FORMS)
    with SweBenchVerifier(
        plan.tasks,
        plan.predictions,
        grader=grader,
        seconds=seconds,
        limits=limits,
        workers=workers,
        warm=warm,
        run_empty=True,
        client=client,
    ) as verifier:
        for repetition in range(repetitions):
            for place, (name, form) in enumerate(FORMS.items()):
                progress(name, repetition * len(FORMS) + place, total)
                runs[name].append(measure(form, plan, Watched(verifier)))
    truth = runs[RUN_ALL][0].verdicts
    for name, found in runs.items():
        expected = _expected(plan, name, truth)
        for run in found:
            _compare(comparison, name, run, expected, truth)
    if comparison.equal:
        for name, found in runs.items():
            comparison.forms[name] = LiveForm(
                len(found[0].calls),
                summarize([run.seconds for run in found]),
                summarize([run.overhead for run in found]),
                sum(run.failures for run in found),
            )
    progress("Done", total, total)
    return comparison


def _expected(
    plan: SweBenchPlan, name: str, truth: dict[tuple[int, int], bool]
) -> tuple[set[tuple[int, int]], tuple[int, ...]]:
    """Returns the calls and solved roots that follow from all verdicts, root by root."""
    solved = tuple(sorted({root for (root, _), passed in truth.items() if passed}))
    if name == RUN_ALL:
        return set(truth), solved
    calls = set()
    for root, row in enumerate(plan.predictions):
        there = [(not each.patch, place) for place, each in enumerate(row) if each is not None]
        for _, candidate in sorted(there) if name.endswith(NONEMPTY) else there:
            calls.add((root, candidate))
            if truth[root, candidate]:
                break
    return calls, solved


def _compare(
    comparison: LiveComparison,
    name: str,
    run: LiveRun,
    expected: tuple[set[tuple[int, int]], tuple[int, ...]],
    truth: dict[tuple[int, int], bool],
) -> None:
    calls, solved = expected
    wrong = [pair for pair, passed in run.verdicts.items() if truth.get(pair) != passed]
    differing: dict[str, set[Any]] = {
        "calls": set(run.calls) ^ calls,
        "verdicts": set(wrong),
        "solved roots": set(run.solved) ^ set(solved),
    }
    for what, found in differing.items():
        comparison.mismatches += len(found)
        if found and not comparison.first:
            comparison.first = f"{what} of {name}: {sorted(found)}"


def live_table(found: LiveComparison) -> Table:
    """Returns the comparison as a table."""
    title = f"{found.roots} roots × {found.candidates} candidates, live in containers"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("controller")
    for column in ("calls", "wall, s", "overhead, ms", "most, ms"):
        table.add_column(column, justify="right")
    for name, form in found.forms.items():
        table.add_row(
            name,
            f"{form.calls}",
            f"{form.seconds.median:.2f}",
            "–" if name == RUN_ALL else f"{form.overhead_ms.median:.3f}",
            "–" if name == RUN_ALL else f"{form.overhead_ms.most:.3f}",
        )
    table.caption = f"mismatches: {found.mismatches}"
    return table
