"""The vectorised rules against the plain loop: equal after every call, whatever happens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym.evaluation import decisions as module
from branchrt_gym.evaluation.arrays import TorchArrays
from branchrt_gym.evaluation.attempts import (
    ABSENT,
    CANCELLED,
    FAILED,
    GIVEN_UP,
    PASSED,
    SKIPPED,
    Verdicts,
)
from branchrt_gym.evaluation.decisions import Decisions
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.loop_decisions import LoopDecisions

FIGURES = ("done", "attempts", "solved_count", "in_flight", "infrastructure")
FIGURES += ("attempts_to_target", "attempts_full_rounds")


def make(kind, *shape, device="cpu", **rules):
    """Decisions on NumPy arrays, on tensors, or by the loop behind the same calls."""
    if kind == "loop":
        return LoopDecisions(*shape, **rules)
    if kind == "numpy":
        return Decisions(*shape, **rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "arrays_on", lambda where: TorchArrays(torch.device(device)))
        return Decisions(*shape, **rules)


def as_given(kind, values, device="cpu"):
    return torch.from_numpy(values).to(device) if kind == "torch" else values


def pairs(found):
    return tuple(each.tolist() for each in found)


def same(ours, oracle):
    for name in FIGURES:
        assert getattr(ours, name) == getattr(oracle, name), name
    assert list(ours.waiting) == list(oracle.waiting)
    assert round(ours.cost * 1e9) == oracle.cost_units
    assert round(ours.seconds * 1e9) == oracle.seconds_units
    assert ours.solved.tolist() == oracle.solved
    assert ours.status.tolist() == oracle.status()


@st.composite
def runs(draw):
    roots, candidates = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    permutation = st.permutations(range(candidates))
    orders = st.one_of(permutation, st.lists(permutation, min_size=roots, max_size=roots))
    row = st.lists(st.booleans(), min_size=candidates, max_size=candidates)

    def maybe(values):
        return draw(st.one_of(st.none(), values))

    rules = {
        "needed": draw(st.integers(1, candidates)),
        "target": maybe(st.integers(1, roots)),
        "max_attempts": maybe(st.integers(1, roots * candidates)),
        "max_cost": maybe(st.sampled_from([0.3, 1.1, 4.0])),
        "max_seconds": maybe(st.sampled_from([0.3, 1.1, 4.0])),
        "in_flight_per_root": draw(st.integers(1, 3)),
        "retries": draw(st.integers(0, 2)),
    }
    present = maybe(st.lists(row, min_size=roots, max_size=roots))
    if draw(st.booleans()):  # the common case, which has a way of its own
        rules |= {"needed": 1, "in_flight_per_root": 1}
        present = None
    return {
        "shape": (roots, candidates, draw(orders)),
        "present": present,
        "rules": rules,
        "seed": draw(st.integers(0, 2**32 - 1)),
        "mode": draw(st.sampled_from(["waves", "limited", "async", "mixed"])),
        "lossy": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "another": maybe(orders),
    }


def drive(kind, run, device="cpu"):
    """Drives both by the same wild course, and compares them on the way."""
    roots, candidates, order = run["shape"]
    chance = np.random.default_rng(run["seed"])
    present, mode, another = run["present"], run["mode"], run["another"]
    there = None if present is None else np.array(present)
    ours = make(
        kind, roots, candidates, np.array(order), device=device, present=there, **run["rules"]
    )
    oracle = HostController(roots, candidates, order, present=present, **run["rules"])
    same(ours, oracle)
    flight = []  # what a verifier has, cancelled attempts too
    for call in range(6 * roots * candidates):
        whole = mode in ("waves", "limited")
        if whole or chance.random() < 0.5:
            limit = None if mode == "waves" else int(chance.integers(0, roots + 2))
            issued, wanted = ours.wave(limit), oracle.wave(limit)
            assert pairs(issued) == wanted
            flight += zip(*wanted, strict=True)
        if whole:
            batch, taken = issued, wanted
        else:
            count = int(chance.integers(0, len(flight) + 1))
            chosen = [flight[i] for i in chance.permutation(len(flight))[:count]]
            taken = tuple([each[i] for each in chosen] for i in (0, 1))
            batch = tuple(as_given(kind, np.array(each, dtype=np.int64), device) for each in taken)
        if call == 2 and another is not None:
            ours.reorder(np.array(another))
            oracle.reorder(another)
        size = len(taken[0])
        lost = {row: "lost" for row in range(size) if chance.random() < run["lossy"]}
        passed = chance.random(size) < 0.35
        paid = chance.random((2, size)) / 3
        columns = (as_given(kind, each, device) for each in (passed, *paid))
        gone = ours.commit(*batch, Verdicts(next(columns), None, *columns, lost))
        assert pairs(gone) == oracle.commit(*taken, passed.tolist(), *paid.tolist(), lost)
        for each in zip(*taken, strict=True):
            flight.remove(each)
        if chance.random() < 0.5:  # asking changes nothing
            same(ours, oracle)
        if oracle.done and not flight:
            break
        if mode == "mixed" and not flight and chance.random() < 0.5:
            mode = "waves"
    same(ours, oracle)


@pytest.mark.parametrize("kind", ["numpy", "torch", "loop"])
@settings(max_examples=400, deadline=None)
@given(run=runs())
def test_every_form_decides_as_the_loop(kind, run):
    drive(kind, run)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@settings(max_examples=100, deadline=None)
@given(run=runs())
def test_the_device_decides_as_the_loop(run):
    drive("torch", run, "cuda")


@pytest.mark.parametrize("kind", ["numpy", "torch", "loop"])
@pytest.mark.parametrize("roots", [1, 63, 64, 511, 512, 5001])
def test_whole_waves_at_many_sizes(kind, roots):
    # Long enough for what depends on the size of a batch; a naive loop says what must come out.
    chance = np.random.default_rng(roots)
    passes = chance.random((roots, 7)) < 0.3
    order = chance.permutation(7)
    ours = make(kind, roots, 7, order, target=0.8)
    target, attempts, solved, reached = -(-roots * 4 // 5), 0, set(), None
    for candidate in order.tolist():
        tried = [root for root in range(roots) if root not in solved]
        if reached or not tried:
            break
        found = ours.wave()
        assert pairs(found) == (tried, [candidate] * len(tried))
        ours.commit(*found, Verdicts(as_given(kind, passes[tried, candidate])))
        for root in tried:
            attempts += reached is None
            if passes[root, candidate] and reached is None:
                solved.add(root)
                reached = attempts if len(solved) == target else None
    assert ours.attempts_to_target == reached
    assert ours.done == ("target" if reached else "exhausted")
    assert np.flatnonzero(np.asarray(ours.solved)).tolist() == sorted(solved)


@pytest.mark.parametrize("kind", ["numpy", "torch", "loop"])
def test_what_is_not_wanted_is_cancelled_or_skipped(kind):
    there = np.array([[True, True, True, False], [True, True, True, True]])
    ours = make(kind, 2, 4, needed=2, in_flight_per_root=3, present=there)
    first, second, third = ours.wave(), ours.wave(), ours.wave()
    assert [pairs(each) for each in (first, second, third)] == [
        ([0, 1], [0, 0]),
        ([0, 1], [1, 1]),
        ([0, 1], [2, 2]),
    ]
    assert pairs(ours.wave()) == ([], [])
    won = as_given(kind, np.array([True, False, True, False]))
    order = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    gone = ours.commit(*(as_given(kind, each) for each in order), Verdicts(won))
    assert pairs(gone) == ([0], [2])  # root 0 has both its passes; root 1 may still get them
    assert ours.status.tolist()[0] == [PASSED, PASSED, CANCELLED, ABSENT]
    late = as_given(kind, np.array([0])), as_given(kind, np.array([2]))
    ours.commit(*late, Verdicts(as_given(kind, np.array([False]))))
    assert ours.attempts == 5
    one = as_given(kind, np.array([1])), as_given(kind, np.array([2]))
    assert pairs(ours.wave()) == ([1], [3])
    assert pairs(ours.commit(*one, Verdicts(as_given(kind, np.array([False]))))) == ([1], [3])
    assert ours.done == "exhausted"
    assert ours.status.tolist() == [
        [PASSED, PASSED, FAILED, ABSENT],
        [FAILED, FAILED, FAILED, CANCELLED],
    ]


@pytest.mark.parametrize("kind", ["numpy", "torch", "loop"])
def test_what_fails_after_its_root_was_solved_is_not_given_up(kind):
    # In one call: the pass closes the root, so what comes after it was not wanted any more.
    for order, last in (([0, 1], CANCELLED), ([1, 0], GIVEN_UP)):
        ours = make(kind, 1, 3, in_flight_per_root=2, retries=0)
        ours.wave(), ours.wave()
        batch = (as_given(kind, np.array(each)) for each in ([0, 0], order))
        passed = as_given(kind, np.array([True, True]))
        gone = ours.commit(*batch, Verdicts(passed, infrastructure={order.index(1): "lost"}))
        assert pairs(gone) == ([], [])
        assert ours.status.tolist() == [[PASSED, last, SKIPPED]]
        assert (ours.done, ours.attempts, ours.infrastructure) == ("exhausted", 1, 1)


@pytest.mark.parametrize("kind", ["numpy", "torch", "loop"])
def test_the_run_ends_at_the_very_attempt(kind):
    ours = make(kind, 5, 2, target=2)
    roots, candidates = ours.wave()
    passed = as_given(kind, np.array([False, True, True, False, True]))
    ours.commit(roots, candidates, Verdicts(passed))
    assert (ours.done, ours.attempts_to_target, ours.attempts_full_rounds) == ("target", 3, 5)
    assert (ours.attempts, ours.solved_count) == (5, 2)
    assert ours.status.tolist()[3:] == [[FAILED, SKIPPED], [PASSED, SKIPPED]]
    assert pairs(ours.wave()) == ([], [])


@pytest.mark.parametrize("kind", ["numpy", "torch", "loop"])
@pytest.mark.parametrize(
    ("rules", "reason", "attempts"),
    [
        ({"max_attempts": 2}, "attempts", 2),
        ({"max_cost": 0.3}, "cost", 3),  # 0.1 + 0.2 is 0.3 here, in whole billionths
        ({"max_seconds": 2.5}, "seconds", 4),
    ],
)
def test_budgets(kind, rules, reason, attempts):
    ours = make(kind, 4, 2, **rules)
    cost = as_given(kind, np.array([0.1, 0.1, 0.1, 0.1]))
    seconds = as_given(kind, np.array([1.0, 0.5, 0.5, 0.5]))
    roots, candidates = ours.wave()
    size = len(roots)
    lost = as_given(kind, np.zeros(size, dtype=bool))
    ours.commit(roots, candidates, Verdicts(lost, None, cost[:size], seconds[:size]))
    assert ours.done == reason
    if reason != "attempts":
        tried = [row for row, at in enumerate(ours.status.tolist()) if at[0] == FAILED]
        assert len(tried) == 4
    assert attempts <= ours.attempts <= 4


@pytest.mark.parametrize("kind", ["numpy", "torch", "loop"])
def test_nothing_changes_when_an_attempt_is_not_in_flight(kind):
    ours = make(kind, 3, 2)
    ours.wave(2)
    verdicts = Verdicts(as_given(kind, np.array([True, True])))
    for roots in ([0, 2], [0, 0]):
        before = ours.status.tolist()
        with pytest.raises(ValueError, match="not in flight"):
            ours.commit(as_given(kind, np.array(roots)), as_given(kind, np.array([0, 0])), verdicts)
        assert ours.status.tolist() == before
        assert (ours.attempts, ours.in_flight) == (0, 2)
    with pytest.raises(ValueError, match="expected one for each"):
        ours.commit(*ours.wave(), verdicts)


@pytest.mark.parametrize("kind", ["numpy", "loop"])
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"order": [0, 0]}, "order"),
        ({"order": [[0, 1]]}, "order"),
        ({"present": np.ones((2, 3), dtype=bool)}, "present"),
        ({"present": np.ones((3, 2))}, "present"),
        ({"needed": 0}, "needed"),
        ({"target": 4}, "target"),
        ({"target": 0.0}, "target"),
        ({"target": 1.5}, "target"),
        ({"max_cost": 0.0}, "max_cost"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"retries": -1}, "retries"),
    ],
)
def test_wrong_arguments(kind, wrong, name):
    with pytest.raises(ValueError, match=f"`{name}` (is|has)"):
        make(kind, 3, 2, **wrong)
