"""The commands `branchrt bench capacity` and `branchrt bench beams`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from branchrt_gym.bench.terminal import (
    FAILED,
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

if TYPE_CHECKING:
    from branchrt_gym.bench.capacity_figures import CapacitySizes

__all__ = ["bench_beams", "bench_capacity"]

GIB = 1 << 30
STEP = "step"
FANOUTS = [4, 8, 16, 64]
MUTATIONS = {"cpu": [5, 100], "cuda": [0, 5, 20, 100]}
BUDGET = {"cpu": 0.25, "cuda": 8.0}
PEAK = {"cpu": 1, "cuda": 8}  # by how much more than the budget dense rows fill for the peak


def bench_capacity(
    width: Annotated[
        list[int] | None,
        typer.Option(help="Entries of a context; may be given again. (Default: 262,144.)", min=1),
    ] = None,
    fanout: Annotated[
        list[int] | None,
        typer.Option(
            help="Branches of a context; may be given again. (Default: 4, 8, 16, 64.)", min=1
        ),
    ] = None,
    mutation: Annotated[
        list[int] | None,
        typer.Option(
            help="Percent of it that each branch overwrites; may be given again. "
            "(Default: 5, 100; on CUDA 0, 5, 20, 100.)",
            min=0,
            max=100,
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="GiB. (Default: 0.25; on CUDA 8.)", min=0.0)
    ] = None,
    peak_budget: Annotated[
        float | None,
        typer.Option(
            help="GiB of dense rows whose peak is measured. (Default: the budget; on CUDA 8 × it.)",
            min=0.0,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="capacity, peak, throughput, or step: forking and freeing a million large states; "
            "may be given again. (Default: the first three.)"
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="int16 or uint8.")] = "int16",
    page_size: Annotated[
        int | None, typer.Option(help="Entries of a page. (Default: by the width.)", min=1)
    ] = None,
    repetitions: Repetitions = 7,
    branches: Annotated[int, typer.Option(help="Of the method step.", min=2)] = 1 << 20,
    device: Device = "cpu",
    out: Evidence = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the multiples into this PNG.")] = None,
) -> None:
    """Hold as many branches as fit: a dense row for each, or what is shared once and pages.

    The number at which a budget runs out of memory, the peak memory of equal populations, and
    rounds of forks and mutations by turns. On the CPU memory is that of processes of their own.
    """
    from branchrt_gym.bench.capacity import METHODS
    from branchrt_gym.bench.capacity_figures import CapacitySizes
    from branchrt_gym.frontier import check_device

    methods = method or [*METHODS]
    with errors():
        kind = check_device(device).type
        shown = {"dtype": dtype, "page_size": page_size, "device": device}
        gib = BUDGET[kind] if budget is None else budget
        each = [
            CapacitySizes(
                entries,
                dtype,
                tuple(fanout or FANOUTS),
                tuple(mutation or MUTATIONS[kind]),
                int(GIB * gib),
                int(GIB * (PEAK[kind] * gib if peak_budget is None else peak_budget)),
                page_size,
            )
            for entries in (width or [262_144])
        ]
        rows, equal = [], True
        others = [name for name in methods if name != STEP]
        for sizes in each if others else ():
            words = [f"--method {name}" for name in others]
            words += [f"--fanout {value}" for value in sizes.fanouts]
            words += [f"--mutation {value}" for value in sizes.mutations]
            command = command_line(
                "bench capacity",
                f"--width {sizes.width}",
                *words,
                budget=f"{gib:g}",
                peak_budget=f"{(sizes.peak_budget or 0) / GIB:g}",
                repetitions=repetitions,
                **shown,
            )
            rows.append(_measure(sizes, others, repetitions, device, command, out))
            equal &= not rows[-1]["mismatches"]
        if STEP in methods:
            equal &= _step(branches, repetitions, device, out)
        if plot is not None and equal and rows:
            from branchrt_gym.bench.capacity_report import draw_capacity

            draw_capacity(rows, plot)
            console().print(f"Picture: [bold]{escape(str(plot))}[/]", soft_wrap=True)
    if not equal:
        raise typer.Exit(FAILED)


def _measure(
    sizes: CapacitySizes,
    methods: list[str],
    repetitions: int,
    device: str,
    command: str,
    out: Path | None,
) -> Mapping[str, Any]:
    """Measures one width; returns its row."""
    from branchrt_gym.bench.capacity import measure_capacity
    from branchrt_gym.bench.capacity_report import capacity_notes, capacity_table
    from branchrt_gym.bench.record import append_row, plain, provenance

    before = provenance(command, device)
    with progress() as show:
        capacity = measure_capacity(
            sizes, methods=methods, repetitions=repetitions, device=device, progress=show
        )
    row = plain({**before, **capacity.row()})
    if out is not None:
        append_row(out, row)
    screen = console()
    screen.print(capacity_table(row))
    for line in capacity_notes(row):
        screen.print(escape(line))
    return row


def _step(branches: int, repetitions: int, device: str, out: Path | None) -> bool:
    """Measures forks of very many pages; returns whether what they hold is right."""
    from branchrt_gym.bench.capacity_report import page_steps_table
    from branchrt_gym.bench.capacity_times import measure_page_steps
    from branchrt_gym.bench.record import append_row, plain, provenance

    command = command_line(
        "bench capacity", method=STEP, branches=branches, repetitions=repetitions, device=device
    )
    before = provenance(command, device)
    with progress() as show:
        steps = measure_page_steps(
            branches=branches, repetitions=repetitions, device=device, progress=show
        )
    row = plain({**before, **steps.row()})
    if out is not None:
        append_row(out, row)
    screen = console()
    screen.print(page_steps_table(row))
    if steps.first:
        screen.print(escape(f"The contents differ, so no time is given. First: {steps.first}."))
    return not steps.mismatches


def bench_beams(
    budget: Annotated[
        list[float] | None,
        typer.Option(help="MiB; may be given again. (Default: 8, 16, 32, 64, 128.)", min=0.0),
    ] = None,
    roots: Roots = 16,
    width: Width = 65_536,
    fanout: Fanout = 4,
    depth: Depth = 64,
    seeds: Annotated[int, typer.Option(help="Sets of roots.", min=1)] = 5,
    widest: Annotated[int, typer.Option(help="No beam is wider.", min=1)] = 8192,
    device: Device = "cpu",
    out: Evidence = None,
    plot: Annotated[Path | None, typer.Option(help="Draw what they find into this PNG.")] = None,
) -> None:
    """Search DeepTree with the widest beams that fit the same memory, dense and shared."""
    from branchrt_gym.bench.beams import BeamSizes, measure_beams
    from branchrt_gym.bench.beams_report import beams_notes, beams_table, draw_beams
    from branchrt_gym.bench.record import append_row, plain, provenance

    with errors():
        mib = tuple(sorted(budget or (8, 16, 32, 64, 128)))
        given = {"roots": roots, "width": width, "fanout": fanout, "depth": depth, "seeds": seeds}
        given["widest"] = widest
        sizes = BeamSizes(budgets=tuple(int(size * (1 << 20)) for size in mib), **given)
        command = command_line(
            "bench beams",
            *(f"--budget {size:g}" for size in mib),
            **given,
            device=device,
        )
        before = provenance(command, device)
        with progress() as show:
            figures = measure_beams(sizes, device=device, progress=show)
        row = plain({**before, **figures.row()})
        if out is not None:
            append_row(out, row)
        screen = console()
        screen.print(beams_table(row))
        for line in beams_notes(row):
            screen.print(escape(line))
        if plot is not None and not row["mismatches"]:
            draw_beams(row, plot)
            screen.print(f"Picture: [bold]{escape(str(plot))}[/]", soft_wrap=True)
    if figures.mismatches:
        raise typer.Exit(FAILED)
