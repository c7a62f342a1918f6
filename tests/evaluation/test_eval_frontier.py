"""EvalFrontier: modes, bounds, journals; decisions equal the plain loop fed the journal's order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, oracle_of, round_by_round

from branchrt_gym.evaluation import (
    Bandit,
    CandidateTable,
    EvalFrontier,
    Journal,
    JournalError,
    Verdict,
    Verdicts,
    random_order,
)
from branchrt_gym.evaluation.attempts import CANCELLED, FAILED, GIVEN_UP, PASSED

ROOTS, CANDIDATES = 30, 5


def table_of(seed, share=0.3, shape=(ROOTS, CANDIDATES)):
    return np.random.default_rng(seed).random(shape) < share


class Recorded:
    """A batch verifier."""

    version = "recorded"

    def __init__(self, passes, paid=None):
        self.passes, self.paid = passes, paid
        self.calls = 0

    def verify(self, roots, candidates):
        self.calls += 1
        paid = None if self.paid is None else self.paid[roots, candidates]
        return Verdicts(self.passes[roots, candidates], None, paid, paid)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_waves_follow_the_written_rule(seed, kept, single, tmp_path):
    passes = table_of(seed)
    order = random_order(seed)
    verifier = Scripted(passes, seed, capacity=3) if single else Recorded(passes)
    journal = tmp_path / "run" if kept else None
    found = EvalFrontier(
        ROOTS, CANDIDATES, verifier, ordering=order, target=20, journal=journal
    ).run()
    attempts, solved = round_by_round(passes, found.order.tolist(), 20)
    assert (found.attempts_to_target or found.attempts) == attempts
    assert np.flatnonzero(found.solved).tolist() == sorted(solved)
    tried = np.isin(found.status, (PASSED, FAILED))
    assert (passes[tried] == (found.status[tried] == PASSED)).all()
    assert found.attempts == tried.sum()
    assert found.timeline[-1, 1:3].tolist() == [found.attempts, found.solved.sum()]
    if single:
        assert verifier.most <= 3
        assert sorted(verifier.evaluated) == sorted(set(verifier.evaluated))
        # What came before an earlier attempt of the last round was paid for in vain.
        assert len(verifier.evaluated) <= (found.attempts_full_rounds or attempts)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_asynchronous_runs_equal_the_loop_fed_the_journals_order(data, tmp_path_factory):
    seed = data.draw(st.integers(0, 2**32 - 1))
    rules = {
        "needed": data.draw(st.integers(1, 3)),
        "target": data.draw(st.one_of(st.none(), st.integers(1, ROOTS))),
        "max_cost": data.draw(st.one_of(st.none(), st.just(12.0))),
        "max_attempts": data.draw(st.one_of(st.none(), st.integers(1, 100))),
        "in_flight_per_root": data.draw(st.integers(1, 3)),
        "retries": data.draw(st.integers(0, 2)),
    }
    chance = np.random.default_rng(seed)
    passes, paid = table_of(seed), chance.random((ROOTS, CANDIDATES))
    bound = data.draw(st.integers(1, 12))
    journal = tmp_path_factory.mktemp("journal") / "run"
    verifier = Scripted(
        passes, seed, bound, data.draw(st.sampled_from([0, 0.2])), paid, data.draw(st.booleans())
    )
    found = EvalFrontier(
        ROOTS, CANDIDATES, verifier, mode="async", backoff=0.0, journal=journal, **rules
    ).run()
    with Journal(journal, write=False) as kept:
        events = list(kept.events())
        verdicts = kept.committed()
    oracle = oracle_of(events, ROOTS, CANDIDATES, **rules)
    assert (found.reason, found.attempts) == (oracle.done, oracle.attempts)
    assert found.attempts_to_target == oracle.attempts_to_target
    assert found.solved.tolist() == oracle.solved
    assert found.status.tolist() == oracle.status()
    assert round(found.cost * 1e9) == oracle.cost_units
    assert found.infrastructure == oracle.infrastructure == found.causes.get("lost", 0)
    assert found.attempts == len(verdicts)
    # What was verified counts once, and each verdict is the table's.
    assert all(passes[attempt[:2]] == verdict.passed for attempt, verdict in verdicts)


def test_a_slow_root_blocks_no_other():
    passes = table_of(1)

    class Slow(Scripted):
        def poll(self, timeout):
            quick = [each for each in self.held if each.root != 7] or self.held
            self.held = [each for each in self.held if each not in quick]
            return [(each, self.verdict(each)) for each in quick]

    verifier = Slow(passes, capacity=4)
    EvalFrontier(ROOTS, CANDIDATES, verifier, mode="async").run()
    last = verifier.evaluated.index((7, 0))
    assert {root for root, _ in verifier.evaluated[:last]} == set(range(ROOTS)) - {7}
    assert all(root == 7 for root, _ in verifier.evaluated[last:])


def test_what_is_in_flight_of_a_solved_root_is_cancelled():
    passes = np.ones((4, 3), dtype=bool)

    class OneByOne(Scripted):
        def poll(self, timeout):
            first, self.held = self.held[:1], self.held[1:]
            return [(each, self.verdict(each)) for each in first]

    verifier = OneByOne(passes, capacity=12, late=False)
    found = EvalFrontier(4, 3, verifier, mode="async", in_flight_per_root=3).run()
    assert found.reason == "exhausted"
    assert found.attempts == 4
    assert found.cancelled == 8 == (found.status == CANCELLED).sum()


def test_failures_wait_longer_each_time(monkeypatch):
    waits = []
    monkeypatch.setattr(
        "time.sleep", lambda seconds: waits.append(seconds) or clock.append(seconds)
    )
    clock = []
    monkeypatch.setattr("time.monotonic", lambda: sum(clock))

    class Inline(Scripted):
        def verdict(self, attempt):
            return Verdict(False, infrastructure="no route")

    verifier = Inline(np.zeros((1, 1), dtype=bool))
    found = EvalFrontier(1, 1, verifier, retries=3, backoff=2.0).run()
    assert waits == [2.0, 4.0, 8.0]
    assert found.status.tolist() == [[GIVEN_UP]]
    assert (found.attempts, found.infrastructure, found.reason) == (0, 4, "exhausted")
    assert found.causes == {"no route": 4}


@pytest.mark.parametrize("mode", ["waves", "async"])
def test_garbage_and_exceptions_are_no_verdicts(mode):
    answers = {(0, 0): None, (1, 0): float("nan"), (2, 0): Verdict("yes")}

    class Odd(Scripted):
        def verdict(self, attempt):
            if attempt[:2] in answers:
                return answers.pop(attempt[:2])
            return super().verdict(attempt)

        def submit(self, attempts):
            if attempts[0][:2] == (3, 0) and "submit" not in answers:
                answers["submit"] = True
                raise RuntimeError("full")
            super().submit(attempts)

    passes = np.ones((4, 1), dtype=bool)
    found = EvalFrontier(4, 1, Odd(passes, capacity=1), mode=mode, backoff=0.0).run()
    assert found.solved.all()
    assert found.infrastructure == 4
    assert sum("garbage" in cause for cause in found.causes) == 3
    assert any("RuntimeError: full" in cause for cause in found.causes)


@pytest.mark.parametrize("mode", ["waves", "async"])
@pytest.mark.parametrize("learns", [False, True])
def test_a_run_that_died_goes_on_where_it_was(mode, learns, tmp_path):
    passes = table_of(3, 0.2)

    class Dying(Scripted):
        left = 1 << 30

        def verdict(self, attempt):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return super().verdict(attempt)

    cost = np.random.default_rng(0).random(passes.shape) + 0.1
    table = CandidateTable(tuple("abcde"), ROOTS, cost=cost)

    def frontier(verifier, name):
        ordering = {"ordering": Bandit(3)} if learns else {}
        return EvalFrontier(
            ROOTS,
            list("abcde"),
            verifier,
            mode=mode,
            table=table,
            target=25,
            backoff=0.0,
            journal=tmp_path / name,
            **ordering,
        )

    whole = frontier(Scripted(passes, 0, 6, 0.1, cost), "whole").run()
    for moment in range(1, 60, 4):
        verifier = Dying(passes, moment, 6, 0.1, cost)
        verifier.left = moment
        name = f"{moment}"
        with pytest.raises(KeyboardInterrupt):
            frontier(verifier, name).run()
        with Journal(tmp_path / name, write=False) as journal:
            known = {attempt[:2] for attempt, _ in journal.committed()}
            open_ = len(journal.open_attempts())
        again = Scripted(passes, moment + 1, 6, 0.1, cost)
        found = frontier(again, name).resume()
        assert not known & set(again.evaluated)
        assert found.repeated == open_
        if mode == "waves":
            assert found.attempts_to_target == whole.attempts_to_target
            assert found.solved.tolist() == whole.solved.tolist()
        with Journal(tmp_path / name, write=False) as journal:
            events = list(journal.events())
            assert known <= {attempt[:2] for attempt, _ in journal.committed()}
        if mode == "async" and not learns:
            oracle = oracle_of(events, ROOTS, 5, target=25)
            assert found.status.tolist() == oracle.status()
        # Once more: nothing is left to verify, and the same comes out.
        third = Scripted(passes, moment)
        same = frontier(third, name).run()
        assert third.evaluated == []
        assert same.status.tolist() == found.status.tolist()
        assert same.attempts == found.attempts
        assert same.cost == pytest.approx(found.cost, abs=1e-9)


def test_an_unchanged_attempt_is_never_paid_twice(tmp_path):
    passes, journal = table_of(4), tmp_path / "journal"
    patches = {(root, candidate): "v1" for root in range(ROOTS) for candidate in range(CANDIDATES)}

    def run(target):
        verifier = Scripted(passes, 1, paid=np.ones(passes.shape))
        frontier = EvalFrontier(
            ROOTS,
            CANDIDATES,
            verifier,
            target=target,
            journal=journal,
            content=lambda root, candidate: patches[root, candidate],
        )
        return frontier.run(), set(verifier.evaluated)

    first, paid = run(10)
    second, more = run(20)
    assert not paid & more
    assert (second.reused, second.cost) == (len(paid), len(more))
    assert second.attempts_to_target == round_by_round(passes, range(CANDIDATES), 20)[0]
    patches[0, 0] = "v2"
    third, again = run(20)
    assert again == {(0, 0)}
    assert third.attempts_to_target == second.attempts_to_target
    assert first.reason == third.reason == "target"


def test_a_journal_of_other_tasks_is_refused(tmp_path):
    journal = tmp_path / "journal"
    EvalFrontier(["a", "b"], 2, lambda task, candidate: True, journal=journal).run()
    other = EvalFrontier(["a", "c"], 2, lambda task, candidate: True, journal=journal)
    with pytest.raises(JournalError, match=r"another run: its tasks, 2 of them"):
        other.run()
    with pytest.raises(JournalError, match="no run to go on with"):
        with Journal(tmp_path / "empty"):
            pass
        EvalFrontier(2, 2, bool, journal=tmp_path / "empty").resume()
    with pytest.raises(ValueError, match="`journal` is None"):
        EvalFrontier(2, 2, bool).resume()


@pytest.mark.parametrize(
    ("wrong", "error", "name"),
    [
        ({"mode": "batch"}, ValueError, "mode"),
        ({"in_flight": 0}, ValueError, "in_flight"),
        ({"backoff": -1.0}, ValueError, "backoff"),
        ({"backoff": float("nan")}, ValueError, "backoff"),
        ({"needed": 0}, ValueError, "needed"),
        ({"target": 31}, ValueError, "target"),
        ({"verifier": 3}, TypeError, "verifier"),
        ({"device": "cuda"}, ValueError, "device"),
        ({"table": CandidateTable(("a",), 3)}, ValueError, "table"),
        ({"verifier": Recorded(None), "mode": "async"}, ValueError, "verifier"),
        ({"verifier": Recorded(None), "in_flight_per_root": 2}, ValueError, "verifier"),
    ],
)
def test_wrong_calls(wrong, error, name):
    arguments = {"tasks": ROOTS, "candidates": CANDIDATES, "verifier": bool, **wrong}
    with pytest.raises(error, match=f"`{name}` (is|verifies)"):
        EvalFrontier(**arguments)


def test_a_callable_is_given_names_and_progress_is_shown(capsys):
    told = []

    def verify(task, candidate):
        told.append((task, candidate))
        return candidate == "good"

    found = EvalFrontier(["x", "y"], ["bad", "good"], verify, progress=True).run()
    assert told == [("x", "bad"), ("y", "bad"), ("x", "good"), ("y", "good")]
    assert found.solved.all()
    assert "4 attempts" in capsys.readouterr().err


def test_costs_and_seconds_of_batches_end_a_run():
    paid = np.full((ROOTS, CANDIDATES), 0.5)
    verifier = Recorded(np.zeros((ROOTS, CANDIDATES), dtype=bool), paid)
    found = EvalFrontier(ROOTS, CANDIDATES, verifier, max_cost=20.0).run()
    assert (found.reason, found.cost, verifier.calls) == ("cost", 30.0, 2)
    assert found.row()["budget_share"] == 60 / 150
