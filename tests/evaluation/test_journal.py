"""The journal: what is written is there, whole, for one writer; other files are refused."""

import json
import sqlite3
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from branchrt_gym.cli import app
from branchrt_gym.evaluation import (
    Attempt,
    CallableVerifier,
    EvalFrontier,
    Journal,
    JournalError,
    Verdict,
    attempt_digest,
)
from branchrt_gym.evaluation.journal_status import journal_status


def attempt(number, candidate=0):
    return Attempt(number, candidate, attempt_digest(f"{number}", f"{candidate}", "", "1"))


def test_what_is_written_is_read_in_order(tmp_path):
    first, second, third = attempt(0), attempt(1), attempt(0, 1)
    with Journal(tmp_path / "journal") as journal:
        assert journal.begin({"needed": 1, "name": "ü"}) == 1
        journal.issue([first, second], wave=3)
        lost = Verdict(False, infrastructure="no answer")
        journal.record([(second, Verdict(True, 0.5, 0.1, 2.5)), (first, lost)], [third], wave=4)
    with Journal(tmp_path / "journal", write=False) as journal:
        assert journal.settings() == {"needed": 1, "name": "ü"}
        events = [(each.attempt, each.wave, each.verdict) for each in journal.events()]
        assert events == [
            (first, 3, None),
            (second, 3, None),
            (second, 3, Verdict(True, 0.5, 0.1, 2.5)),
            (first, 3, lost),
            (third, 4, None),
        ]
        assert journal.committed() == [(second, Verdict(True, 0.5, 0.1, 2.5))]
        assert journal.open_attempts() == [third]
        assert journal.verdicts() == {second.digest: Verdict(True, 0.5, 0.1, 2.5)}
        found = journal_status(journal)
    counts = (found.issued, found.passed, found.failed, found.infrastructure, found.in_flight)
    assert counts == (3, 1, 0, 1, 1)
    assert (found.solved, found.cost, found.seconds) == (1, 0.1, 2.5)


def test_at_most_100_attempts_in_a_transaction(tmp_path, monkeypatch):
    sizes = []
    write = Journal._write

    def counted(self, verdicts, attempts, *rest):
        sizes.append((len(verdicts), len(attempts)))
        write(self, verdicts, attempts, *rest)

    monkeypatch.setattr(Journal, "_write", counted)
    attempts = [attempt(number) for number in range(450)]
    with Journal(tmp_path / "journal") as journal:
        journal.begin({})
        journal.issue(attempts[:250])
        journal.record([(each, Verdict(True)) for each in attempts[:150]], attempts[250:])
        assert sizes == [(0, 100), (0, 100), (0, 50), (100, 0), (50, 100), (0, 100)]
        assert [each.attempt for each in journal.events()] == [
            *attempts[:250],
            *attempts[:150],
            *attempts[250:],
        ]
        assert journal.open_attempts() == attempts[150:]
        mode, level = (
            journal._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        )
        assert (mode, level) == ("wal", 2)  # 2 is FULL


def test_a_later_run_counts_for_itself_and_knows_all_verdicts(tmp_path):
    with Journal(tmp_path / "journal") as journal:
        journal.begin({})
        journal.issue([attempt(0)])
        journal.commit([(attempt(0), Verdict(True))])
        assert journal.begin({"needed": 1}) == 2
        assert list(journal.events()) == []
        journal.issue([attempt(1)])
        journal.commit([(attempt(1), Verdict(False))])
        assert set(journal.verdicts()) == {attempt(0).digest, attempt(1).digest}
        assert (journal_status(journal).passed, journal_status(journal).failed) == (0, 1)


def test_one_writes_and_others_read(tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.begin({})
        journal.issue([attempt(0)])
        with pytest.raises(JournalError, match="written to by another process"):
            Journal(path)
        with Journal(path, write=False) as other:
            assert other.open_attempts() == [attempt(0)]
            with pytest.raises(JournalError, match="readonly"):
                other.issue([attempt(1)])
    with Journal(path) as journal:
        assert journal.open_attempts() == [attempt(0)]


@pytest.mark.parametrize("kind", ["text", "sqlite", "newer", "folder"])
def test_other_files_are_refused_and_left_alone(kind, tmp_path):
    path = tmp_path / "file"
    if kind == "text":
        path.write_text("no journal at all " * 100)
    elif kind == "folder":
        path.mkdir()
    else:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE t(x)")
            if kind == "newer":
                with Journal(tmp_path / "mine"):
                    pass
                (identity,) = (
                    sqlite3.connect(tmp_path / "mine").execute("PRAGMA application_id").fetchone()
                )
                other.execute(f"PRAGMA application_id = {identity}")
                other.execute("PRAGMA user_version = 2")
        other.close()
    before = path.read_bytes() if path.is_file() else None
    for write in (True, False):
        with pytest.raises(JournalError, match=r"file`|`.*file"):
            Journal(path, write=write)
    assert before is None or path.read_bytes() == before
    with pytest.raises(JournalError, match="is not there"):
        Journal(tmp_path / "nothing", write=False)


def test_a_full_disk_stops_the_run_with_a_clear_error(tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.begin({})
        journal._db.execute("PRAGMA max_page_count = 20")
        held = []
        with pytest.raises(JournalError, match=r"full.* is whole; make room"):
            for number in range(0, 100_000, 50):
                batch = [attempt(each) for each in range(number, number + 50)]
                journal.issue(batch)
                held += batch
        assert journal.open_attempts() == held
        journal._db.execute("PRAGMA max_page_count = 100000")
        journal.issue(batch)  # once there is room again
        assert journal.open_attempts() == [*held, *batch]
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


LIMITED = """
import resource, sys
from branchrt_gym.evaluation import CallableVerifier, EvalFrontier, JournalError

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    verifier = CallableVerifier(lambda root, candidate: candidate == 1, capacity=64, version="1")
    EvalFrontier(2000, 3, verifier, journal=sys.argv[1]).run()
except JournalError as error:
    sys.exit(f"stopped: {error}")
"""


def test_a_file_that_may_not_grow_leaves_the_journal_whole(tmp_path):
    path = tmp_path / "journal"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, path, "200000"], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "stopped: " in done.stderr and "is whole" in done.stderr
    with Journal(path, write=False) as journal:
        known = {each.root for each, _ in journal.committed()}
        assert known
    again = []

    def verify(task, candidate):
        again.append((task, candidate))
        return candidate == 1

    with CallableVerifier(verify, capacity=64, version="1") as verifier:
        found = EvalFrontier(2000, 3, verifier, journal=path).run()
    assert found.solved.all() and found.attempts == 4000
    assert not {(root, 0) for root in known} & set(again)
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_readers_see_whole_transactions(tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.begin({})
        seen = []

        def read():
            while not stop.is_set():
                with Journal(path, write=False) as other:
                    seen.append(len(list(other.events())))

        stop = threading.Event()
        reader = threading.Thread(target=read)
        reader.start()
        for number in range(0, 2000, 40):
            journal.issue([attempt(each) for each in range(number, number + 40)])
        stop.set()
        reader.join()
    assert seen == sorted(seen)
    assert {count % 40 for count in seen} == {0}


SCRIPT = """
import os, sys
from branchrt_gym.evaluation import EvalFrontier

def verify(task, candidate):
    if os.path.exists("die") and (task, candidate) == (3, 1):
        os._exit(9)
    return candidate == 1

result = EvalFrontier(5, 2, verify, journal="journal").run()
print("solved", result.solved.sum(), "repeated", result.repeated)
"""


def test_status_and_resume(tmp_path, monkeypatch):
    (tmp_path / "run.py").write_text(SCRIPT)
    (tmp_path / "die").touch()
    command = [sys.executable, "run.py"]
    assert subprocess.run(command, cwd=tmp_path).returncode == 9
    path, runner = str(tmp_path / "journal"), CliRunner()
    shown = runner.invoke(app, ["eval", "status", path])
    assert shown.exit_code == 0 and "not over" in shown.output
    found = json.loads(runner.invoke(app, ["eval", "status", path, "--json"]).output)
    assert (found["ended"], found["failed"]) == (None, 5)
    assert 0 <= found["solved"] <= 3  # what was not written when it died
    assert found["settings"]["command"][-1] == "run.py"
    (tmp_path / "die").unlink()
    monkeypatch.chdir("/")
    done = subprocess.run(
        [sys.executable, "-m", "branchrt_gym.cli", "eval", "resume", path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "solved 5 repeated" in done.stdout
    found = json.loads(runner.invoke(app, ["eval", "status", path, "--json"]).output)
    assert (found["ended"], found["solved"]) == ("exhausted", 5)
    over = runner.invoke(app, ["eval", "resume", path])
    assert over.exit_code == 2
    assert runner.invoke(app, ["eval", "status", str(tmp_path / "run.py")]).exit_code == 2
    assert runner.invoke(app, ["eval", "status", str(tmp_path / "no")]).exit_code == 2
