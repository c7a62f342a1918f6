"""What the benches of `BranchWrapper` and of its adapters print, and write into the README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from branchrt_gym.bench.ppo import PPOComparison
from branchrt_gym.bench.snapshots import Snapshots

__all__ = ["ppo_lines", "ppo_table", "snapshot_lines", "snapshots_table"]

CALLS = {
    "fork": "a fork",
    "deepcopy": "copy.deepcopy",
    "mj_copyData": "mj_copyData alone, into a kept slot",
    "snapshot": "a snapshot",
    "restore": "a restore",
    "step": "a step",
}


def snapshots_table(found: Snapshots) -> Table:
    """Shows what copies of an environment take; no figure where one differs."""
    title = f"{found.case.env}, copied by the provider {found.provider}"
    table = Table("", title=escape(title), title_justify="left", title_style="bold")
    for column in ("", "least"):
        table.add_column(column, justify="right")
    for name, what in CALLS.items():
        if name in found.seconds:
            each, least = found.seconds[name], f"{found.least[name] * 1e6:,.1f} µs"
            ends = f"{each.low * 1e6:,.1f} … {each.high * 1e6:,.1f}"
            table.add_row(what, f"{each.interquartile_mean * 1e6:,.1f} µs ({ends})", least)
    if found.ratio:
        table.add_row("a fork, of deepcopy's time", f"{found.ratio.interquartile_mean:.1%}")
    if found.branch_bytes is not None:
        each_branch = f"{found.branch_bytes / 1024:,.0f} KiB"
        table.add_row(f"resident memory of each of {found.sizes.branches:,} branches", each_branch)
    table.add_row("what deepcopy returns", escape(found.deepcopy.partition(":")[0]))
    style = "green" if found.equal else "bold red"
    points = f"[{style}]{found.mismatches}[/] of {found.sizes.points}"
    table.add_row("points with a difference", f"{points}; {found.compared:,} steps compared")
    return table


def ppo_table(found: PPOComparison) -> Table:
    """Shows both adapters side by side; no time where their results differ."""
    sizes = found.sizes
    table = Table(
        "",
        title=f"{sizes.env}: PPO for {sizes.steps:,} steps, {sizes.rows} rows",
        title_justify="left",
        title_style="bold",
    )
    for column in ("BranchingVecEnv", "DummyVecEnv", "ratio"):
        table.add_column(column, justify="right")
    for what, seconds, ratio, scale, unit in (
        ("training, median", found.train_seconds, found.train_ratio, 1.0, "s"),
        ("a step of all rows alone, median", found.step_seconds, found.step_ratio, 1e6, "µs"),
    ):
        if seconds and ratio:
            each = [f"{s.median * scale:,.1f} {unit}" for s in seconds.values()]
            table.add_row(what, *each, f"[bold]{ratio.median:.2f}×[/]")
    style = "green" if found.equal else "bold red"
    count = f"[{style}]{found.mismatches}[/]"
    table.add_row("mismatches", count, f"of {found.compared:,} compared")
    return table


def snapshot_lines(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what the README says of a row of `bench snapshots`."""
    seconds, ratio = row["seconds"], row["ratio"]
    fork = seconds["fork"]
    told = (
        f"**{_us(fork)} µs** ({fork['low'] * 1e6:,.0f} … {fork['high'] * 1e6:,.0f}; least "
        f"{row['least']['fork'] * 1e6:,.0f}), wrappers and luck included"
    )
    if "mj_copyData" in seconds:
        told += f"; `mj_copyData` into a kept slot {_us(seconds['mj_copyData'])}"
    told += f"; a step {_us(seconds['step'])}; `copy.deepcopy` "
    wrong = row["deepcopy"].startswith("wrong")
    if ratio is None:
        told += "fails"
    else:
        told += f"{_us(seconds['deepcopy'])}{' and is wrong' if wrong else ''}"
        told += f" ({ratio['interquartile_mean']:.1%})" if ratio["interquartile_mean"] < 1 else ""
    if row["branch_bytes"] is not None:
        gigabytes = row["branch_bytes"] * row["sizes"]["branches"] / 1e9
        told += f"; {row['sizes']['branches']:,} living branches hold {gigabytes:.2f} GB"
    told += f"; {row['mismatches']} of {row['sizes']['points']} points differ"
    return [(f"fork of `{row['environment']}` by the provider {row['provider']}", told)]


def ppo_lines(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what the README says of a row of `bench sb3`."""
    sizes, ratio = row["sizes"], row["train_ratio"]
    ours, theirs = (s["median"] for s in row["train_seconds"].values())
    told = (
        f"**{ratio['median']:.2f}×** ({ratio['low']:.2f} … {ratio['high']:.2f}) the time: "
        f"{ours:.1f} s against {theirs:.1f}; stepping alone {row['step_ratio']['median']:.2f}×; "
        f"{row['mismatches']} mismatches in {row['compared']:,}"
    )
    what = (
        f"PPO for {sizes['steps']:,} steps of {sizes['rows']} rows of `{sizes['env']}` through "
        "`BranchingVecEnv`, against `DummyVecEnv`"
    )
    return [(what, told)]


def _us(estimate: Mapping[str, Any]) -> str:
    microseconds = estimate["interquartile_mean"] * 1e6
    return f"{microseconds:,.1f}" if microseconds < 10 else f"{microseconds:,.0f}"
