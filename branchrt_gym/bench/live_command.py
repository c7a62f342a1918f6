"""The command `branchrt bench live`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from branchrt_gym.bench.terminal import (
    FAILED,
    Evidence,
    Repetitions,
    command_line,
    console,
    errors,
    progress,
)

__all__ = ["bench_live"]


def bench_live(
    tasks: Annotated[Path, typer.Option(help="Rows of swebench 5.x, a .json or .jsonl.")],
    predictions: Annotated[
        list[Path], typer.Option(help="One model's predictions; more files may follow.")
    ],
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[PREDICTIONS]...", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option(help="Containers at work at once.", min=1)] = 2,
    warm: Annotated[int, typer.Option(help="Containers kept ready beyond these.", min=0)] = 0,
    repetitions: Repetitions = 5,
    out: Evidence = None,
) -> None:
    """Make live verifier calls: all of them, or as a plain loop or EvalFrontier decides.

    With an ordering by the manifest, and with one that puts empty patches last.
    """
    from branchrt_gym.bench.live import compare_live, live_table
    from branchrt_gym.bench.record import append_row, provenance

    with errors():
        files = [*predictions, *(more or [])]
        command = command_line(
            "bench live",
            tasks=tasks,
            predictions=" ".join(map(str, files)),
            workers=workers,
            warm=warm,
            repetitions=repetitions,
        )
        before = provenance(command)
        with progress() as show:
            found = compare_live(
                tasks, files, repetitions=repetitions, workers=workers, warm=warm, progress=show
            )
        if out is not None:
            append_row(out, {**before, **found.row()})
    console().print(live_table(found))
    if not found.equal:
        console().print(f"First difference: {found.first}.")
        raise typer.Exit(FAILED)
