"""The commands `branchrt eval status` and `branchrt eval resume`, for journals of evaluations."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from branchrt_gym.bench.terminal import console, errors
from branchrt_gym.evaluation.docker.swebench_command import eval_swebench

if TYPE_CHECKING:
    from branchrt_gym.evaluation.journal_status import JournalStatus

__all__ = ["evaluation"]

evaluation = typer.Typer(help="Evaluations, and their journals.", no_args_is_help=True)
evaluation.command("swebench")(eval_swebench)

JournalPath = Annotated[Path, typer.Argument(help="The journal of a run.", metavar="JOURNAL")]


@evaluation.command()
def status(
    journal: JournalPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say where the last run of a journal stands, also while it is going on."""
    found = _read(journal)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        console().print(_table(journal, found))


@evaluation.command()
def resume(journal: JournalPath) -> None:
    """Run the command that began the last run of a journal again, in its folder: it goes on."""
    found = _read(journal)
    with errors():
        if not found.run:
            raise ValueError(f"`{journal}` has no run to go on with")
        if found.ended is not None:
            raise ValueError(f"`{journal}`: its last run is over ({found.ended}), nothing is left")
        command, folder = found.settings["command"], found.settings["folder"]
        console().print(f"In {escape(folder)}: {escape(shlex.join(command))}", soft_wrap=True)
        done = subprocess.run(command, cwd=folder, check=False)
    raise typer.Exit(done.returncode)


def _read(path: Path) -> JournalStatus:
    from branchrt_gym.evaluation.journal import Journal
    from branchrt_gym.evaluation.journal_status import journal_status

    with errors(), Journal(path, write=False) as journal:
        return journal_status(journal)


def _table(path: Path, found: JournalStatus) -> Table:
    settings = found.settings
    table = Table(title=f"Run {found.run} of {path}", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("", justify="right")
    if not found.run:
        return table
    roots, candidates, target = (
        settings[name] for name in ("num_tasks", "num_candidates", "target")
    )
    table.add_row("begun", found.begun)
    table.add_row("state", f"over: {found.ended}" if found.ended else "[yellow]not over[/]")
    table.add_row("roots × candidates", f"{roots:,} × {candidates:,}")
    table.add_row("ordering, mode", f"{settings['ordering']}, {settings['mode']}")
    wanted = f" of {target:,} wanted" if target else ""
    table.add_row("[bold]solved", f"[bold]{found.solved:,}[/]{wanted}")
    table.add_row("passed, failed", f"{found.passed:,}, {found.failed:,}")
    table.add_row("issued", f"{found.issued:,}, {found.again:,} of them again after a stop")
    table.add_row("without an answer", f"{found.in_flight:,}")
    table.add_row("infrastructure failures", f"{found.infrastructure:,}")
    table.add_row("cost", f"{found.cost:,.4f}")
    table.add_row("seconds of verifiers", f"{found.seconds:,.1f}")
    return table
