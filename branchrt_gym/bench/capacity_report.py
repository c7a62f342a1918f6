"""The table, the picture and the README's lines of `branchrt bench capacity`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from branchrt_gym.errors import MissingExtraError

__all__ = [
    "capacity_lines",
    "capacity_notes",
    "capacity_table",
    "draw_capacity",
    "page_step_lines",
    "page_steps_table",
]

NONE = "–"
GIB = 1 << 30
# What the founding document has "at 5 % mutation control", which it does not define.
FOUNDING = {4: 3.49, 8: 6.73}
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7")  # Okabe and Ito's

Row = Mapping[str, Any]


def capacity_table(row: Row) -> Table:
    """Shows what sharing comes to for every fan-out and mutation of a row of evidence."""
    sizes = row["sizes"]
    founding = " and ".join(f"{times}× (b = {fanout})" for fanout, times in FOUNDING.items())
    table = Table(
        title=f"Branches of {sizes['width']:,} {sizes['dtype']} entries in "
        f"{sizes['budget'] / GIB:g} GiB on {row['device']}, dense rows against pages of "
        f"{row['page_bytes']:,} bytes",
        title_justify="left",
        title_style="bold",
        caption="Ideal: 1 / (m + 1 / b), of b branches a context that each overwrite one run of m "
        f"of it. The founding document has {founding} at a “5 % mutation control” that it "
        "does not define; a run of 5 % allows 3.33× and 5.71×.",
        caption_justify="left",
    )
    for column in ("mutated", "b", "ideal", "branches", "multiple", "of ideal", "by peak"):
        table.add_column(column, justify="right")
    table.add_column("bytes beside table and pages", justify="right")
    table.add_column("throughput", justify="right")
    dense = row["dense"]["fits"]
    if dense is not None:
        table.add_row("dense", NONE, NONE, f"{dense:,}", *[NONE] * 5)
    for cell in row["cells"]:
        held, rounds = cell["bytes_per_branch"], cell["throughput"]
        table.add_row(
            f"{cell['mutation']} %",
            f"{cell['fanout']}",
            f"{cell['ideal']:.2f}×",
            _shown(cell["fits"], ",d"),
            _shown(cell["multiple"], ".2f", "×"),
            _shown(cell["share_of_ideal"], ".3f"),
            _shown(cell["peak_multiple"], ".2f", "×"),
            _shown(held.get("frontier"), ".0f"),
            _shown(rounds and rounds["ratio"]["interquartile_mean"], ".2f", "×"),
        )
    return table


def capacity_notes(row: Row) -> list[str]:
    """Returns what the table cannot say."""
    if row["first_difference"]:
        return [f"The contents differ, so no figure is given. First: {row['first_difference']}."]
    lines = [
        f"{row['mismatches']} mismatches in {row['compared']:,} values.",
        f"The lineage is apart: {row['lineage_bytes_per_entry']} bytes for each transition.",
    ]
    for cell in row["cells"]:
        rounds = cell["throughput"]
        if rounds:
            rates = rounds["branches_per_second"]
            ratio = rounds["ratio"]
            lines.append(
                f"{cell['mutation']} % of {cell['fanout']} branches a context, "
                f"{rounds['branches']:,} branches forked, mutated and pruned: "
                f"{_rate(rates['paged'])} a second against {_rate(rates['dense'])}, "
                f"{ratio['interquartile_mean']:.2f}× ({ratio['low']:.2f} … {ratio['high']:.2f})."
            )
    return lines


def page_steps_table(row: Row) -> Table:
    """Shows what forks of very many pages, and freeing half of them, take."""
    table = Table(
        title=f"{row['branches']:,} branches of {row['state_bytes'] >> 10:,} KiB in pages of "
        f"{row['page_bytes']:,} bytes, one written by each",
        title_justify="left",
        title_style="bold",
    )
    for column in ("", "time", "95 % interval"):
        table.add_column(column, justify="right" if column else "left")
    names = {"fork": "fork of all", "reclaim": "prune and reclaim half"}
    for name, time in row["seconds"].items():
        low, high = time["low"] * 1e3, time["high"] * 1e3
        mean = time["interquartile_mean"] * 1e3
        table.add_row(names[name], f"{mean:.3f} ms", f"{low:.3f} … {high:.3f}")
    style = "green" if not row["mismatches"] else "bold red"
    table.add_row("mismatches", f"[{style}]{row['mismatches']}[/]", f"of {row['compared']:,}")
    return table


def capacity_lines(row: Row) -> list[tuple[str, str]]:
    """Returns the README's lines: of the multiples, and of the throughput."""
    sizes, lines = row["sizes"], []
    where = f"{sizes['width']:,} {sizes['dtype']} entries"
    for mutation in sizes["mutations"]:
        cells = [cell for cell in row["cells"] if cell["mutation"] == mutation]
        known = [cell for cell in cells if cell["multiple"]]
        if known:
            fanouts = ", ".join(f"{cell['fanout']}" for cell in known)
            figure = ", ".join(f"**{cell['multiple']:.2f}×**" for cell in known)
            shares = ", ".join(f"{cell['share_of_ideal']:.3f}" for cell in known)
            peaks = [f"{cell['peak_multiple']:.2f}" for cell in known if cell["peak_multiple"]]
            figure += f"; {shares} of the ideal"
            figure += f"; by peak memory {', '.join(peaks)}" if peaks else ""
            figure += f"; {row['mismatches']} mismatches in {row['compared']:,}"
            lines.append(
                (
                    f"branches in {sizes['budget'] / GIB:g} GiB against dense rows of {where}, "
                    f"{mutation} % overwritten, {fanouts} branches a context",
                    figure,
                )
            )
        for cell in cells:
            rounds = cell["throughput"]
            if rounds:
                ratio, rates = rounds["ratio"], rounds["branches_per_second"]
                lines.append(
                    (
                        f"fork, mutate and prune {rounds['branches']:,} branches of {where}, "
                        f"{mutation} % overwritten, against dense rows",
                        f"**{ratio['interquartile_mean']:.2f}×** ({ratio['low']:.2f} … "
                        f"{ratio['high']:.2f}): {_rate(rates['paged'])} a second against "
                        f"{_rate(rates['dense'])}",
                    )
                )
    return lines


def page_step_lines(row: Row) -> list[tuple[str, str]]:
    """Returns the README's line of `--method step`."""
    fork, reclaim = (row["seconds"][name]["interquartile_mean"] for name in ("fork", "reclaim"))
    return [
        (
            f"fork of {row['branches']:,} branches with {row['state_bytes'] >> 10:,} KiB of paged "
            f"state each; pruning half of them and reclaiming their pages",
            f"**{fork * 1e3:.2f} ms**; **{reclaim * 1e3:.2f} ms**; {row['mismatches']} mismatches "
            f"in {row['compared']:,}",
        )
    ]


def draw_capacity(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Draws the multiple against the branches of a context, a panel for each width, into a PNG.

    Args:
        rows: Rows of evidence, one for each width.
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
    with mpl.rc_context({**style, "axes.spines.right": False}):
        figure = Figure(figsize=(6 * len(rows) + 3, 6), dpi=150, layout="constrained")
        panels = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
        for axes, row in zip(panels, rows, strict=True):
            _panel(axes, row)
        panels[0].set_ylabel("branches in the same memory, of dense ones")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _panel(axes: Any, row: Row) -> None:
    sizes = row["sizes"]
    styles = {"ideal": ("--", ""), "multiple": ("-", "o"), "peak_multiple": ("", "x")}
    for colour, mutation in zip(COLOURS * 9, sizes["mutations"], strict=False):
        cells = [cell for cell in row["cells"] if cell["mutation"] == mutation]
        for name, (line, marker) in styles.items():
            known = [(cell["fanout"], cell[name]) for cell in cells if cell[name] is not None]
            label = f"{mutation} % overwritten" if name == "multiple" else None
            if known:
                axes.plot(
                    *zip(*known, strict=True),
                    linestyle=line,
                    marker=marker,
                    color=colour,
                    label=label,
                )
    axes.plot([], [], "--", color="#666666", label="ideal")
    axes.plot([], [], "x", color="#666666", label="by peak memory")
    axes.plot(*zip(*FOUNDING.items(), strict=True), "*", color="#000000", label="founding document")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sizes["fanouts"], [f"{fanout}" for fanout in sizes["fanouts"]])
    axes.yaxis.set_major_formatter("{x:g}×")
    axes.set(
        xlabel="branches of a context",
        title=f"{sizes['width']:,} {sizes['dtype']} entries, {sizes['budget'] / GIB:g} GiB",
    )
    axes.grid(True, which="major", alpha=0.3)


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return NONE if value is None else f"{value:{form}}{unit}"


def _rate(rate: Mapping[str, float]) -> str:
    value = rate["interquartile_mean"]
    return f"{value / 1e6:.2f} million" if value >= 1e6 else f"{value:,.0f}"
