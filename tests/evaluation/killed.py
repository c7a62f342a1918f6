"""Kills runs at random moments and goes on with them; what must hold is asserted here.

Called as a script: `killed.py FOLDER MOMENTS SEED`. Children are forked, so that a moment costs no
imports. Prints what it saw as JSON.
"""

import json
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path

import numpy as np
from scripted import oracle_of

from branchrt_gym.evaluation import EvalFrontier, Journal, Verdict

ROOTS, CANDIDATES, SHARE = 3200, 4, 0.15  # about 10,000 attempts
VARIANTS = [
    {"mode": "waves"},
    {"mode": "waves", "target": 0.3},
    {"mode": "async"},
    {"mode": "async", "target": 0.3},
]
PASSES = np.random.default_rng(0).random((ROOTS, CANDIDATES)) < SHARE


class Logged:
    """Writes down what it verifies before anybody hears of it.

    One in 50 may fail the first time that a process verifies it: where a kill makes that happen
    once more, it is tried again later, which may change when a target is reached.
    """

    version, capacity = "1", 100

    def __init__(self, log, seed, fails):
        self.log, self.chance, self.fails = log, random.Random(seed), fails
        self.held, self.failed = [], set()

    def submit(self, attempts):
        self.held += attempts

    def poll(self, timeout):
        self.chance.shuffle(self.held)
        said, self.held = self.held[:60], self.held[60:]
        return [(each, self.verdict(*each[:2])) for each in said]

    def verdict(self, root, candidate):
        os.write(self.log, f"{root} {candidate}\n".encode())
        odd = self.fails and (root * CANDIDATES + candidate) % 50 == 0
        if odd and (root, candidate) not in self.failed:
            self.failed.add((root, candidate))
            return Verdict(False, infrastructure="lost")
        return Verdict(bool(PASSES[root, candidate]), 0.0, 0.001, 0.5)

    def cancel(self, attempts):
        self.held = [each for each in self.held if each not in attempts]

    def close(self):
        pass


def child(folder, rules, seed):
    """Runs to the end in a process of its own, and leaves what came out."""
    pid = os.fork()
    if pid:
        return pid
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        verifier = Logged(log, seed, fails="target" not in rules)
        found = EvalFrontier(
            ROOTS, CANDIDATES, verifier, journal=folder / "journal", backoff=0.0, **rules
        ).run()
        np.save(folder / "status.npy", found.status)
        (folder / "result.json").write_text(json.dumps(found.row()))
        os._exit(0)
    finally:
        os._exit(1)


def finish(folder, rules, seed):
    _, code = os.waitpid(child(folder, rules, seed), 0)
    assert code == 0, f"the run ended with {code}"
    return np.load(folder / "status.npy"), json.loads((folder / "result.json").read_text())


def evaluated(folder, since=0):
    path = folder / "log"
    lines = path.read_text()[since:].splitlines() if path.exists() else []
    return [tuple(map(int, line.split())) for line in lines]


def moment(folder, rules, whole, total, chance):
    """Kills one run and goes on with it; returns what was known then, and what ran again."""
    folder.mkdir()
    pid = child(folder, rules, chance.random())
    size = chance.uniform(0, total)  # of what it has written down when it is killed
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if (folder / "log").exists() and (folder / "log").stat().st_size >= size:
            break
        time.sleep(0.0005)
    time.sleep(chance.uniform(0, 0.01))  # anywhere between two writes, or in one
    os.kill(pid, signal.SIGKILL)
    _, code = os.waitpid(pid, 0)
    known, open_ = {}, []
    if (folder / "journal").exists():
        with sqlite3.connect(folder / "journal") as db:
            begun = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        db.close()
        if begun:
            with Journal(folder / "journal", write=False) as journal:
                known = dict((at[:2], said) for at, said in journal.committed())
                open_ = journal.open_attempts()
    since = (folder / "log").stat().st_size if (folder / "log").exists() else 0
    status, result = finish(folder, rules, chance.random())
    again = evaluated(folder, since)
    assert not set(again) & set(known), "a committed verdict was evaluated again"
    with Journal(folder / "journal", write=False) as journal:
        final = [(at[:2], said) for at, said in journal.committed()]
        events = list(journal.events())
    assert len(dict(final)) == len(final), "an attempt has two verdicts"
    assert known.items() <= dict(final).items(), "a committed verdict was lost"
    assert result["repeated"] <= len(open_)
    if "target" not in rules:
        assert result["repeated"] == len(open_)
        assert (status == whole[0]).all(), "the decisions are others"
        assert result["attempts"] == whole[1]["attempts"]
    elif rules["mode"] == "waves":
        assert result["attempts_to_target"] == whole[1]["attempts_to_target"]
        assert result["attempts_full_rounds"] == whole[1]["attempts_full_rounds"]
    if rules["mode"] == "async":
        oracle = oracle_of(events, ROOTS, CANDIDATES, target=rules.get("target"))
        assert status.tolist() == oracle.status(), "the loop decides otherwise"
        assert result["attempts_to_target"] == oracle.attempts_to_target
    with sqlite3.connect(folder / "journal") as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
    return os.WIFSIGNALED(code), len(known), len(open_), len(again)


def main(folder, moments, seed):
    chance = random.Random(seed)
    wholes, totals = [], []
    for number, rules in enumerate(VARIANTS):
        (folder / f"whole{number}").mkdir()
        wholes.append(finish(folder / f"whole{number}", rules, number))
        totals.append((folder / f"whole{number}" / "log").stat().st_size)
    rows = []
    for number in range(moments):
        kind = number % len(VARIANTS)
        place = folder / f"{number}"
        rows.append(moment(place, VARIANTS[kind], wholes[kind], totals[kind], chance))
        for file in place.iterdir():
            file.unlink()
    killed, known, open_, again = zip(*rows, strict=True)
    print(
        json.dumps(
            {
                "moments": moments,
                "killed": sum(killed),
                "attempts": wholes[0][1]["attempts"],
                "known": known,
                "in_flight": sum(open_),
                "evaluated_after": sum(again),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
