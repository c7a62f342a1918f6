"""What the README says of rows of the evaluation benches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["blackjack_lines", "decision_lines", "journal_lines"]

GAMES = {"gpu": "`branchrt/Blackjack-v0`", "gymnasium": "Gymnasium's `step`", "nemo": "NeMo Gym"}
CONTROLLERS = {"host": "the host loop", "frontier": "`EvalFrontier`", "frontier_gpu": "on the GPU"}


def decision_lines(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what the README says of a row of `bench decisions`."""
    sizes, ratio = row["sizes"], row["ratio"]
    what = (
        f"decisions of a wave, {sizes['roots']:,} roots × {sizes['candidates']}, on "
        f"{row['device']}, against a plain loop"
    )
    host, ours = (row[name]["interquartile_mean"] for name in ("host_us", "ours_us"))
    figure = (
        f"**{ratio['interquartile_mean']:,.2f}×** ({ratio['low']:,.2f} … {ratio['high']:,.2f}): "
        f"{ours:,.1f} µs against {host:,.1f}, "
        f"{row['host_ns']['interquartile_mean']:,.0f} ns an attempt; {row['mismatches']} "
        f"mismatches in {row['compared']:,}"
    )
    return [(what, figure)]


def journal_lines(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what the README says of a row of `bench journal`."""
    sizes, rate = row["sizes"], row["rate"]
    what = f"{sizes['attempts']:,} attempts journaled, {sizes['batch']} a transaction, each synced"
    figure = (
        f"**{rate['interquartile_mean']:,.0f}** attempts/s ({rate['low']:,.0f} … "
        f"{rate['high']:,.0f}), issue and commit; a sync alone {row['sync_us']:,.0f} µs; "
        f"{row['mismatches']} mismatches in {row['compared']:,}"
    )
    return [(what, figure)]


def blackjack_lines(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what the README says of a row of `bench blackjack`."""
    sizes, seconds, outcomes = row["sizes"], row["seconds_to_target"], row["outcomes"]
    what = (
        f"{sizes['target']:.0%} of {sizes['roots']:,} Blackjack deals won, "
        f"{sizes['candidates']} hands each at most, by {GAMES[row['env']]}"
    )
    every = seconds["run_all"]["median"]
    told = []
    for name, called in CONTROLLERS.items():
        if name in seconds:
            spent = seconds[name]["median"]
            told.append(f"{called} {spent * 1e3:,.0f} ms ({every / spent:.2f}×)")
    figure = (
        f"target after **{row['attempts_fewer']:.2f}×** fewer attempts than all "
        f"{outcomes['run_all']['episodes']:,} hands; all of them {every * 1e3:,.0f} ms, "
        f"{', '.join(told)}; {row['mismatches']} mismatches in {row['compared']:,}"
    )
    return [(what, figure)]
