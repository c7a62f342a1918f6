"""The commands `branchrt bench …`. What a command needs is imported inside it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from branchrt_gym.bench.terminal import (
    FAILED,
    BeamWidth,
    Depth,
    Device,
    Evidence,
    Fanout,
    Repetitions,
    Roots,
    Width,
    command_line,
    console,
    errors,
    progress,
)

__all__ = ["bench"]

bench = typer.Typer(help="Check for equality, then measure.", no_args_is_help=True)


@bench.command("deep-tree")
def bench_deep_tree(
    roots: Roots = 128,
    width: Width = 262_144,
    beam: BeamWidth = 8,
    fanout: Fanout = 4,
    depth: Depth = 64,
    repetitions: Repetitions = 7,
    seconds: Annotated[float, typer.Option(help="One run of the batcher, at most.")] = 60.0,
    device: Device = "cpu",
    out: Evidence = None,
) -> None:
    """Search DeepTree on the shared frontier and by a general batcher, by turns."""
    from branchrt_gym.bench.deep_tree import Sizes, compare_deep_tree
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.report import deep_tree_table, notes

    given = {"roots": roots, "width": width, "beam": beam, "fanout": fanout, "depth": depth}
    command = command_line("bench deep-tree", **given, repetitions=repetitions, device=device)
    with errors():
        before = provenance(command, device)
        with progress() as show:
            comparison = compare_deep_tree(
                Sizes(**given),
                repetitions=repetitions,
                device=device,
                seconds=seconds,
                progress=show,
            )
        if out is not None:
            append_row(out, {**before, **comparison.row()})
    screen = console()
    screen.print(deep_tree_table(comparison))
    for line in notes(comparison):
        screen.print(escape(line))
    if not comparison.equal:
        raise typer.Exit(FAILED)


@bench.command("step")
def bench_step(
    slots: Annotated[int, typer.Option(help="Slots, forked full.", min=1)] = 4096,
    roots: Annotated[int, typer.Option(help="Roots, and oracles.", min=1)] = 16,
    width: Width = 262_144,
    depth: Annotated[int, typer.Option(help="Steps of an episode.", min=2)] = 64,
    repetitions: Repetitions = 11,
    out: Evidence = None,
) -> None:
    """Step a frontier forked full, and Gymnasium's SyncVectorEnv of oracles, by turns."""
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.report import step_table
    from branchrt_gym.bench.step import StepSizes, compare_step

    given = {"slots": slots, "roots": roots, "width": width, "depth": depth}
    command = command_line("bench step", **given, repetitions=repetitions)
    with errors():
        before = provenance(command)
        with progress() as show:
            comparison = compare_step(StepSizes(**given), repetitions=repetitions, progress=show)
        if out is not None:
            append_row(out, {**before, **comparison.row()})
    screen = console()
    screen.print(step_table(comparison))
    if comparison.first:
        screen.print(f"The results differ, so no rate is given. First: {comparison.first}.")
    if not comparison.equal:
        raise typer.Exit(FAILED)
