"""`branchrt bench transcripts`: turns that trajectories share, stored once or copied into each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import mean
from typing import Any

from rich.table import Table

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.estimates import Estimate, estimate, estimate_ratio
from branchrt_gym.bench.measure import clock
from branchrt_gym.bench.transcript_stores import (
    Batches,
    Copies,
    TranscriptSizes,
    branched,
    exported,
    spoken,
)

__all__ = ["Figures", "Transcripts", "compare_transcripts", "transcripts_table"]


@dataclass(frozen=True)
class Figures:
    """What both stores came to, after their padded batches were found equal.

    Attributes:
        entries: Entries in the lineage: the turns, and the birth of each root.
        entry_bytes: Bytes of an entry.
        filled: Of the room for tokens in these entries, the share that holds some; mean over seeds.
        bytes: What is held: by the `lineage`, which is its entries; `allocated`, its capacity;
            `slots`, the frontier's own columns; `frontier`, the last two; by `copies`, whose turns
            take as many tokens as they have, the mean over seeds; by `padded_copies`, whose turns
            take the most; and by one `batch`, the same for both, likewise.
        times_less: `copies` and `padded_copies` over `frontier`; `least` and `most` of the former
            over seeds; `ideal`: the trajectories' turns over those there are, all of one size.
        export_seconds: Of the `lineage` and of the `copies`.
        export_ratio: The first over the second.
        note: What keeps the ratio from the ideal one, in words.
    """

    entries: int
    entry_bytes: int
    filled: float
    bytes: dict[str, int]
    times_less: dict[str, float]
    export_seconds: dict[str, Estimate]
    export_ratio: Estimate
    note: str


@dataclass(frozen=True)
class Transcripts:
    """The comparison.

    Attributes:
        sizes: The sizes.
        seeds: How many sets of turns.
        compared: Values of the padded batches compared.
        mismatches: How many differ.
        first: The first of them, in words.
        figures: None where batches differ.
    """

    sizes: TranscriptSizes
    seeds: int
    compared: int
    mismatches: int
    first: str | None
    figures: Figures | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {
            "bench": "transcripts",
            "sizes": asdict(self.sizes),
            "seeds": self.seeds,
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            **(vars(self.figures) if self.figures else {}),
        }


def compare_transcripts(
    sizes: TranscriptSizes,
    *,
    seeds: int = 5,
    repetitions: int = 11,
    progress: Progress = lambda stage, done, total: None,
) -> Transcripts:
    """Fills both stores, compares their padded batches, then counts bytes and times exports.

    Args:
        sizes: The sizes.
        seeds: Sets of turns; with few roots the lengths of their shared turns weigh much.
        repetitions: Timed exports of each set, by turns.
        progress: Called with what is done.
    """
    for name, count in (("seeds", seeds), ("repetitions", repetitions)):
        if count < 1:
            raise ValueError(f"`{name}` is {count}; expected 1 or more")
    stages = 2 * seeds
    compared, meant, batch, stores = 0, [], 0, []
    for seed in range(seeds):
        progress(f"Filling and comparing, seed {seed + 1} of {seeds}", seed, stages)
        turns = spoken(sizes, seed)
        meant.append(sum(int(turn.length.sum()) for turn in turns))
        frontier, ids = branched(sizes, turns)
        copies = Copies(sizes, turns)
        ours, theirs = exported(frontier, ids), copies.export()
        differences = [*_differences(ours, theirs)]
        compared += sum(values.numel() for values in theirs.values())
        if differences:
            count = sum(number for number, _ in differences)
            return Transcripts(sizes, seeds, compared, count, differences[0][1])
        batch += sum(values.nbytes for values in theirs.values())
        stores.append((frontier, ids, copies))

    times: dict[str, list[list[float]]] = {"lineage": [], "copies": []}
    for seed, (frontier, ids, copies) in enumerate(stores):
        progress(f"Timing, seed {seed + 1} of {seeds}", seeds + seed, stages)
        calls: dict[str, Callable[[], object]] = {
            "lineage": partial(exported, frontier, ids),
            "copies": copies.export,
        }
        spent = [{name: clock(call) for name, call in calls.items()} for _ in range(repetitions)]
        for name, strata in times.items():
            strata.append([each[name] for each in spent])
    progress("Done", stages, stages)

    lineage, entries = frontier.lineage, int(frontier.lineage.count)
    allocated = sum(column.nbytes for column in lineage.columns.values())
    slots = sum(column.nbytes for column in (frontier.status, *frontier.columns))
    exact = [store.nbytes for _, _, store in stores]
    padded = copies.padded_nbytes(sizes.tokens)
    ours_all = allocated + slots
    filled = mean(meant) / (entries * sizes.tokens)
    figures = Figures(
        entries=entries,
        entry_bytes=allocated // lineage.capacity,
        filled=filled,
        bytes={
            "lineage": allocated // lineage.capacity * entries,
            "allocated": allocated,
            "slots": slots,
            "frontier": ours_all,
            "copies": round(mean(exact)),
            "padded_copies": padded,
            "batch": batch // seeds,
        },
        times_less={
            "copies": mean(exact) / ours_all,
            "least": min(exact) / ours_all,
            "most": max(exact) / ours_all,
            "padded_copies": padded / ours_all,
            "ideal": sizes.trajectories * sizes.turns / sizes.stored_once,
        },
        export_seconds={name: estimate(strata) for name, strata in times.items()},
        export_ratio=estimate_ratio(times["lineage"], times["copies"]),
        note=f"an entry stores room for {sizes.tokens} tokens, {filled:.0%} of it filled, and its "
        "links; copies store neither",
    )
    return Transcripts(sizes, seeds, compared, 0, None, figures)


def _differences(ours: Batches, theirs: Batches) -> Iterator[tuple[int, str]]:
    """Yields of each tensor that differs how many values do, and the first of them in words."""
    for name, want in theirs.items():
        got = ours[name]
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            yield (
                1,
                f"`{name}` of the copies is {want.dtype} of shape {tuple(want.shape)}, of the "
                f"lineage {got.dtype} of shape {tuple(got.shape)}",
            )
        elif bool((got != want).any()):
            differs = got != want
            place = tuple(differs.nonzero()[0].tolist())
            yield (
                int(differs.sum()),
                f"`{name}` at {place}: the copies have {want[place].item()}, the lineage "
                f"{got[place].item()}",
            )


def transcripts_table(found: Transcripts) -> Table:
    """Shows the stores side by side; no figure where their batches differ."""
    sizes, figures = found.sizes, found.figures
    table = Table(
        title=f"{sizes.trajectories:,} trajectories of {sizes.roots_named}: {sizes.shared_turns} "
        f"shared turns, {sizes.own_turns} of their own, {sizes.least} to {sizes.tokens} tokens",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for column in ("frontier", "copies", "padded copies"):
        table.add_column(column, justify="right")
    if figures:
        every, times = f"{sizes.trajectories * sizes.turns:,}", figures.times_less
        held = [figures.bytes[name] / 2**20 for name in ("frontier", "copies", "padded_copies")]
        spent = [s.interquartile_mean * 1e3 for s in figures.export_seconds.values()]
        table.add_row("turns stored", f"{sizes.stored_once:,}", every, every)
        table.add_row("memory", *(f"{size:,.2f} MiB" for size in held))
        table.add_row(
            f"times the frontier's (of one size: {times['ideal']:.2f}×)",
            "",
            f"[bold]{times['copies']:.2f}×[/]",
            f"{times['padded_copies']:.2f}×",
        )
        table.add_row("export as padded batches", *(f"{each:,.1f} ms" for each in spent))
    style = "green" if found.equal else "bold red"
    count = f"[{style}]{found.mismatches}[/]"
    table.add_row("mismatches", count, f"of {found.compared:,} compared")
    return table
