"""The command `branchrt bench shell`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from branchrt_gym.bench.terminal import (
    FAILED,
    Evidence,
    Repetitions,
    command_line,
    console,
    errors,
    progress,
)

if TYPE_CHECKING:
    from branchrt_gym.bench.shell import ShellComparison

__all__ = ["bench_shell", "shell_table"]

MB = 10**6


def bench_shell(
    image: Annotated[
        str, typer.Option(help="An image of the engine, with bash, Python and pytest.")
    ],
    branches: Annotated[
        int, typer.Option(help="Branches of a repository, and independent containers.", min=1)
    ] = 32,
    ancestors: Annotated[
        int, typer.Option(help="Megabytes in layers below a session that forks.", min=1)
    ] = 100,
    child: Annotated[int, typer.Option(help="Megabytes that a child writes.", min=1)] = 1,
    modules: Annotated[int, typer.Option(help="Modules of the repository.", min=1)] = 200,
    fixtures: Annotated[int, typer.Option(help="Megabytes of its other files.", min=1)] = 40,
    repetitions: Repetitions = 10,
    out: Evidence = None,
) -> None:
    """Fork shell sessions in containers, and compare with containers that build the state each.

    The engine is the one that DOCKER_HOST names; it must be of this machine, and idle.
    """
    from dataclasses import asdict

    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.shell import ShellSizes, measure_shell

    sizes = ShellSizes(ancestors, child, branches, modules, fixtures)
    with errors():
        before = provenance(
            command_line("bench shell", image=image, **asdict(sizes), repetitions=repetitions)
        )
        with progress() as show:
            found = measure_shell(image, sizes, repetitions=repetitions, progress=show)
        if out is not None:
            append_row(out, {**before, **found.row()})
    console().print(shell_table(found))
    if not found.equal:
        raise typer.Exit(FAILED)


def shell_table(found: ShellComparison) -> Table:
    """Shows the figures; none where a branch differs from its replay."""
    sizes = found.sizes
    table = Table(title="Shell sessions that fork", title_justify="left", title_style="bold")
    for name in ("", "", ""):
        table.add_column(name, justify="right" if name else "left")
    forks, one, other = found.forks, found.branched, found.independent
    if forks and one and other:
        for label, value in (
            (f"first fork, {sizes.ancestors} MB committed, child started", forks.first_ms),
            ("a later fork", forks.commit_ms.interquartile_mean),
            ("start of a child", forks.start_ms.interquartile_mean),
        ):
            table.add_row(label, f"{value:,.0f} ms")
        table.add_row(
            f"new disk of a fork whose child writes {sizes.child} MB",
            f"{forks.new_bytes / MB:.2f} MB",
        )
        table.add_section()
        table.add_row(f"{sizes.branches} of a repository", "branches", "independent containers")
        table.add_row("seconds", f"{one.seconds:.1f}", f"{other.seconds:.1f}")
        for label in ("disk", "memory", "shims"):
            values = (f"{getattr(room, label) / MB:,.1f}" for room in (one, other))
            table.add_row(f"{label}, MB", *values)
        for label in ("disk", "memory"):
            each = [sizes.branches * 2**30 / room.takes(label) for room in (one, other)]
            times = f"[bold]{each[0]:,.0f}[/] ({each[0] / each[1]:.1f} times)"
            table.add_row(f"branches per GiB of {label}", times, f"{each[1]:,.0f}")
    style = "green" if found.equal else "bold red"
    table.add_row("differences from replay", f"[{style}]{found.mismatches}[/] of {found.compared}")
    return table
