"""The command `branchrt bench blackjack`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from branchrt_gym.bench.terminal import (
    FAILED,
    Device,
    Evidence,
    command_line,
    console,
    errors,
    progress,
)

if TYPE_CHECKING:
    from branchrt_gym.bench.blackjack_figures import BlackjackComparison, BlackjackSizes

__all__ = ["bench_blackjack", "blackjack_table"]

NONE = "–"
LABELS = {
    "run_all": "run everything",
    "host": "host controller",
    "frontier": "EvalFrontier, CPU",
    "frontier_gpu": "EvalFrontier, GPU",
}


def bench_blackjack(
    roots: Annotated[
        list[int] | None,
        typer.Option(
            help="Deals; may be given again.  [default: 32,768; of a server 512]",
            min=1,
        ),
    ] = None,
    candidates: Annotated[int, typer.Option(help="Rollouts of a deal, at most.", min=1)] = 8,
    target: Annotated[float, typer.Option(help="Share of the deals to be won.")] = 0.8,
    env: Annotated[
        str,
        typer.Option(
            help="gpu: branchrt/Blackjack-v0, batched, on the device; gymnasium: its "
            "BlackjackEnv.step(); nemo: NeMo Gym's server over HTTP."
        ),
    ] = "gpu",
    repetitions: Annotated[
        int | None, typer.Option(help="Runs of each, by turns.  [default: 7; of a server 1]", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the first deal.", min=0)] = 0,
    nemo_python: Annotated[
        str | None, typer.Option(help="A Python, 3.12 or later, that has nemo-gym.")
    ] = None,
    connections: Annotated[int, typer.Option(help="Hands at a time at a server.", min=1)] = 8,
    device: Device = "cpu",
    out: Evidence = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the last size's three layers over time into this PNG.")
    ] = None,
) -> None:
    """Win a share of Blackjack deals: every rollout, or only those of deals not yet won.

    By a plain loop on the host and by EvalFrontier, which decide the same; the layers that the
    time went to, and what a faster frontier can bring at most.
    """
    from branchrt_gym.bench.blackjack_eval import compare_blackjack
    from branchrt_gym.bench.blackjack_figures import BlackjackSizes
    from branchrt_gym.bench.blackjack_served import compare_served
    from branchrt_gym.bench.record import append_row, provenance
    from branchrt_gym.evaluation.timeline import draw_timeline
    from branchrt_gym.frontier import check_device

    served = env == "nemo"
    screen, equal = console(), True
    with errors():
        check_device(device)
        if served and nemo_python is None:
            raise ValueError(
                "`--env nemo` needs `--nemo-python`, a Python with nemo-gym: "
                "`uv venv --python 3.12 nemo`, then `uv pip install --python nemo nemo-gym`"
            )
        for count in roots or [512 if served else 32_768]:
            sizes = BlackjackSizes(count, candidates, target, env, seed)
            times = repetitions or (1 if served else 7)
            command = _command(sizes, times, device, connections)
            before = provenance(command, device)
            with progress() as show:
                if nemo_python is not None and served:
                    found = compare_served(
                        sizes,
                        nemo_python,
                        connections=connections,
                        repetitions=times,
                        progress=show,
                    )
                else:
                    found = compare_blackjack(
                        sizes, repetitions=times, device=device, progress=show
                    )
            if out is not None:
                append_row(out, {**before, **found.row()})
            screen.print(blackjack_table(found))
            for name, profile in found.profiles.items():
                screen.print(f"{LABELS[name]}: {profile}", highlight=False)
            for name, gain in found.gains.items():
                screen.print(f"{LABELS[name]}, over the host controller: {gain}", highlight=False)
            if found.first:
                screen.print(f"No time is given. The first difference: {escape(found.first)}.")
            equal &= found.equal
        if plot is not None and found.equal:
            draw_timeline({LABELS[name]: each for name, each in found.profiles.items()}, plot)
            screen.print(f"Picture: [bold]{escape(str(plot))}[/]", soft_wrap=True)
    if not equal:
        raise typer.Exit(FAILED)


def _command(sizes: BlackjackSizes, repetitions: int, device: str, connections: int) -> str:
    served = {"connections": connections, "nemo_python": "PYTHON"} if sizes.env == "nemo" else {}
    return command_line(
        "bench blackjack",
        roots=sizes.roots,
        candidates=sizes.candidates,
        target=sizes.target,
        env=sizes.env,
        repetitions=repetitions,
        seed=sizes.seed,
        device=device,
        **served,
    )


def blackjack_table(found: BlackjackComparison) -> Table:
    """Shows the controllers below each other; no time where decisions differ."""
    from branchrt_gym.bench.blackjack_figures import ENVIRONMENTS

    sizes = found.sizes
    table = Table(
        title=f"Blackjack, {ENVIRONMENTS[sizes.env]} ({found.device}): {sizes.roots:,} roots × "
        f"{sizes.candidates}, target {sizes.needed:,} roots",
        title_justify="left",
    )
    for name in ("", "hands", "to target", "fewer", "won", "time, median", "faster", "over host"):
        table.add_column(name, justify="left" if not name else "right")
    everything = sizes.roots * sizes.candidates
    for name, outcome in found.outcomes.items():
        reached = outcome.attempts_to_target
        seconds, faster = found.seconds.get(name), found.faster.get(name)
        over = found.over_host.get(name)
        table.add_row(
            LABELS[name],
            f"{outcome.episodes:,}",
            NONE if reached is None else f"{reached:,}",
            NONE if reached is None else f"{everything / reached:.2f}×",
            f"{outcome.solved / sizes.roots:.1%}",
            NONE if seconds is None else f"{seconds.median * 1e3:,.2f} ms",
            NONE
            if faster is None
            else f"{faster.median:.2f}× ({faster.low:.2f}–{faster.high:.2f})",
            NONE if over is None else f"{over.median:.3f}×",
        )
    colour = "green" if found.equal else "bold red"
    table.caption = f"[{colour}]{found.mismatches:,} mismatches[/] of {found.compared:,} compared"
    table.caption_justify = "left"
    return table
