"""Where the run of a journal stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from branchrt_gym.evaluation.journal import Journal

__all__ = ["JournalStatus", "journal_status"]

COMMITTED: Final = "FROM committed c JOIN issued i ON i.seq = c.issue WHERE run = ?"


@dataclass(frozen=True)
class JournalStatus:
    """Where the last run of a journal stands.

    Attributes:
        run: Its number, from 1; 0 if there is none.
        begun: When, in UTC.
        ended: Why it is over; None while it is not.
        settings: What it was begun with.
        issued: Attempts given to verifiers; `again` of them once more, after a process died.
        passed, failed: Verdicts.
        infrastructure: Infrastructure failures.
        in_flight: Attempts issued without a verdict or a failure since.
        solved: Roots with as many passes as the settings ask for.
        cost, seconds: Of the verdicts, added up.
    """

    run: int
    begun: str
    ended: str | None
    settings: dict[str, Any]
    issued: int
    again: int
    passed: int
    failed: int
    infrastructure: int
    in_flight: int
    solved: int
    cost: float
    seconds: float


def journal_status(journal: Journal) -> JournalStatus:
    """Returns where the last run of a journal stands, also while it is written to."""
    run, settings = journal.run, journal.settings()
    times = next(journal.rows("SELECT begun, ended FROM runs WHERE run = ?", run), ("", None))
    begun, ended = times
    query = "SELECT count(*), total(again) FROM issued WHERE run = ?"
    issued, again = next(journal.rows(query, run))
    passed, failed, lost, cost, seconds = next(
        journal.rows(
            "SELECT total(passed AND infrastructure IS NULL), "
            "total(NOT passed AND infrastructure IS NULL), count(infrastructure), "
            "total(CASE WHEN infrastructure IS NULL THEN cost END), "
            f"total(CASE WHEN infrastructure IS NULL THEN seconds END) {COMMITTED}",
            run,
        )
    )
    (solved,) = next(
        journal.rows(
            f"SELECT count(*) FROM (SELECT root {COMMITTED} AND passed AND infrastructure IS NULL "
            "GROUP BY root HAVING count(*) >= ?)",
            run,
            settings.get("needed", 1),
        )
    )
    return JournalStatus(
        run=run,
        begun=begun,
        ended=ended,
        settings=settings,
        issued=issued,
        again=int(again),
        passed=int(passed),
        failed=int(failed),
        infrastructure=lost,
        in_flight=len(journal.open_attempts()),
        solved=solved,
        cost=cost,
        seconds=seconds,
    )
