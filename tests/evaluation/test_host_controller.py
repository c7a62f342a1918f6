"""The plain loop by worked examples, and its short way against its long one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import round_by_round

from branchrt_gym.evaluation.attempts import (
    ABSENT,
    CANCELLED,
    FAILED,
    GIVEN_UP,
    ISSUED,
    PASSED,
    PENDING,
    SKIPPED,
)
from branchrt_gym.evaluation.host_controller import HostController


def test_a_run_by_hand():
    loop = HostController(3, 2, [1, 0], target=2)
    assert loop.wave() == ([0, 1, 2], [1, 1, 1])
    assert loop.status() == [[PENDING, ISSUED]] * 3
    assert loop.commit([0, 1, 2], [1, 1, 1], [False, True, False]) == ([], [])
    assert loop.wave() == ([0, 2], [0, 0])
    loop.commit([0, 2], [0, 0], [True, True])
    assert (loop.done, loop.attempts_to_target, loop.attempts_full_rounds) == ("target", 4, 5)
    assert (loop.solved, loop.attempts) == ([True, True, False], 5)
    assert loop.status() == [[PASSED, FAILED], [SKIPPED, PASSED], [PASSED, FAILED]]


def test_lower_rounds_go_first_where_the_limit_cuts():
    loop = HostController(3, 3)
    assert loop.wave(2) == ([0, 1], [0, 0])
    loop.commit([1], [0], [False])
    assert loop.wave(1) == ([2], [0])  # before the second try of root 1
    assert loop.wave(5) == ([1], [1])
    assert loop.wave(5) == ([], [])  # each root has one in flight


def test_an_absent_candidate_is_a_turn_without_an_attempt():
    present = [[True, False, True], [True, True, True]]
    loop = HostController(2, 3, present=present)
    loop.commit(*loop.wave(), [False, False])
    assert loop.wave() == ([1], [1])  # root 0 sits out
    loop.commit([1], [1], [False])
    assert loop.wave() == ([0, 1], [2, 2])
    assert loop.status()[0] == [FAILED, ABSENT, ISSUED]


def test_infrastructure_failures_are_tried_again_and_given_up():
    loop = HostController(2, 2, retries=1)
    loop.commit(*loop.wave(), [False, True], infrastructure={0})
    assert list(loop.waiting) == [(0, 0)]
    assert (loop.attempts, loop.solved_count) == (1, 1)
    assert loop.wave() == ([0], [0])
    loop.commit([0], [0], [True], infrastructure={0})
    assert loop.status()[0] == [GIVEN_UP, PENDING]
    assert loop.wave() == ([0], [1])
    loop.commit([0], [1], [True])
    assert (loop.done, loop.attempts, loop.infrastructure) == ("exhausted", 2, 2)


def test_a_root_that_cannot_get_enough_passes_is_closed():
    loop = HostController(1, 4, needed=3, in_flight_per_root=2)
    first, second = loop.wave(), loop.wave()
    assert (first, second) == (([0], [0]), ([0], [1]))
    loop.commit([0], [0], [False])
    third = loop.wave()
    assert third == ([0], [2])
    assert loop.commit([0], [1], [False]) == ([0], [2])
    assert (loop.done, loop.status()) == ("exhausted", [[FAILED, FAILED, CANCELLED, SKIPPED]])


def test_a_new_order_leaves_what_was_tried():
    loop = HostController(2, 4)
    loop.commit(*loop.wave(), [False, False])
    loop.reorder([3, 0, 2, 1])
    assert loop.wave() == ([0, 1], [3, 3])
    loop.commit([0, 1], [3, 3], [False, False])
    loop.reorder([[1, 2, 3, 0], [2, 1, 0, 3]])
    assert loop.wave() == ([0, 1], [1, 2])


def test_no_more_are_issued_than_the_budget_has():
    loop = HostController(4, 2, max_attempts=5)
    assert loop.wave() == ([0, 1, 2, 3], [0] * 4)
    loop.commit([0, 1], [0, 0], [False, False])
    assert loop.wave() == ([0], [1])
    assert loop.wave() == ([], [])
    loop.commit([2, 3, 0], [0, 0, 1], [False] * 3)
    assert (loop.done, loop.attempts) == ("attempts", 5)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_short_way_decides_as_the_long_one(data):
    roots, candidates = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    order = data.draw(st.permutations(range(candidates)))
    target = data.draw(st.integers(1, roots))
    most = data.draw(st.one_of(st.none(), st.integers(1, roots * candidates)))
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    passes = chance.random((roots, candidates)) < 0.3
    loops = [
        HostController(roots, candidates, order, target=target, max_attempts=most) for _ in range(2)
    ]
    loops[1].plain = False
    while loops[0].done is None:
        cut = int(chance.integers(1, roots + 1)) if chance.random() < 0.2 else None
        waves = [loop.wave(cut) for loop in loops]
        assert waves[0] == waves[1]
        lost = {0} if chance.random() < 0.1 and waves[0][0] else set()
        passed = passes[waves[0]].tolist()
        found = [
            loop.commit(*wave, passed, infrastructure=lost)
            for loop, wave in zip(loops, waves, strict=True)
        ]
        assert found[0] == found[1]
        for name in ("done", "attempts", "attempts_to_target", "attempts_full_rounds"):
            assert getattr(loops[0], name) == getattr(loops[1], name)
        assert loops[0].status() == loops[1].status()
        assert loops[0].solved == loops[1].solved


@pytest.mark.parametrize("seed", range(20))
def test_attempts_to_the_target_by_the_written_rule(seed):
    chance = np.random.default_rng(seed)
    passes = chance.random((50, 6)) < 0.3
    order = chance.permutation(6).tolist()
    attempts, solved = round_by_round(passes, order, 35)
    loop = HostController(50, 6, order, target=35)
    while loop.done is None:
        found = loop.wave()
        loop.commit(*found, passes[found].tolist())
    reached = loop.attempts if loop.attempts_to_target is None else loop.attempts_to_target
    assert reached == attempts
    assert {root for root, won in enumerate(loop.solved) if won} == solved
