"""What the commands share: where they print, how they show progress and callers' mistakes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from branchrt_gym.errors import BranchRTError

__all__ = [
    "FAILED",
    "MISUSED",
    "BeamWidth",
    "Depth",
    "Device",
    "Evidence",
    "Fanout",
    "Repetitions",
    "Roots",
    "Width",
    "command_line",
    "console",
    "errors",
    "progress",
]

FAILED, MISUSED = 1, 2  # exit codes: a difference was found, or the call was wrong

Device = Annotated[str, typer.Option(help="Torch device: cpu, cuda, cuda:1, …")]
Roots = Annotated[int, typer.Option(help="Roots, a context each.", min=1)]
Width = Annotated[int, typer.Option(help="Entries of a context.", min=1)]
BeamWidth = Annotated[int, typer.Option("--beam", help="Branches kept per root.", min=1)]
Fanout = Annotated[int, typer.Option(help="Actions of a branch.", min=1)]
Depth = Annotated[int, typer.Option(help="Levels.", min=1)]
Evidence = Annotated[Path | None, typer.Option(help="Append a row to this JSON lines file.")]
Repetitions = Annotated[int, typer.Option(help="Timed repetitions, by turns.", min=1)]


def console() -> Console:
    """Returns a console on `sys.stdout` as it is now; a pipe or a log is given wide lines."""
    return Console(width=None if sys.stdout.isatty() else 130)


@contextmanager
def errors() -> Iterator[None]:
    """Shows errors that a caller can mend as one line, without a traceback."""
    try:
        yield
    except (BranchRTError, ValueError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(MISUSED) from error


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar; yields what a measurement calls with its stage, the stages done, and all."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # No thread of its own: it would take a core from what is being measured.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, auto_refresh=False
    ) as bar:
        task = bar.add_task("", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=escape(stage[:64]), completed=done, total=total)
            bar.refresh()

        yield show


def command_line(name: str, *arguments: object, **options: object) -> str:
    """Writes a command as it could be typed again, defaults included; None is left out."""
    words = [f"branchrt {name}", *map(str, arguments)]
    for option, value in options.items():
        if value is not None:
            words.append(f"--{option.replace('_', '-')} {value}")
    return " ".join(words)
