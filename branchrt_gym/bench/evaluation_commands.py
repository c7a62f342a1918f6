"""The commands `branchrt bench decisions` and `branchrt bench journal`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from branchrt_gym.bench.terminal import (
    FAILED,
    Device,
    Evidence,
    Repetitions,
    command_line,
    console,
    errors,
    progress,
)

__all__ = ["bench_decisions", "bench_journal"]

ROOTS = {"cpu": [1, 8, 32, 63, 64, 100, 500, 4096, 64_000], "cuda": [64_000, 1_000_000]}


def bench_decisions(
    roots: Annotated[
        list[int] | None,
        typer.Option(
            help="Roots; may be given again. (Default: 1 … 64,000; on CUDA to 1,000,000.)", min=1
        ),
    ] = None,
    candidates: Annotated[int, typer.Option(help="Candidates of each root.", min=1)] = 7,
    pass_share: Annotated[
        float, typer.Option(help="Chance of an attempt to pass.", min=0.0, max=1.0)
    ] = 0.35,
    target: Annotated[float, typer.Option(help="Share of the roots to solve.")] = 0.8,
    needed: Annotated[int, typer.Option(help="Passes that solve a root.", min=1)] = 1,
    costs: Annotated[bool, typer.Option(help="Verdicts with a cost and seconds.")] = False,
    seeds: Annotated[int, typer.Option(help="Tables of verdicts.", min=1)] = 3,
    repetitions: Repetitions = 20,
    device: Device = "cpu",
    out: Evidence = None,
) -> None:
    """Decide whole runs, wave by wave, vectorised and in a plain loop, by turns."""
    from branchrt_gym.bench.decisions import DecisionSizes, decisions_table, measure_decisions
    from branchrt_gym.bench.record import append_row, provenance

    screen, rows = console(), []
    with errors():
        for count in roots or ROOTS[device.partition(":")[0]]:
            sizes = DecisionSizes(count, candidates, pass_share, target, needed, costs)
            options = {**asdict(sizes), "seeds": seeds, "repetitions": repetitions}
            del options["costs"]
            command = command_line("bench decisions", **options, device=device)
            before = provenance(command + " --costs" * costs, device)
            with progress() as show:
                found = measure_decisions(
                    sizes, seeds=seeds, repetitions=repetitions, device=device, progress=show
                )
            if out is not None:
                append_row(out, {**before, **found.row()})
            rows.append(found)
    screen.print(decisions_table(rows))
    for found in rows:
        if found.first:
            screen.print(f"Decisions differ, so no time is given. First: {found.first}.")
    if not all(found.equal for found in rows):
        raise typer.Exit(FAILED)


def bench_journal(
    attempts: Annotated[int, typer.Option(help="Attempts of a run.", min=1)] = 1_000_000,
    candidates: Annotated[int, typer.Option(help="Candidates of each root.", min=1)] = 8,
    batch: Annotated[int, typer.Option(help="Attempts of a call, 100 at most.", min=1)] = 100,
    apart: Annotated[bool, typer.Option(help="Verdicts and issues in a call each.")] = False,
    repetitions: Repetitions = 3,
    folder: Annotated[
        Path | None, typer.Option(help="On which disk. (Default: that of temporary files.)")
    ] = None,
    out: Evidence = None,
) -> None:
    """Write runs to the journal, every issue and commit synced, and read one back."""
    from branchrt_gym.bench.journal import JournalSizes, journal_table, measure_journal
    from branchrt_gym.bench.record import append_row, provenance

    with errors():
        sizes = JournalSizes(attempts, candidates, batch, apart)
        options = {name: value for name, value in asdict(sizes).items() if name != "apart"}
        command = command_line("bench journal", **options, repetitions=repetitions)
        before = provenance(command + " --apart" * apart)
        with progress() as show:
            found = measure_journal(sizes, repetitions=repetitions, folder=folder, progress=show)
        if out is not None:
            append_row(out, {**before, **found.row()})
    console().print(journal_table(found))
    if not found.equal:
        raise typer.Exit(FAILED)
