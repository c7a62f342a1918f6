"""The command `branchrt eval swebench`: predictions graded in containers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from branchrt_gym.bench.terminal import FAILED, console, errors

if TYPE_CHECKING:
    from branchrt_gym.evaluation.docker.swebench_files import Predictions
    from branchrt_gym.evaluation.docker.swebench_plan import SweBenchPlan
    from branchrt_gym.evaluation.docker.swebench_reports import AttemptFiles
    from branchrt_gym.evaluation.result import EvalResult

__all__ = ["eval_swebench"]

ORDERS = ("manifest_order", "nonempty_patch_first", "low_empty_first")
KINDS = ("resolved", "unresolved", "empty_patch", "error", "incomplete")
MIB = 1 << 20


def eval_swebench(
    tasks: Annotated[Path, typer.Option(help="Rows of swebench 5.x, a .json or .jsonl.")],
    predictions: Annotated[
        list[Path], typer.Option(help="One model's predictions; more files may follow.")
    ],
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[PREDICTIONS]...", show_default=False)
    ] = None,
    run_id: Annotated[str, typer.Option(help="Names the run in its files.")] = "branchrt",
    out: Annotated[Path, typer.Option(help="Folder of logs/run_evaluation and reports.")] = Path(),
    every: Annotated[
        bool, typer.Option("--all", help="Run every prediction, also of instances that are solved.")
    ] = False,
    order: Annotated[
        str, typer.Option(help=f"Which model goes first: {', '.join(ORDERS)}.")
    ] = ORDERS[0],
    needed: Annotated[int, typer.Option(help="Models that must resolve an instance.", min=1)] = 1,
    instance: Annotated[
        list[str] | None, typer.Option(help="Only this instance; may be given again.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Containers at work at once.", min=1)] = 4,
    warm: Annotated[int, typer.Option(help="Containers kept ready beyond these.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="An evaluation may take.", min=1)] = 1800.0,
    retries: Annotated[int, typer.Option(help="Tries after failures of the engine.", min=0)] = 2,
    journal: Annotated[
        Path | None, typer.Option(help="Keeps each verdict, so that a run that died goes on.")
    ] = None,
    grading: Annotated[
        str, typer.Option(help="Whose code grades: swebench, own, or auto, the first there is.")
    ] = "auto",
    memory: Annotated[int, typer.Option(help="MiB of a container, files in memory too.")] = 1024,
    work: Annotated[int, typer.Option(help="MiB of /testbed, while the root is read-only.")] = 512,
    cpus: Annotated[float, typer.Option(help="Processors of a container.")] = 1.0,
    pids: Annotated[int, typer.Option(help="Processes of a container.")] = 256,
    user: Annotated[
        str, typer.Option(help='User in containers, "uid:gid"; "image" for its own, often root.')
    ] = "1000:1000",
    writable: Annotated[
        bool, typer.Option("--writable", help="A root that can be written to, on the host's disk.")
    ] = False,
    network: Annotated[str, typer.Option(help="Docker's name of a network.")] = "none",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Apply predictions to their instances in containers and grade them as swebench 5.x does.

    An instance that a model has resolved is not run for the others. Images must be in the engine.
    Those that SWE-bench publishes expect to be root and to write: --user image --writable.
    """
    from branchrt_gym.evaluation import orderings
    from branchrt_gym.evaluation.docker.grading import find_grader
    from branchrt_gym.evaluation.docker.limits import Limits
    from branchrt_gym.evaluation.docker.swebench import SweBenchVerifier
    from branchrt_gym.evaluation.docker.swebench_plan import read_plan
    from branchrt_gym.evaluation.docker.swebench_reports import AttemptFiles
    from branchrt_gym.evaluation.eval_frontier import EvalFrontier

    with errors():
        if order not in ORDERS:
            raise ValueError(f"`--order` is {order!r}; expected one of {', '.join(ORDERS)}")
        if every and needed != 1:
            raise ValueError("`--all` runs everything; expected no `--needed` with it")
        limits = Limits(
            memory=memory * MIB,
            work=work * MIB,
            cpus=cpus,
            pids=pids,
            user=None if user == "image" else user,
            read_only=not writable,
            network=network,
        )
        grader = find_grader(grading)
        plan, models = read_plan(tasks, [*predictions, *(more or [])], grader, instance or ())
        files = AttemptFiles(out, run_id)
        _check_new(files, run_id, journal)
        attempts = plan.apart() if every else plan
        ordering = orderings.manifest_order if every else getattr(orderings, order)
        with SweBenchVerifier(
            attempts.tasks,
            attempts.predictions,
            out=out,
            run_id=run_id,
            grader=grader,
            limits=limits,
            seconds=seconds,
            workers=workers,
            warm=warm,
            retries=retries,
        ) as verifier:
            files.begin(tasks)
            result = EvalFrontier(
                attempts.names,
                attempts.models,
                verifier,
                ordering=ordering,
                table=attempts.table,
                needed=needed,
                mode="async",
                retries=1,  # the verifier has tried several times
                journal=journal,
                content=attempts.content,
                progress=not as_json,
            ).run()
        report = _report(plan, models, files, result, every)
    report = {"run_id": run_id, "grading": grader.name, **report}
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(report)
    if report["without_verdict"]:
        raise typer.Exit(FAILED)


def _check_new(files: AttemptFiles, run_id: str, journal: Path | None) -> None:
    """Refuses to mix the files of two runs."""
    if "/" in run_id or run_id in ("", ".", ".."):
        raise ValueError(f"`--run-id` is {run_id!r}; expected a name for files")
    if files.root.exists() and not (journal is not None and journal.exists()):
        raise ValueError(
            f"`--run-id` is {run_id!r}, of which there are files in {files.root}; expected another "
            "name, or the `--journal` of that run to go on with it"
        )


def _report(
    plan: SweBenchPlan,
    models: list[Predictions],
    files: AttemptFiles,
    result: EvalResult,
    every: bool,
) -> dict[str, Any]:
    """Writes each model's summary; returns what they come to."""
    from branchrt_gym.evaluation.attempts import FAILED as FAILURE
    from branchrt_gym.evaluation.attempts import GIVEN_UP, PASSED
    from branchrt_gym.evaluation.docker.swebench_reports import write_summary

    candidates, lost, solved = {}, [], set()
    statuses = iter(result.status.ravel().tolist())
    said: dict[str, list[str]] = {each.model: [] for each in models}
    for name, row in zip(plan.names, plan.predictions, strict=True):
        for model, prediction in zip(plan.models, row, strict=True):
            if every and prediction is None:
                continue
            status = next(statuses)
            if status in (PASSED, FAILURE, GIVEN_UP):
                said[model].append(name)
            if status == GIVEN_UP:
                lost.append([name, model])
            if status == PASSED:
                solved.add(name)
    for each in models:
        skipped = set(plan.names) - set(said[each.model])
        path = write_summary(files, plan.names, each, skipped)
        found = json.loads(path.read_text())
        counts = {kind: found[f"{kind}_instances"] for kind in KINDS if kind != "incomplete"}
        counts["incomplete"] = len(found["incomplete_ids"])
        candidates[each.model] = {**counts, "report": str(path)}
    return {
        "instances": len(plan.names),
        "solved": len(solved) if every else int(result.solved.sum()),
        "attempts": result.attempts,
        "attempts_possible": int(plan.table.present.sum()),  # type: ignore[union-attr]
        "wall_seconds": result.wall,
        "verifier_seconds": result.seconds,
        "infrastructure_failures": result.infrastructure,
        "causes": result.causes,
        "without_verdict": lost,
        "candidates": candidates,
    }


def _print(report: dict[str, Any]) -> None:
    screen = console()
    table = Table(title=f"Run {report['run_id']}", title_justify="left", title_style="bold")
    table.add_column("model")
    for kind in KINDS:
        table.add_column(kind.replace("_", " "), justify="right")
    for model, found in report["candidates"].items():
        table.add_row(escape(model), *(f"{found[kind]:,}" for kind in KINDS))
    screen.print(table)
    screen.print(
        f"{report['solved']:,} of {report['instances']:,} instances resolved in "
        f"{report['attempts']:,} of {report['attempts_possible']:,} attempts, "
        f"{report['wall_seconds']:.1f} s; graded by {report['grading']}.",
        soft_wrap=True,
        highlight=False,
    )
    for cause, count in report["causes"].items():
        screen.print(f"[yellow]{count} ×[/] {escape(cause)}", soft_wrap=True, highlight=False)
    for name, model in report["without_verdict"]:
        screen.print(f"[red]no verdict:[/] {escape(name)} of {escape(model)}", highlight=False)
