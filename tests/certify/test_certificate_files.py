"""Where certificates and rows are written, and what is never replaced."""

import os
import subprocess
import sys

import pytest

from branchrt_gym.bench.record import append_row
from branchrt_gym.certify import certify


@pytest.fixture(scope="module")
def certificate():
    return certify("branchrt/Blackjack-v0", rows=[])


def test_what_is_no_file_is_not_replaced(certificate, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe):
        with pytest.raises(ValueError, match="no regular file"):
            certificate.save(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pipe"]


def test_a_link_is_written_through(certificate, tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    certificate.save(link)
    assert link.is_symlink() and target.read_text() == certificate.to_json()


def test_a_bad_target_is_named_before_the_work(tmp_path):
    command = [sys.executable, "-P", "-m", "branchrt_gym.cli", "certify", "branchrt/Blackjack-v0"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "no regular file" in done.stderr


def test_a_line_that_was_cut_off_stays_alone(tmp_path):
    rows = tmp_path / "rows.jsonl"
    append_row(rows, {"a": 1})
    with rows.open("a") as file:
        file.write('{"b": ')
    append_row(rows, {"c": 3})
    assert rows.read_text().splitlines() == ['{"a": 1}', '{"b": ', '{"c": 3}']
