"""The commands `branchrt replay …`: what an ordering would have spent on recorded outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from branchrt_gym.bench.terminal import console, errors, progress

if TYPE_CHECKING:
    from branchrt_gym.evaluation.replay import Replay
    from branchrt_gym.wrappers.swebench import SweBenchReplay

__all__ = ["replay"]

ORDERS = (
    "manifest_order",
    "current_chronological",
    "low_empty_first",
    "nonempty_patch_first",
    "low_cost_first",
    "random",
    "bandit",
    "bandit_by_source",
    "oracle_best",
    "oracle_each_root",
)
TYPICAL = {"random": "median", "bandit": "mean", "bandit_by_source": "mean"}
MARGIN = 1.1  # of low_cost_first in dollars and low_empty_first in attempts

replay = typer.Typer(help="Replay recorded outcomes under an ordering.", no_args_is_help=True)


@replay.callback()
def _replay() -> None:
    """Keeps `swebench` a command of its own while it is the only one."""


@replay.command("swebench")
def replay_swebench(
    directory: Annotated[
        Path, typer.Argument(help="Holds evaluation/SPLIT/SUBMISSION/per_instance_details.json.")
    ],
    submissions: Annotated[
        str,
        typer.Option(
            help="Names or parts of names, by commas; or all, latest:N, best:N, best:N:MOST "
            "(the N strongest not above MOST resolved)."
        ),
    ] = "all",
    order: Annotated[str, typer.Option(help=f"all, or one of {', '.join(ORDERS)}.")] = "all",
    target: Annotated[
        str, typer.Option(help="Roots to solve: a share with a point, 0.8, or a count.")
    ] = "0.8",
    roots: Annotated[
        int | None, typer.Option(min=1, help="Roots; more than instances repeats these.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Which split.  [default: the only one]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of random and bandit.")] = 0,
    random_seeds: Annotated[int, typer.Option(min=1, help="Random sequences for the band.")] = 200,
    bandit_seeds: Annotated[int, typer.Option(min=1, help="Seeds for the bandits' bands.")] = 20,
    seconds_per_call: Annotated[
        float | None, typer.Option(min=0, help="Of a model's call, to project hours from calls.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw solved against attempts here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Replay SWE-bench submissions: attempts and dollars until a share of tasks is solved."""
    from branchrt_gym.wrappers.swebench import SweBenchReplay

    with errors():
        if order not in ("all", *ORDERS):
            raise ValueError(f"`--order` is {order!r}; expected all, or one of {', '.join(ORDERS)}")
        source = SweBenchReplay.load(
            directory, [part.strip() for part in submissions.split(",")], split
        )
        if roots is not None:
            source = source.repeated(roots)
        wanted = ORDERS if order == "all" else (order,)
        seeds = {"random": random_seeds, "bandit": bandit_seeds, "bandit_by_source": bandit_seeds}
        with progress() as show:
            found = _run(source, {*wanted, "random"}, _target(target), seed, seeds, show)
        report = _report(source, wanted, found, seconds_per_call)
        if plot is not None:
            from branchrt_gym.evaluation.plots import draw_replays

            draw_replays([found[name][0] for name in wanted], found["random"], plot)
    if as_json:
        if order != "all":
            report |= report.pop("orderings")[0]
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)


def _target(text: str) -> float:
    try:
        return float(text) if "." in text else int(text)
    except ValueError as error:
        raise ValueError(
            f"`--target` is {text!r}; expected a share of roots, such as 0.8, or a count"
        ) from error


def _run(
    source: SweBenchReplay,
    names: set[str],
    target: float,
    seed: int,
    seeds: dict[str, int],
    show: Callable[[str, int, int], None],
) -> dict[str, list[Replay]]:
    """Returns each ordering's replays: one, or one a seed, that of `seed` first."""
    from branchrt_gym.evaluation import orderings
    from branchrt_gym.evaluation.bandit import Bandit
    from branchrt_gym.evaluation.replay import replay as run

    made: dict[str, Callable[[int], orderings.Ordering]] = {
        "random": orderings.random_order,
        "bandit": Bandit,
        "bandit_by_source": lambda each: Bandit(each, per_attempt=False),
        "oracle_best": lambda _: orderings.oracle_best(source.resolved),
        "oracle_each_root": lambda _: orderings.oracle_each_root(source.resolved),
    }
    jobs = [
        (name, seed + number)
        for name in ORDERS
        if name in names
        for number in range(seeds.get(name, 1))
    ]
    found: dict[str, list[Replay]] = {}
    for done, (name, each) in enumerate(jobs):
        show(name, done, len(jobs))
        ordering = made[name](each) if name in made else getattr(orderings, name)
        found.setdefault(name, []).append(run(source.table, source, ordering, target))
    return found


def _report(
    source: SweBenchReplay,
    wanted: tuple[str, ...],
    found: dict[str, list[Replay]],
    seconds_per_call: float | None,
) -> dict[str, Any]:
    first, instances = found["random"][0], len(source.instances)
    notes = [
        "Dollars are what the recorded attempts cost to make. Orderings that look at the cost or "
        "the emptiness of each patch can be had once patches exist; verifying has a price of its "
        "own, which is not on record.",
    ]
    if source.table.empty is None:
        notes.append(
            "Which patches are empty is not on record; a limit that was hit (3 USD or 250 calls) "
            "stands in for it."
        )
    if first.roots > instances:
        notes.append(
            f"{first.roots:,} roots repeat {instances:,} instances: that shows how decisions scale "
            "and proves nothing about new tasks."
        )
    if source.left_out:
        notes.append(
            f"{len(source.left_out)} submissions could not be read and are left out: "
            f"{next(iter(source.left_out.values()))}" + ("; …" if len(source.left_out) > 1 else "")
        )
    return {
        "submissions": source.table.names,
        "instances": instances,
        "roots": first.roots,
        "budget": first.budget,
        "target": first.target,
        "notes": notes,
        "random_order": _bands(found["random"]),
        "orderings": [_row(name, found[name], seconds_per_call) for name in wanted],
    }


def _row(name: str, replays: list[Replay], seconds_per_call: float | None) -> dict[str, Any]:
    first = replays[0]
    row: dict[str, Any] = {
        "ordering": name,
        "attempts": first.attempts,
        "attempts_full_rounds": first.attempts_full_rounds,
        "budget_share": first.budget_share,
        "solved": first.solved,
        "reached": first.reached,
        "cost_usd": first.cost,
        "cost_usd_full_rounds": first.cost_full_rounds,
        "order": first.order,
        "order_differs_by_root": first.per_root,
        "needs_labels": first.needs_labels,
        "calls": first.calls,
        "calls_in_turn": first.longest_calls,
        "waves": first.waves,
    }
    if seconds_per_call is not None and first.calls is not None:
        row["hours_one_by_one"] = first.calls * seconds_per_call / 3600
        row["hours_all_at_once"] = (first.longest_calls or 0) * seconds_per_call / 3600
    return row | (_bands(replays) if name in TYPICAL else {})


def _bands(replays: list[Replay]) -> dict[str, Any]:
    from branchrt_gym.evaluation.replay import band

    return {
        "seeds": len(replays),
        "seeds_that_reached": sum(each.reached for each in replays),
        "attempts_over_seeds": asdict(band([each.attempts for each in replays])),
        "attempts_full_rounds_over_seeds": asdict(
            band([each.attempts_full_rounds for each in replays])
        ),
        "cost_usd_over_seeds": asdict(band([each.cost for each in replays])),
    }


def _print(report: dict[str, Any]) -> None:
    screen = console()
    rows = {row["ordering"]: row for row in report["orderings"]}
    marks = [
        _typical(rows[name], key) if name in rows else None
        for name, key in (("low_empty_first", "attempts"), ("low_cost_first", "cost_usd"))
    ]
    hours = any("hours_one_by_one" in row for row in rows.values())
    table = Table(
        title=f"Until {report['target']:,} of {report['roots']:,} roots are solved, of "
        f"{report['budget']:,} attempts by {len(report['submissions'])} submissions",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("ordering", no_wrap=True)
    for heading in ("attempts", "10–90 %", "in full", "share", "USD", "10–90 %"):
        table.add_column(heading, justify="right", overflow="fold")
    for heading in ("hours 1 by 1", "all at once") if hours else ("calls", "in turn"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("against", overflow="fold")
    for name, row in rows.items():
        table.add_row(*_cells(name, row, report["budget"], marks))
    screen.print(table)
    notes = [
        *report["notes"],
        "In full: attempts with the last round charged in full. In turn or all at once: with a "
        "machine for each attempt, the longest attempts of the waves one after another.",
    ]
    seeded = [name for name in TYPICAL if name in rows]
    over = [f"{name}: {TYPICAL[name]} of {rows[name]['seeds']} seeds" for name in seeded]
    notes += ["; ".join(over) + "."] if over else []
    if all(marks):
        notes.append(
            "Against: attempts / those of low_empty_first, dollars / those of low_cost_first; ✓ is "
            "1.10 or less in both."
        )
    if any(row["needs_labels"] for row in rows.values()):
        notes.append("* is made with the verdicts: a bound for reports.")
    for line in notes:
        screen.print(escape(line), soft_wrap=True, highlight=False)


def _typical(row: dict[str, Any], key: str) -> float:
    """The figure of an ordering, and of those with seeds the one that stands for all of them."""
    spread = row.get(f"{key}_over_seeds")
    return float(row[key] if spread is None else spread[TYPICAL[row["ordering"]]])


def _cells(name: str, row: dict[str, Any], budget: int, marks: list[float | None]) -> list[str]:
    keys = "attempts", "cost_usd"
    attempts, cost = (_typical(row, key) for key in keys)
    spreads = [row.get(f"{key}_over_seeds") for key in keys]
    bands = [f"{each['low']:,.0f}–{each['high']:,.0f}" if each else "" for each in spreads]
    against = ""
    if marks[0] and marks[1]:
        ratios = attempts / marks[0], cost / marks[1]
        against = " / ".join(f"{ratio:.2f}" for ratio in ratios)
        against += " ✓" if max(ratios) <= MARGIN and not row["needs_labels"] else ""
    if "hours_one_by_one" in row:
        times = [f"{row[f'hours_{how}']:,.1f}" for how in ("one_by_one", "all_at_once")]
    else:
        counts = row["calls"], row["calls_in_turn"]
        times = ["" if each is None else f"{each:,}" for each in counts]
    shown = name + (" *" if row["needs_labels"] else "")
    shown += "" if row["reached"] else f" (stopped at {row['solved']:,})"
    return [
        shown,
        f"{attempts:,.0f}",
        bands[0],
        f"{_typical(row, 'attempts_full_rounds'):,.0f}",
        f"{attempts / budget:.3f}",
        f"{cost:,.0f}",
        bands[1],
        *times,
        against,
    ]
