"""The table of the forms of a search, and the picture of their times against roots."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from branchrt_gym.bench.forms import LABELS
from branchrt_gym.errors import MissingExtraError

__all__ = ["draw_forms", "forms_notes", "forms_table"]

NONE = "–"
# Colours of Okabe and Ito, told apart with any colour vision; dashed what no general runtime is.
LINES = {
    "batcher": ("#999999", "-", "s"),
    "batcher_graph": ("#000000", "-", "s"),
    "dense": ("#000000", ":", "D"),
    "eager": ("#56B4E9", "-", "o"),
    "captured": ("#0072B2", "-", "o"),
    "fused": ("#D55E00", "-", "o"),
    "floor": ("#009E73", "--", "^"),
    "chase": ("#009E73", ":", "v"),
    "torch": ("#CC79A7", "--", "x"),
    "torch_compiled": ("#CC79A7", "-", "x"),
    "torch_sorting": ("#CC79A7", "-.", "+"),
    "jax": ("#E69F00", "-", "x"),
}


def forms_table(row: Mapping[str, Any]) -> Table:
    """Shows every form of a row of evidence; no time where any result differs."""
    sizes = row["sizes"]
    table = Table(
        title=f"DeepTree on {row['device']}: {sizes['roots']:,} roots × {sizes['width']:,}, beam "
        f"{sizes['beam']}, fan-out {sizes['fanout']}, depth {sizes['depth']}; interquartile means "
        f"of {row['seeds']} × {row['repetitions']}, cache flushed",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for column in ("device time", "wall time", "warm", "peak memory", "mismatches"):
        table.add_column(column, justify="right")
    for name, form in row["forms"].items():
        if "not_run" in form:
            table.add_row(LABELS[name], *[NONE] * 5)
            continue
        peak, count = form["peak_bytes"], form["mismatches"]
        table.add_row(
            LABELS[name],
            *(_time(form[clock]) for clock in ("seconds", "wall_seconds", "warm_seconds")),
            NONE if peak is None else f"{peak / 2**20:,.1f} MiB",
            NONE if count is None else f"{count} in {form['compared']:,}",
        )
    return table


def forms_notes(row: Mapping[str, Any]) -> list[str]:
    """Returns what follows from the table, what was not run, and why it holds no time."""
    lines = []
    for name, form in row["forms"].items():
        if "not_run" in form:
            lines.append(f"Not run: {LABELS[name]}: {form['not_run']}.")
            continue
        if form["note"]:
            lines.append(f"{LABELS[name]}: {form['note']}.")
        if form["first_difference"]:
            lines.append(f"The results differ. First: {form['first_difference']}.")
    for name, ratio in row["ratios"].items():
        if ratio is not None:
            lines.append(
                f"{name.replace('_', ' ')}: {ratio['interquartile_mean']:.2f} "
                f"({ratio['low']:.2f} … {ratio['high']:.2f})"
            )
    if row["best_expert"] is not None:
        lines.append(f"The best expert is: {LABELS[row['best_expert']]}.")
    share, bandwidth = row["batcher_copy_share"], row["copy_bandwidth"]
    if share is not None:
        lines.append(
            f"The batcher in a graph copies ({row['batcher_copy_method']}) at "
            f"{share['interquartile_mean']:.0%} of the "
            f"{bandwidth['interquartile_mean'] / 1e12:.2f} TB/s of a plain copy."
        )
    for tier, part in row["frontier_share"].items():
        lines.append(
            f"{tier}: {part['share']:.0%} of the wall time is the frontier's, so "
            f"{part['amdahl']:.1f}× is what it can gain from a faster one."
        )
    return lines


def _time(seconds: Mapping[str, float] | None) -> str:
    if seconds is None:
        return NONE
    mean = seconds["interquartile_mean"]
    return f"{mean * 1e3:,.2f} ms" if mean >= 1e-3 else f"{mean * 1e6:.1f} µs"


def draw_forms(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Draws wall time against roots, a line for each form, into a PNG.

    Args:
        rows: Rows of evidence of the forms, of one width.
        path: The file; its folder is made.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plot", "matplotlib") from error
    rows = sorted(rows, key=lambda row: row["sizes"]["roots"])
    sizes = rows[0]["sizes"]
    style: Any = {"font.family": "DejaVu Sans", "font.size": 12.5, "axes.spines.top": False}
    with mpl.rc_context({**style, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 7), dpi=150, layout="constrained")
        axes = figure.subplots()
        for name, (colour, line, marker) in LINES.items():
            points = [
                (row["sizes"]["roots"], row["forms"][name]["wall_seconds"])
                for row in rows
                if row["forms"].get(name, {}).get("wall_seconds") is not None
            ]
            if points:
                roots = [count for count, _ in points]
                times = [wall["interquartile_mean"] * 1e3 for _, wall in points]
                axes.plot(roots, times, line, color=colour, marker=marker, label=LABELS[name])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        counts = sorted({row["sizes"]["roots"] for row in rows})
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set(
            xlabel=f"roots, each with a context of {sizes['width']:,} entries",
            ylabel="wall time of a search, ms, cache flushed",
            title=f"DeepTree, beam {sizes['beam']}, fan-out {sizes['fanout']}, "
            f"{sizes['depth']} levels",
        )
        axes.grid(True, which="major", alpha=0.3)
        figure.legend(loc="outside right upper", frameon=False, fontsize=11)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
