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

DEEP_TREE = "branchrt/DeepTree-v0"

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
    env: Annotated[str, typer.Option(help="An id: DeepTree's or Blackjack's.")] = DEEP_TREE,
    slots: Annotated[int, typer.Option(help="Slots; DeepTree's are forked full.", min=1)] = 4096,
    roots: Annotated[
        int, typer.Option(help="Oracles, and roots of DeepTree; Blackjack has one a slot.", min=1)
    ] = 16,
    width: Annotated[int, typer.Option(help="DeepTree: entries of a context.", min=1)] = 262_144,
    depth: Annotated[int, typer.Option(help="DeepTree: steps of an episode.", min=2)] = 64,
    steps: Annotated[int, typer.Option(help="Blackjack: steps between resets.", min=1)] = 256,
    repetitions: Repetitions = 11,
    out: Evidence = None,
) -> None:
    """Step a population, and Gymnasium's SyncVectorEnv of scalar oracles, by turns.

    DeepTree: a frontier forked full, within an episode. Blackjack: a root in each slot, restarts
    included.
    """
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.report import step_table
    from branchrt_gym.bench.step import HandSizes, StepSizes, compare_step

    with errors():
        sizes: StepSizes | HandSizes
        if env == StepSizes.env:
            given = {"slots": slots, "roots": roots, "width": width, "depth": depth}
            sizes = StepSizes(slots, roots, width, depth)
        elif env == HandSizes.env:
            given = {"slots": slots, "roots": roots, "steps": steps}
            sizes = HandSizes(slots, roots, steps)
        else:
            raise ValueError(
                f"`--env` is {env!r}; expected {StepSizes.env} or {HandSizes.env}, which this "
                "bench knows how to step"
            )
        before = provenance(command_line("bench step", env=env, **given, repetitions=repetitions))
        with progress() as show:
            comparison = compare_step(sizes, repetitions=repetitions, progress=show)
        if out is not None:
            append_row(out, {**before, **comparison.row()})
    screen = console()
    screen.print(step_table(comparison))
    if comparison.first:
        screen.print(f"The results differ, so no rate is given. First: {comparison.first}.")
    if not comparison.equal:
        raise typer.Exit(FAILED)
