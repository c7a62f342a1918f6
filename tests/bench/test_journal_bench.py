"""`branchrt bench journal`: what was written is read back before any rate is given."""

import pytest
from typer.testing import CliRunner

from branchrt_gym.bench.journal import JournalSizes, measure_journal
from branchrt_gym.bench.record import read_rows
from branchrt_gym.cli import app
from branchrt_gym.evaluation.journal import Journal


@pytest.mark.parametrize("apart", [False, True])
def test_what_was_written_is_compared(apart, tmp_path):
    sizes = JournalSizes(230, 8, 100, apart)
    found = measure_journal(sizes, repetitions=1, folder=tmp_path)
    assert (found.compared, found.mismatches) == (460, 0)
    assert found.transactions == (6 if apart else 4)
    assert found.rate.interquartile_mean > 0 and found.bytes > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["lost", "changed"])
def test_no_rate_where_the_journal_holds_something_else(fault, monkeypatch, tmp_path):
    record = Journal.record

    def wrong(self, verdicts, attempts, *rest):
        changed = [(at, said._replace(score=1e9)) for at, said in verdicts]
        record(self, () if fault == "lost" else changed, attempts, *rest)

    monkeypatch.setattr(Journal, "record", wrong)
    found = measure_journal(JournalSizes(20, 8, 10), repetitions=1, folder=tmp_path)
    assert found.mismatches > 0
    assert found.rate is None


def test_the_command_writes_a_row(tmp_path):
    out = tmp_path / "rows.jsonl"
    command = ["bench", "journal", "--attempts", "50", "--repetitions", "1", "--folder"]
    done = CliRunner().invoke(app, [*command, str(tmp_path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    (row,) = read_rows(out)
    assert (row["bench"], row["mismatches"], row["sizes"]["batch"]) == ("journal", 0, 100)
    wrong = CliRunner().invoke(app, [*command, str(tmp_path), "--batch", "101"])
    assert wrong.exit_code == 2
