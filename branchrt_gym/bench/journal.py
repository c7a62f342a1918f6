"""`branchrt bench journal`: attempts written to the journal, each issue and commit durable."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from rich.table import Table

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.estimates import Estimate, estimate
from branchrt_gym.evaluation.attempts import Attempt, Verdict
from branchrt_gym.evaluation.journal import BATCH, Journal

__all__ = ["JournalSizes", "JournalTimes", "journal_table", "measure_journal"]

PROBES = 200  # syncs of a small file, to tell what the disk alone takes


@dataclass(frozen=True)
class JournalSizes:
    """What is written.

    Attributes:
        attempts: Attempts of a run.
        candidates: Of each root.
        batch: Attempts of a call: as many verdicts, and as many issues of those that follow.
        apart: Whether verdicts and issues are written by a call of their own each.
    """

    attempts: int = 1_000_000
    candidates: int = 8
    batch: int = BATCH
    apart: bool = False

    def __post_init__(self) -> None:
        """Checks the sizes."""
        if not 1 <= self.batch <= BATCH:
            raise ValueError(f"`batch` is {self.batch}; expected 1 to {BATCH}, one transaction")


@dataclass(frozen=True)
class JournalTimes:
    """What it took; times are None where the journal does not hold what was written.

    Attributes:
        sizes: The sizes.
        compared: Issues and verdicts read back and compared. mismatches: How many differ.
        rate: Attempts a second, issue and commit.
        processor_share: Processor seconds over wall seconds.
        transactions: Of one run.
        sync_us: Microseconds of writing 4 KiB to a file beside it and syncing that, the median.
        bytes: Of the file after it was closed.
    """

    sizes: JournalSizes
    compared: int
    mismatches: int
    rate: Estimate | None = None
    processor_share: float | None = None
    transactions: int | None = None
    sync_us: float | None = None
    bytes: int | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {"bench": "journal", **vars(self), "sizes": asdict(self.sizes)}


def _batches(sizes: JournalSizes) -> Iterator[list[tuple[Attempt, Verdict]]]:
    """Yields attempts and their verdicts, all told apart by what they hold."""
    for begin in range(0, sizes.attempts, sizes.batch):
        numbers = range(begin, min(begin + sizes.batch, sizes.attempts))
        yield [
            (
                Attempt(*divmod(number, sizes.candidates), sha256(b"%d" % number).hexdigest()),
                Verdict(number % 3 == 0, number / 7, number % 11 / 100, number % 13 / 10),
            )
            for number in numbers
        ]


def _write(journal: Journal, sizes: JournalSizes, batches: list[Any]) -> float:
    """Writes a run; returns its seconds."""
    journal.begin({})
    begin = perf_counter()
    before: list[tuple[Attempt, Verdict]] = []
    for wave, batch in enumerate([*batches, []]):
        attempts = [attempt for attempt, _ in batch]
        if sizes.apart:
            journal.commit(before)
            journal.issue(attempts, wave)
        else:
            journal.record(before, attempts, wave)
        before = batch
    return perf_counter() - begin


def _mismatches(journal: Journal, batches: list[Any]) -> tuple[int, int]:
    """Reads a run back; returns how much was compared, and how much of it differs."""
    wanted = [pair for batch in batches for pair in batch]
    issued = [event.attempt for event in journal.events() if event.verdict is None]
    pairs: list[tuple[Any, Any]] = [*zip(issued, (at for at, _ in wanted), strict=False)]
    pairs += zip(journal.committed(), wanted, strict=False)
    missing = 2 * len(wanted) - len(pairs)
    return 2 * len(wanted), missing + sum(found != want for found, want in pairs)


def _sync_us(folder: Path) -> float:
    took = []
    with (folder / "sync").open("wb", buffering=0) as file:
        file.write(bytes(4096 * PROBES))
        os.fsync(file.fileno())
        for probe in range(PROBES):
            begin = perf_counter()
            file.seek(4096 * probe)
            file.write(bytes([probe % 256]) * 4096)
            os.fdatasync(file.fileno())
            took.append(perf_counter() - begin)
    return sorted(took)[PROBES // 2] * 1e6


def measure_journal(
    sizes: JournalSizes,
    *,
    repetitions: int = 3,
    folder: Path | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> JournalTimes:
    """Writes runs, reads the first one back and compares it, and says how fast they were written.

    Args:
        sizes: The sizes.
        repetitions: Runs, each into a file of its own.
        folder: On which disk; the system's for temporary files if None.
        progress: Called with what is done.
    """
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    progress("Making attempts", 0, repetitions + 1)
    batches = list(_batches(sizes))
    rates, shares = [], []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        where = Path(name)
        sync = _sync_us(where)
        for repetition in range(repetitions):
            progress(f"Writing, {repetition + 1} of {repetitions}", repetition, repetitions + 1)
            file = where / f"{repetition}.journal"
            with Journal(file) as journal:
                processor = process_time()
                seconds = _write(journal, sizes, batches)
                shares.append((process_time() - processor) / seconds)
                rates.append(sizes.attempts / seconds)
                if repetition == 0:
                    compared, mismatches = _mismatches(journal, batches)
            size = file.stat().st_size
            file.unlink()
            if mismatches:
                return JournalTimes(sizes, compared, mismatches)
    progress("Done", repetitions + 1, repetitions + 1)
    calls = len(batches) + 1
    return JournalTimes(
        sizes,
        compared,
        mismatches,
        rate=estimate([rates]),
        processor_share=sum(shares) / len(shares),
        transactions=2 * len(batches) if sizes.apart else calls,
        sync_us=sync,
        bytes=size,
    )


def journal_table(found: JournalTimes) -> Table:
    """Shows the rate; no figure where the journal does not hold what was written."""
    sizes = found.sizes
    table = Table(
        title=f"{sizes.attempts:,} attempts journaled, {sizes.batch} a call"
        + (", verdicts and issues apart" if sizes.apart else ""),
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    table.add_column("", justify="right")
    if found.rate and found.processor_share is not None and found.bytes and found.sync_us:
        rate = found.rate
        table.add_row(
            "attempts a second (issue and commit)",
            f"[bold]{rate.interquartile_mean:,.0f}[/] ({rate.low:,.0f} – {rate.high:,.0f})",
        )
        table.add_row("transactions, each synced", f"{found.transactions:,}")
        table.add_row("a sync of this disk alone", f"{found.sync_us:,.0f} µs")
        table.add_row("processor time", f"{found.processor_share:.0%} of the wall time")
        table.add_row("size", f"{found.bytes / 2**20:,.1f} MiB")
    style = "green" if found.equal else "bold red"
    table.add_row("mismatches", f"[{style}]{found.mismatches}[/] of {found.compared:,} compared")
    return table
