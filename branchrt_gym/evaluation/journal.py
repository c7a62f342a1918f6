"""The journal of evaluations: every issue and every commit, durable before it counts."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from branchrt_gym.errors import BranchRTError
from branchrt_gym.evaluation.attempts import Attempt, Verdict
from branchrt_gym.evaluation.closing import Closing

__all__ = ["BATCH", "Event", "Journal", "JournalError"]

BATCH: Final = 100  # attempts of one transaction, at most
APPLICATION: Final = 0x42525445  # "BRTE", so that no other file is taken for a journal
FORMAT: Final = 1
TABLES: Final = """
CREATE TABLE runs(run INTEGER PRIMARY KEY, begun TEXT, settings TEXT, ended TEXT);
CREATE TABLE issued(
    seq INTEGER PRIMARY KEY, run INTEGER, wave INTEGER, root INTEGER, candidate INTEGER,
    again INTEGER, digest BLOB
);
CREATE TABLE committed(
    seq INTEGER PRIMARY KEY, issue INTEGER, passed INTEGER, score REAL, cost REAL, seconds REAL,
    infrastructure TEXT
);
"""


class JournalError(BranchRTError, RuntimeError):
    """A journal cannot be opened, read or written; what was in it stays as it was."""


class Event(NamedTuple):
    """An issue or, with a verdict, a commit, in the order in which they came.

    Attributes:
        attempt: Which attempt.
        wave: The number of the call that decided the issue.
        again: Whether it was in flight when a process died, and was given out once more.
        verdict: None for an issue.
    """

    attempt: Attempt
    wave: int
    again: bool
    verdict: Verdict | None


class Journal(Closing):
    """A SQLite file in WAL mode with one writer; a context manager.

    A call that writes returns when its rows are on the disk (`synchronous=FULL`), 100 at most in a
    transaction: after a kill at any moment, or a full disk, there is all of a transaction or
    nothing. Others may read meanwhile. Attempts are content-addressed: `verdicts` has what is
    known of a digest, whichever run paid for it.

    Args:
        path: The file; made if it is not there.
        write: False to read only.
    """

    def __init__(self, path: str | os.PathLike[str], *, write: bool = True) -> None:
        """Opens the file; see the class."""
        self.path = Path(path)
        self.run = 0
        self._lock: Any = None
        self._next = 1
        self._issues: dict[tuple[int, int], int] = {}  # where the last issue of an attempt stands
        if not write and not self.path.is_file():
            raise JournalError(f"`{self.path}` is not there; expected a journal")
        if write:
            self._lock = self._locked()
        with self._clear("open"):
            source = f"{self.path.resolve().as_uri()}?mode={'rwc' if write else 'ro'}"
            self._db = sqlite3.connect(source, uri=True, isolation_level=None)
            self._db.execute("PRAGMA busy_timeout = 10000")
            self._open(write)

    def _open(self, write: bool) -> None:
        (found,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables == 0 and found == 0 and write:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(
                f"BEGIN; {TABLES} PRAGMA application_id = {APPLICATION}; "
                f"PRAGMA user_version = {FORMAT}; COMMIT;"
            )
        elif found != APPLICATION:
            raise JournalError(f"`{self.path}` is a SQLite file of something else; give another")
        elif version != FORMAT:
            raise JournalError(
                f"`{self.path}` is a journal of format {version}; expected {FORMAT}: read it with "
                "the version of branchrt-gym that wrote it"
            )
        self._db.execute("PRAGMA synchronous = FULL")
        last = [
            self._db.execute(f"SELECT max({column}) FROM {table}").fetchone()[0] or 0
            for column, table in (("seq", "issued"), ("seq", "committed"), ("run", "runs"))
        ]
        self._next, self.run = max(last[:2]) + 1, last[2]

    def _locked(self) -> Any:
        """Takes the lock of the one writer; it goes with the process, however that ends."""
        import fcntl

        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = Path(f"{self.path}-lock").open("a")  # held until `close`
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise JournalError(
                f"`{self.path}` is being written to by another process; wait for it to end, or "
                "give another journal"
            ) from error
        return lock

    @contextmanager
    def _clear(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(
                f"`{self.path}`: cannot {what}: {error}. What the journal holds is whole; make "
                "room or mend the file system, then resume"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._clear("write"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def begin(self, settings: Mapping[str, Any]) -> int:
        """Begins a run and returns its number."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction() as db:
            db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, NULL)",
                (self.run + 1, now, json.dumps(settings, ensure_ascii=False)),
            )
        self.run += 1
        self._issues.clear()
        return self.run

    def end(self, reason: str) -> None:
        """Notes why the run is over."""
        with self._transaction() as db:
            db.execute("UPDATE runs SET ended = ? WHERE run = ?", (reason, self.run))

    def issue(self, attempts: Sequence[Attempt], wave: int = 0, again: bool = False) -> None:
        """Writes that attempts, with their digests, are about to be given out; see `record`."""
        self.record((), attempts, wave, again)

    def commit(self, verdicts: Sequence[tuple[Attempt, Verdict]]) -> None:
        """Writes verdicts, and infrastructure failures, of attempts that were issued."""
        self.record(verdicts, ())

    def record(
        self,
        verdicts: Sequence[tuple[Attempt, Verdict]],
        attempts: Sequence[Attempt],
        wave: int = 0,
        again: bool = False,
    ) -> None:
        """Writes verdicts and then issues that follow from them, in as few transactions as may be.

        Args:
            verdicts: Of attempts that were issued.
            attempts: With their digests.
            wave: The number of the call that decided them.
            again: Whether they were in flight when a process died.
        """
        chunks: list[tuple[Sequence[tuple[Attempt, Verdict]], Sequence[Attempt]]] = [
            (verdicts[begin : begin + BATCH], ()) for begin in range(0, len(verdicts), BATCH)
        ]
        for begin in range(0, len(attempts), BATCH):
            issues = attempts[begin : begin + BATCH]
            if begin == 0 and chunks:
                chunks[-1] = (chunks[-1][0], issues)
            else:
                chunks.append(((), issues))
        for said, given in chunks:
            self._write(said, given, wave, again)

    def _write(
        self,
        verdicts: Sequence[tuple[Attempt, Verdict]],
        attempts: Sequence[Attempt],
        wave: int,
        again: bool,
    ) -> None:
        run, issues = self.run, self._issues
        committed = [
            (seq, issues[attempt[0], attempt[1]], *verdict)
            for seq, (attempt, verdict) in enumerate(verdicts, start=self._next)
        ]
        issued = [
            (seq, run, wave, root, candidate, again, bytes.fromhex(digest))
            for seq, (root, candidate, digest) in enumerate(
                attempts, start=self._next + len(committed)
            )
        ]
        with self._transaction() as db:
            if committed:
                db.executemany("INSERT INTO committed VALUES (?, ?, ?, ?, ?, ?, ?)", committed)
            if issued:
                db.executemany("INSERT INTO issued VALUES (?, ?, ?, ?, ?, ?, ?)", issued)
        self._next += len(committed) + len(issued)
        for attempt, _ in verdicts:
            del issues[attempt[0], attempt[1]]
        for seq, _, _, root, candidate, _, _ in issued:
            issues[root, candidate] = seq

    def events(self) -> Iterator[Event]:
        """Yields the issues and commits of the last run in their order."""
        rows = self.rows(
            "SELECT seq, root, candidate, hex(digest), wave, again, NULL, NULL, NULL, NULL, NULL "
            "FROM issued WHERE run = ?1 UNION ALL "
            "SELECT c.seq, root, candidate, hex(digest), wave, again, passed, score, cost, "
            "seconds, infrastructure FROM committed c JOIN issued i ON i.seq = c.issue "
            "WHERE run = ?1 ORDER BY 1",
            self.run,
        )
        for _, root, candidate, digest, wave, again, passed, *rest in rows:
            verdict = None if passed is None else Verdict(bool(passed), *rest)
            yield Event(Attempt(root, candidate, digest.lower()), wave, bool(again), verdict)

    def committed(self) -> list[tuple[Attempt, Verdict]]:
        """Returns the verdicts of the last run in the order they came, no failure among them."""
        pairs = [(each.attempt, each.verdict) for each in self.events()]
        return [(at, said) for at, said in pairs if said and said.infrastructure is None]

    def open_attempts(self) -> list[Attempt]:
        """Returns the attempts of the last run that were issued and are without an answer."""
        found: dict[tuple[int, int], Attempt] = {}
        for attempt, _, _, verdict in self.events():
            if verdict is None:
                found[attempt[:2]] = attempt
            else:
                found.pop(attempt[:2], None)
        return list(found.values())

    def verdicts(self) -> dict[str, Verdict]:
        """Returns the verdicts of all runs, by what they are of; the first where there are two."""
        rows = self.rows(
            "SELECT hex(digest), passed, score, cost, seconds FROM committed c "
            "JOIN issued i ON i.seq = c.issue WHERE infrastructure IS NULL ORDER BY c.seq DESC"
        )
        return {digest.lower(): Verdict(bool(passed), *rest) for digest, passed, *rest in rows}

    def settings(self) -> dict[str, Any]:
        """Returns what the last run was begun with; empty if there is none."""
        rows = list(self.rows("SELECT settings FROM runs WHERE run = ?", self.run))
        return dict(json.loads(rows[0][0])) if rows else {}

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yields what a query finds."""
        with self._clear("read"):
            yield from self._db.execute(query, values)

    def close(self) -> None:
        """Closes the file and lets another write; may be called again."""
        self._db.close()
        if self._lock is not None:
            self._lock.close()
