"""The commands `branchrt bench …`. What a command needs is imported inside it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from branchrt_gym.bench.blackjack_command import bench_blackjack
from branchrt_gym.bench.capacity_commands import bench_beams, bench_capacity
from branchrt_gym.bench.evaluation_commands import bench_decisions, bench_journal
from branchrt_gym.bench.live_command import bench_live
from branchrt_gym.bench.shell_command import bench_shell
from branchrt_gym.bench.snapshot_commands import bench_sb3, bench_snapshots
from branchrt_gym.bench.terminal import (
    FAILED,
    BeamWidth,
    Depth,
    Device,
    Evidence,
    Fanout,
    Repetitions,
    Width,
    command_line,
    console,
    errors,
    progress,
)

if TYPE_CHECKING:
    from branchrt_gym.bench.deep_tree import Sizes

__all__ = ["bench"]

DEEP_TREE = "branchrt/DeepTree-v0"
CUDA_ROOTS = [64, 128, 256, 512, 1024]

bench = typer.Typer(help="Check for equality, then measure.", no_args_is_help=True)
bench.command("capacity")(bench_capacity)
bench.command("beams")(bench_beams)
bench.command("blackjack")(bench_blackjack)
bench.command("decisions")(bench_decisions)
bench.command("journal")(bench_journal)
bench.command("snapshots")(bench_snapshots)
bench.command("sb3")(bench_sb3)
bench.command("live")(bench_live)
bench.command("shell")(bench_shell)


@bench.command("deep-tree")
def bench_deep_tree(
    roots: Annotated[
        list[int] | None,
        typer.Option(
            help="Roots, a context each; may be given again.  [default: 128; on CUDA 64 … 1,024]",
            min=1,
        ),
    ] = None,
    width: Width = 262_144,
    beam: BeamWidth = 8,
    fanout: Fanout = 4,
    depth: Depth = 64,
    repetitions: Annotated[
        int | None,
        typer.Option(
            help="Timed repetitions, by turns.  [default: 7; on CUDA 20 for each seed]", min=1
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="On CUDA: sets of roots.", min=1)] = 3,
    seconds: Annotated[
        float, typer.Option(help="On the CPU: one run of the batcher, at most.")
    ] = 60.0,
    device: Device = "cpu",
    out: Evidence = None,
    plot: Annotated[
        Path | None, typer.Option(help="On CUDA: draw the times against roots into this PNG.")
    ] = None,
) -> None:
    """Search DeepTree on the shared frontier and by a general batcher, by turns.

    On a CUDA device: in all tiers, by batchers, a kernel written by hand and what experts write.
    """
    from branchrt_gym.bench.deep_tree import Sizes

    cuda = device.partition(":")[0] == "cuda"
    counts = roots or (CUDA_ROOTS if cuda else [128])
    each = [Sizes(count, width, beam, fanout, depth) for count in counts]
    with errors():
        if plot is not None and not cuda:
            raise ValueError(f"`--plot` is {plot}; expected with a CUDA device, which is drawn")
        if cuda:
            equal = _compare_forms(each, seeds, repetitions or 20, device, out, plot)
        else:
            pairs = [_compare_pair(sizes, repetitions or 7, device, seconds, out) for sizes in each]
            equal = all(pairs)
    if not equal:
        raise typer.Exit(FAILED)


def _compare_pair(
    sizes: Sizes, repetitions: int, device: str, seconds: float, out: Path | None
) -> bool:
    """Compares search and batcher; returns whether they are equal."""
    from branchrt_gym.bench.deep_tree import compare_deep_tree
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.report import deep_tree_table, notes

    command = command_line(
        "bench deep-tree", **asdict(sizes), repetitions=repetitions, device=device
    )
    before = provenance(command, device)
    with progress() as show:
        comparison = compare_deep_tree(
            sizes, repetitions=repetitions, device=device, seconds=seconds, progress=show
        )
    if out is not None:
        append_row(out, {**before, **comparison.row()})
    screen = console()
    screen.print(deep_tree_table(comparison))
    for line in notes(comparison):
        screen.print(escape(line))
    return comparison.equal


def _compare_forms(
    each: list[Sizes],
    seeds: int,
    repetitions: int,
    device: str,
    out: Path | None,
    plot: Path | None,
) -> bool:
    """Compares all forms at each size; returns whether they are equal."""
    from branchrt_gym.bench.deep_tree_gpu import compare_forms
    from branchrt_gym.bench.forms_report import draw_forms, forms_notes, forms_table
    from branchrt_gym.bench.record import append_row, plain, provenance
    from branchrt_gym.frontier import check_device

    check_device(device)
    screen, rows, equal = console(), [], True
    for sizes in each:
        command = command_line(
            "bench deep-tree",
            **asdict(sizes),
            repetitions=repetitions,
            seeds=seeds,
            device=device,
        )
        before = provenance(command, device)
        with progress() as show:
            comparison = compare_forms(
                sizes, seeds=seeds, repetitions=repetitions, device=device, progress=show
            )
        rows.append(plain({**before, **comparison.row()}))
        if out is not None:
            append_row(out, rows[-1])
        screen.print(forms_table(rows[-1]))
        for line in forms_notes(rows[-1]):
            screen.print(escape(line))
        equal &= comparison.equal
    if plot is not None and equal:
        draw_forms(rows, plot)
        screen.print(f"Picture: [bold]{escape(str(plot))}[/]", soft_wrap=True)
    return equal


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
    device: Device = "cpu",
    out: Evidence = None,
) -> None:
    """Step a population, and Gymnasium's SyncVectorEnv of scalar oracles, by turns.

    DeepTree: a frontier forked full, within an episode. Blackjack: a root in each slot, restarts
    included; with --device cuda its fused steps, by the device's time and the host's.
    """
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.report import device_steps_table, step_table
    from branchrt_gym.bench.step import HandSizes, StepComparison, StepSizes, compare_step
    from branchrt_gym.bench.step_gpu import DeviceSteps, measure_steps

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
        stated = {"env": env, **given, "repetitions": repetitions}
        comparison: StepComparison | DeviceSteps
        if device == "cpu":
            before = provenance(command_line("bench step", **stated))
            with progress() as show:
                comparison = compare_step(sizes, repetitions=repetitions, progress=show)
            table = step_table(comparison)
        elif isinstance(sizes, HandSizes):
            before = provenance(command_line("bench step", **stated, device=device), device)
            with progress() as show:
                comparison = measure_steps(
                    sizes, repetitions=repetitions, device=device, progress=show
                )
            table = device_steps_table(comparison)
        else:
            raise ValueError(f"`--env` is {env!r}; on a device the bench steps {HandSizes.env}")
        if out is not None:
            append_row(out, {**before, **comparison.row()})
    screen = console()
    screen.print(table)
    if comparison.first:
        screen.print(f"The results differ, so no rate is given. First: {comparison.first}.")
    if not comparison.equal:
        raise typer.Exit(FAILED)


@bench.command("expand")
def bench_expand(
    parents: Annotated[int, typer.Option(help="Branches to expand.", min=1)] = 1 << 22,
    roots: Annotated[int, typer.Option(help="Their roots, a context each.", min=1)] = 128,
    width: Width = 262_144,
    fanout: Fanout = 4,
    order: Annotated[
        str, typer.Option(help="A root's branches grouped, or all roots' mixed.")
    ] = "grouped",
    repetitions: Repetitions = 20,
    device: Device = "cuda",
    out: Evidence = None,
) -> None:
    """Expand every branch of a DeepTree frontier by every action in one call, and keep all."""
    from branchrt_gym.bench.expand import measure_expand
    from branchrt_gym.bench.expand_forms import ExpandSizes
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.report import expand_table

    with errors():
        sizes = ExpandSizes(parents, roots, width, fanout, order)
        command = command_line(
            "bench expand", **asdict(sizes), repetitions=repetitions, device=device
        )
        before = provenance(command, device)
        with progress() as show:
            times = measure_expand(sizes, repetitions=repetitions, device=device, progress=show)
        if out is not None:
            append_row(out, {**before, **times.row()})
    screen = console()
    screen.print(expand_table(times))
    if times.first:
        screen.print(f"The results differ, so no rate is given. First: {times.first}.")
    if not times.equal:
        raise typer.Exit(FAILED)


@bench.command("transcripts")
def bench_transcripts(
    trajectories: Annotated[int, typer.Option(help="Trajectories of all roots.", min=1)] = 1000,
    roots: Annotated[
        list[int] | None,
        typer.Option(help="Roots; may be given again.  [default: 1, 16]", min=1),
    ] = None,
    shared_turns: Annotated[
        int, typer.Option(help="First turns, shared by the trajectories of a root.", min=0)
    ] = 12,
    own_turns: Annotated[int, typer.Option(help="Turns of each after them.", min=1)] = 4,
    tokens: Annotated[int, typer.Option(help="Tokens of a turn, at most.", min=1)] = 256,
    least: Annotated[int, typer.Option(help="Tokens of a turn, at least.", min=0)] = 1,
    seeds: Annotated[int, typer.Option(help="Sets of turns.", min=1)] = 5,
    repetitions: Repetitions = 11,
    out: Evidence = None,
) -> None:
    """Keep trajectories that share turns in a lineage, and as copies; export padded batches."""
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.transcript_stores import TranscriptSizes
    from branchrt_gym.bench.transcripts import compare_transcripts, transcripts_table

    screen, equal = console(), True
    with errors():
        for sizes in [
            TranscriptSizes(trajectories, count, shared_turns, own_turns, tokens, least)
            for count in roots or (1, 16)
        ]:
            command = command_line(
                "bench transcripts", **asdict(sizes), seeds=seeds, repetitions=repetitions
            )
            before = provenance(command)
            with progress() as show:
                found = compare_transcripts(
                    sizes, seeds=seeds, repetitions=repetitions, progress=show
                )
            if out is not None:
                append_row(out, {**before, **found.row()})
            screen.print(transcripts_table(found))
            if found.figures:
                screen.print(f"What keeps it from more: {found.figures.note}.")
            if found.first:
                screen.print(f"The batches differ, so no figure is given. First: {found.first}.")
            equal &= found.equal
    if not equal:
        raise typer.Exit(FAILED)
