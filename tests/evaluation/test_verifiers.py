"""Verifiers in threads: each attempt is reported once, whatever its function does."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from branchrt_gym.errors import BranchRTError, ClosedError
from branchrt_gym.evaluation import verifiers
from branchrt_gym.evaluation.answers import failure, function_name, read_verdict
from branchrt_gym.evaluation.attempts import Attempt, Verdict, Verifier
from branchrt_gym.evaluation.verifiers import CallableVerifier

SOON = 30.0  # seconds in which everything happens, by far


def collect(verifier, count):
    """Polls until so many verdicts are there."""
    found = []
    end = time.monotonic() + SOON
    while len(found) < count and time.monotonic() < end:
        found += verifier.poll(1.0)
    assert len(found) == count
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, Verdict(True, 1.0, 0.0, 2.0)),
        (np.bool_(False), Verdict(False, 0.0, 0.0, 2.0)),
        (1, Verdict(True, 1.0, 0.0, 2.0)),
        (0.999, Verdict(False, 0.999, 0.0, 2.0)),
        (np.float32(1.5), Verdict(True, 1.5, 0.0, 2.0)),
        (-3, Verdict(False, -3.0, 0.0, 2.0)),
        (Verdict(False, 0.25, 7.0, 9.0), Verdict(False, 0.25, 7.0, 9.0)),
        (Verdict(True, 0.0), Verdict(True, 0.0, 0.0, 2.0)),
        ({"passed": True}, Verdict(True, 1.0, 0.0, 2.0)),
        ({"passed": False, "cost": 3, "more": "ignored"}, Verdict(False, 0.0, 3.0, 2.0)),
        (Verdict(True, infrastructure="no disk"), failure("no disk", 2.0)),
        ({"infrastructure": "no disk"}, failure("no disk", 2.0)),
    ],
)
def test_answers_are_read(value, expected):
    found = read_verdict(value, 2.0)
    assert found == expected
    assert type(found.passed) is bool and type(found.score) is float


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "the answer is missing or None"),
        ("True", "the answer is of type str"),
        ([True], "the answer is of type list"),
        (np.array(True), "the answer is of type ndarray"),
        (float("nan"), "the answer is nan"),
        (10**400, "the answer is inf"),
        (1j, "the answer is of type complex"),
        ({}, "`passed` is missing or None"),
        ({"passed": 1}, "`passed` is of type int"),
        (Verdict("yes"), "`passed` is of type str"),
        (Verdict(True, cost=-1.0), "`cost` is -1.0; expected a finite number from 0 on"),
        (Verdict(True, seconds=float("inf")), "`seconds` is inf"),
        (Verdict(True, score=float("nan")), "`score` is nan; expected a finite number"),
        (Verdict(True, score=True), "`score` is of type bool"),
        (Verdict(True, infrastructure=5), "`infrastructure` is of type int"),
    ],
)
def test_garbage_is_an_infrastructure_failure(value, says):
    found = read_verdict(value, 2.0)
    assert found.infrastructure.startswith(f"garbage: {says}")
    assert not found.passed


def test_a_cause_is_kept_short_and_never_empty():
    assert len(failure("x" * 10**6).infrastructure) == 2000
    assert failure("").infrastructure == "no cause was given"


@pytest.mark.parametrize("threads", [1, 3])
def test_every_attempt_is_reported_once(threads):
    def function(task, candidate):
        if candidate == "raises":
            raise LookupError(f"of {task}")
        if candidate == "exits":
            raise SystemExit(3)
        return {"fails": 0.5, "passes": True, "garbage": "?"}[candidate]

    tasks, candidates = ["one", "two"], ["fails", "passes", "garbage", "raises", "exits"]
    attempts = [Attempt(root, number, "d") for root in range(2) for number in range(5)]
    with CallableVerifier(
        function, tasks=tasks, candidates=candidates, threads=threads, capacity=10
    ) as verifier:
        assert isinstance(verifier, Verifier)
        verifier.submit(attempts)
        found = dict(collect(verifier, 10))
        assert verifier.poll(None) == []
    assert set(found) == set(attempts)
    for root, task in enumerate(tasks):
        fails, passes, garbage, raises, exits = (found[Attempt(root, n, "d")] for n in range(5))
        assert not fails.passed and fails.score == 0.5 and fails.infrastructure is None
        assert passes.passed and passes.infrastructure is None and passes.seconds > 0
        assert garbage.infrastructure.startswith("garbage: ")
        assert raises.infrastructure.startswith(f"LookupError: of {task} (function, line ")
        assert exits.infrastructure.startswith("SystemExit: 3")


def test_indices_stand_for_themselves_and_one_thread_keeps_the_order():
    calls = []
    with CallableVerifier(lambda *names: bool(calls.append(names)), capacity=50) as verifier:
        attempts = [Attempt(root, 7 * root) for root in range(50)]
        verifier.submit(attempts)
        found = collect(verifier, 50)
    assert calls == [(root, 7 * root) for root in range(50)]
    assert [attempt for attempt, _ in found] == attempts


def test_more_threads_work_at_once():
    meeting = threading.Barrier(4, timeout=SOON)  # passed only by four calls at a time
    with CallableVerifier(lambda *_: meeting.wait() >= 0, threads=4) as verifier:
        assert verifier.capacity == 8
        verifier.submit([Attempt(root, 0) for root in range(8)])
        assert all(verdict.passed for _, verdict in collect(verifier, 8))


def test_the_queue_is_bounded():
    gate = threading.Event()
    with CallableVerifier(lambda *_: gate.wait(SOON), capacity=3) as verifier:
        verifier.submit([Attempt(0, 0), Attempt(1, 0)])
        with pytest.raises(ValueError, match="`attempts` has 2; expected at most 1: of a"):
            verifier.submit([Attempt(2, 0), Attempt(3, 0)])
        verifier.submit([Attempt(2, 0)])
        assert verifier.poll(0.01) == []
        gate.set()
        assert len(collect(verifier, 3)) == 3
        verifier.submit([Attempt(root, 1) for root in range(3)])
        assert len(collect(verifier, 3)) == 3


def test_a_call_without_end_is_given_up_and_its_thread_replaced():
    gate = threading.Event()
    with CallableVerifier(
        lambda task, _: gate.wait(SOON) if task == 0 else True, timeout=0.2, capacity=3
    ) as verifier:
        verifier.submit([Attempt(root, 0) for root in range(3)])
        found = dict(collect(verifier, 3))
        gate.set()
        assert verifier.poll(0.3) == []  # what the call says in the end is not heard
    assert found[Attempt(0, 0)].infrastructure.startswith("no verdict after 0.2 s")
    assert found[Attempt(1, 0)].passed and found[Attempt(2, 0)].passed


def test_calls_without_end_are_not_left_behind_without_end(monkeypatch):
    monkeypatch.setattr(verifiers, "MOST_LEFT", 2)
    gate = threading.Event()
    with CallableVerifier(lambda *_: gate.wait(SOON), timeout=0.05, capacity=9) as verifier:
        verifier.submit([Attempt(root, 0) for root in range(9)])
        with pytest.raises(BranchRTError, match="3 calls have not returned"):
            collect(verifier, 9)
        gate.set()


def test_cancelled_attempts_that_wait_are_dropped():
    gate, begun, calls = threading.Event(), threading.Event(), []

    def function(task, candidate):
        calls.append(task)
        begun.set()
        return gate.wait(SOON)

    with CallableVerifier(function, capacity=4) as verifier:
        verifier.submit([Attempt(root, 0) for root in range(4)])
        assert begun.wait(SOON)
        verifier.cancel([Attempt(0, 0), Attempt(2, 0), Attempt(9, 9)])
        verifier.submit([Attempt(root, 1) for root in (4, 5)])  # there is room for them
        with pytest.raises(ValueError, match="expected at most 0"):
            verifier.submit([Attempt(6, 1)])
        gate.set()
        wanted = {Attempt(1, 0), Attempt(3, 0), Attempt(4, 1), Attempt(5, 1)}
        found = set()
        while not wanted <= found:
            found |= {attempt for attempt, _ in verifier.poll(SOON)}
        # The one that ran already was paid for, so it is told.
        assert found == wanted | {Attempt(0, 0)}
    assert calls == [0, 1, 3, 4, 5]


def test_polling_does_not_wait_for_the_cancelled():
    gate, begun = threading.Event(), threading.Event()
    with CallableVerifier(lambda *_: begun.set() or gate.wait(SOON)) as verifier:
        verifier.submit([Attempt(0, 0)])
        assert begun.wait(SOON)
        verifier.cancel([Attempt(0, 0)])
        assert verifier.poll(None) == []
        gate.set()


def test_nothing_is_left_after_close_or_an_exception():
    before = set(threading.enumerate())
    with (
        pytest.raises(KeyError),
        CallableVerifier(lambda *_: True, threads=3, capacity=9) as verifier,
    ):
        verifier.submit([Attempt(root, 0) for root in range(9)])
        raise KeyError
    assert set(threading.enumerate()) <= before
    verifier.close()
    verifier.poll(None)  # what was decided before
    assert verifier.poll(None) == []
    with pytest.raises(ClosedError, match="after `close`"):
        verifier.submit([Attempt(0, 0)])


def test_the_version_is_what_is_called():
    class Judge:
        def __call__(self, task, candidate):
            return True

    assert CallableVerifier(Judge()).version == f"{__name__}.{Judge.__qualname__}"
    assert CallableVerifier(collect).version == f"{__name__}.collect"
    assert CallableVerifier(collect, version="2").version == "2"
    assert function_name(partial(collect, 1)) != function_name(partial(collect, 2))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"threads": 0}, "`threads` is 0; expected 1"),
        ({"threads": 4, "capacity": 3}, "`capacity` is 3; expected 4 or more"),
        ({"timeout": 0}, "`timeout` is 0; expected seconds above 0"),
    ],
)
def test_mistakes_are_named(given, says):
    with pytest.raises(ValueError, match=says):
        CallableVerifier(collect, **given)
