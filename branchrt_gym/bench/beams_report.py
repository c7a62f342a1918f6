"""The table, the picture and the README's line of `branchrt bench beams`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from branchrt_gym.errors import MissingExtraError

__all__ = ["beam_lines", "beams_notes", "beams_table", "draw_beams"]

NONE = "–"
MIB = 1 << 20
COLOURS = {"dense": "#000000", "shared": "#D55E00"}  # of Okabe and Ito

Row = Mapping[str, Any]


def beams_table(row: Row) -> Table:
    """Shows what the widest beams of each budget find."""
    sizes = row["sizes"]
    table = Table(
        title=f"DeepTree on {row['device']}: {sizes['seeds']} × {sizes['roots']:,} roots × "
        f"{sizes['width']:,}, fan-out {sizes['fanout']}, depth {sizes['depth']}; the widest beams "
        "that fit",
        title_justify="left",
        title_style="bold",
        caption="Dense: each branch owns its context. Shared: contexts once, and a search. "
        "In brackets bootstrap 95 % intervals.",
        caption_justify="left",
    )
    for column in ("budget", "form", "beam", "taken", "best score / target", "roots solved"):
        table.add_column(column, justify="left" if column == "form" else "right")
    for point in row["points"]:
        taken = point["bytes"]
        table.add_row(
            f"{point['budget'] / MIB:g} MiB",
            point["form"],
            f"{point['beam']:,}",
            NONE if taken is None else f"{taken / MIB:.1f} MiB",
            _mean(point["best"], ".3f"),
            _mean(point["solved"], ".0%"),
        )
    return table


def beams_notes(row: Row) -> list[str]:
    """Returns what the table cannot say."""
    if row["first_difference"]:
        return [f"The results differ, so no figure is given. First: {row['first_difference']}."]
    each = row["bytes_per_branch"]
    lines = [
        f"{row['mismatches']} mismatches with the general batcher in {row['compared']:,} values.",
        f"A branch takes {each['dense']:,} bytes dense ({each['batcher']:,.0f} in the general "
        f"batcher, which has two rows for each) and {each['shared']:,.0f} in a search.",
    ]
    if row["monotone"]:
        lines.append("No wider beam did worse, in the order of the widths of both forms.")
    for before, after, what, lost in row["falls"]:
        lines.append(f"Beam {after:,} did worse than {before:,} in `{what}`, by {lost:.4f}.")
    return lines


def beam_lines(row: Row) -> list[tuple[str, str]]:
    """Returns the README's lines: the least budget, the middle one, and the largest."""
    sizes, points = row["sizes"], row["points"]
    budgets = sorted({point["budget"] for point in points})
    lines = []
    for budget in sorted({budgets[0], budgets[len(budgets) // 2], budgets[-1]}):
        dense, shared = (
            next(p for p in points if p["budget"] == budget and p["form"] == form)
            for form in ("dense", "shared")
        )
        figure = (
            f"**{_mean(shared['solved'], '.0%')}** of roots solved by beam {shared['beam']:,}, "
            f"against {_mean(dense['solved'], '.0%')} by beam {dense['beam']:,}; best score "
            f"{_mean(shared['best'], '.2f')} of the target against {_mean(dense['best'], '.2f')}"
        )
        what = (
            f"widest beams in {budget / MIB:g} MiB, shared against a context for each branch, "
            f"{sizes['roots']:,} roots × {sizes['width']:,}, {sizes['depth']} levels, "
            f"{sizes['seeds']} seeds"
        )
        lines.append((what, figure))
    return lines


def draw_beams(row: Row, path: str | os.PathLike[str]) -> None:
    """Draws roots solved and best scores against the budget into a PNG.

    Args:
        row: A row of evidence.
        path: The file; its folder is made.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plot", "matplotlib") from error
    style: Any = {"font.family": "DejaVu Sans", "font.size": 12.5, "axes.spines.top": False}
    names = {"solved": "share of roots solved", "best": "best score, of the target"}
    with mpl.rc_context({**style, "axes.spines.right": False}):
        figure = Figure(figsize=(13, 6), dpi=150, layout="constrained")
        for axes, (name, label) in zip(figure.subplots(1, 2), names.items(), strict=True):
            for form, colour in COLOURS.items():
                points = [point for point in row["points"] if point["form"] == form]
                budgets = [point["budget"] / MIB for point in points]
                means, low, high = (
                    [point[name][part] for point in points] for part in ("mean", "low", "high")
                )
                axes.plot(budgets, means, "-o", color=colour, label=form)
                axes.fill_between(budgets, low, high, color=colour, alpha=0.15, linewidth=0)
                for x, y, point in zip(budgets, means, points, strict=True):
                    text = f"{point['beam']:,}"
                    axes.annotate(text, (x, y), (0, 7), textcoords="offset points", ha="center")
            axes.set_xscale("log", base=2)
            axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
            axes.set(xlabel="memory, MiB; at the points: the beam that fits", ylabel=label)
            axes.grid(True, which="major", alpha=0.3)
        figure.axes[0].legend(frameon=False)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _mean(mean: Mapping[str, float], form: str) -> str:
    return f"{mean['mean']:{form}} ({mean['low']:{form}} … {mean['high']:{form}})"
