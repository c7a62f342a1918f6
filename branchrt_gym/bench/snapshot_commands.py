"""The commands `branchrt bench snapshots` and `branchrt bench sb3`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from branchrt_gym.bench.terminal import (
    FAILED,
    Evidence,
    Repetitions,
    command_line,
    console,
    errors,
    progress,
)

__all__ = ["bench_sb3", "bench_snapshots"]


def bench_snapshots(
    env: Annotated[
        list[str] | None,
        typer.Option(help="An id out of the bench's; may be given again.  [default: all]"),
    ] = None,
    points: Annotated[int, typer.Option(help="Moments to compare copies at.", min=1)] = 10,
    steps: Annotated[int, typer.Option(help="Steps to follow each.", min=1)] = 200,
    branches: Annotated[
        int, typer.Option(help="Living branches, whose memory is measured; 0 for none.", min=0)
    ] = 1000,
    seeds: Annotated[int, typer.Option(help="Episodes to copy.", min=1)] = 3,
    repetitions: Repetitions = 20,
    out: Evidence = None,
) -> None:
    """Copy Gymnasium environments by BranchWrapper and by copy.deepcopy, by turns."""
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.snapshot_cases import CASES
    from branchrt_gym.bench.snapshots import SnapshotSizes, compare_snapshots
    from branchrt_gym.bench.snapshots_report import snapshots_table
    from branchrt_gym.errors import MissingExtraError

    screen, equal = console(), True
    with errors():
        unknown = [name for name in env or () if name not in CASES]
        if unknown:
            raise ValueError(f"`--env` is {unknown[0]}; expected one of {', '.join(CASES)}")
        for name in env or CASES:
            case = CASES[name]
            if case.missing:
                why = escape(str(MissingExtraError(case.extra, case.package)))
                screen.print(f"{name} is left out: {why}", soft_wrap=True)
                continue
            sizes = SnapshotSizes(points, steps, branches)
            command = command_line(
                "bench snapshots",
                env=name,
                **asdict(sizes),
                seeds=seeds,
                repetitions=repetitions,
            )
            before = provenance(command)
            with progress() as show:
                found = compare_snapshots(
                    case, sizes, repetitions=repetitions, seeds=seeds, progress=show
                )
            if out is not None:
                append_row(out, {**before, **found.row()})
            screen.print(snapshots_table(found))
            if found.first:
                screen.print(f"No figure is given. First: {escape(found.first)}.", soft_wrap=True)
            equal &= found.equal
    if not equal:
        raise typer.Exit(FAILED)


def bench_sb3(
    env: Annotated[str, typer.Option(help="An id of Gymnasium.")] = "CartPole-v1",
    rows: Annotated[int, typer.Option(help="Episodes at a time.", min=1)] = 8,
    steps: Annotated[int, typer.Option(help="Transitions to train for.", min=1)] = 100_000,
    repetitions: Repetitions = 5,
    out: Evidence = None,
) -> None:
    """Train PPO through BranchingVecEnv and through Stable-Baselines3's DummyVecEnv, by turns."""
    from branchrt_gym.bench.ppo import PPOSizes, compare_ppo
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.bench.snapshots_report import ppo_table

    sizes = PPOSizes(env, rows, steps)
    with errors():
        before = provenance(
            command_line("bench sb3", env=env, rows=rows, steps=steps, repetitions=repetitions)
        )
        with progress() as show:
            found = compare_ppo(sizes, repetitions=repetitions, progress=show)
        if out is not None:
            append_row(out, {**before, **found.row()})
    console().print(ppo_table(found))
    if not found.equal:
        raise typer.Exit(FAILED)
