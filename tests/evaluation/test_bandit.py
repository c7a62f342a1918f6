"""The bandit: what it draws from, what it learns, what it may look at."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from branchrt_gym.evaluation.attempts import Verdicts
from branchrt_gym.evaluation.bandit import FIRST, Bandit
from branchrt_gym.evaluation.orderings import CandidateTable


def table(num_roots: int, prices: list[float], **given: object) -> CandidateTable:
    names = tuple(f"c{number}" for number in range(len(prices)))
    cost = np.tile(np.array(prices), (num_roots, 1))
    return CandidateTable(names, num_roots, cost=cost, **given)  # type: ignore[arg-type]


def teach(bandit: Bandit, candidate: int, passes: int, failures: int) -> np.ndarray | None:
    """Tells it verdicts of one candidate, of any roots."""
    passed = np.arange(passes + failures) < passes
    number = len(passed)
    return bandit.update(np.arange(number), np.full(number, candidate), Verdicts(passed))


def first_share(order: np.ndarray, candidate: int) -> float:
    return float((order[:, 0] == candidate).mean())


def test_before_any_verdict_equal_prices_are_equal_chances() -> None:
    order = Bandit(1).order(table(20_000, [2.0, 2.0, 2.0, 2.0]))
    assert (np.sort(order, axis=1) == np.arange(4)).all()
    for candidate in range(4):
        assert abs(first_share(order, candidate) - 0.25) < 0.02


def test_before_any_verdict_price_decides_as_uniform_chances_say() -> None:
    # P(U / 1 > V / sqrt(4)) of uniform U, V is 3/4; by dollars, V / 4, it is 7/8.
    for weight, expected in ((0.0, 0.5), (0.5, 0.75), (1.0, 0.875)):
        order = Bandit(2, cost_weight=weight).order(table(40_000, [1.0, 4.0]))
        assert abs(first_share(order, 0) - expected) < 0.01


def test_verdicts_are_drawn_from_their_posterior() -> None:
    bandit = Bandit(3)
    bandit.order(table(40_000, [1.0, 1.0]))
    teach(bandit, 0, 20, 20)
    order = teach(bandit, 1, 22, 18)
    assert order is not None
    rate = 43 / 82  # of all verdicts, one pass and one failure more
    rng = np.random.default_rng(0)
    drawn = [
        rng.beta(2 * rate + passes, 2 * (1 - rate) + failures, 400_000)
        for passes, failures in ((20, 20), (22, 18))
    ]
    assert abs(first_share(order, 0) - (drawn[0] > drawn[1]).mean()) < 0.01


def test_it_finds_the_better_of_two_equal_prices() -> None:
    bandit = Bandit(0)
    bandit.order(table(1000, [1.0, 1.0]))
    teach(bandit, 0, 10, 190)
    order = teach(bandit, 1, 150, 50)
    assert order is not None and first_share(order, 1) == 1


def test_an_untried_candidate_is_believed_to_be_like_the_others() -> None:
    bandit = Bandit(0)
    bandit.order(table(40_000, [1.0, 1.0]))
    order = teach(bandit, 0, 0, 400)
    assert order is not None
    # Were it still thought to pass every second time, it would always come first.
    assert 0.05 < first_share(order, 1) < 0.6


def test_it_ranks_again_at_stated_numbers_of_verdicts() -> None:
    bandit = Bandit(0)
    bandit.order(table(2000, [1.0, 1.0]))
    seen, ranked = 0, []
    while seen < 1000:
        assert 1 <= bandit.wave
        number = bandit.wave
        order = teach(bandit, 0, 0, number - 1)
        assert order is None and bandit.wave == 1
        order = teach(bandit, 0, 0, 1)
        seen += number
        assert order is not None
        ranked.append(seen)
    assert ranked[:9] == [FIRST * (number + 1) for number in range(9)]
    assert all(b - a == max(FIRST, a // 8) for a, b in pairwise(ranked))


def test_equal_seeds_and_verdicts_give_equal_orders() -> None:
    def orders(seed: int) -> list[np.ndarray]:
        bandit = Bandit(seed)
        return [bandit.order(table(50, [1.0, 2.0, 3.0])), teach(bandit, 1, 20, 20)]

    same, again, other = orders(4), orders(4), orders(5)
    assert all((a == b).all() for a, b in zip(same, again, strict=True))
    assert any((a != b).any() for a, b in zip(same, other, strict=True))
    bandit = Bandit(4)
    first = bandit.order(table(50, [1.0, 2.0, 3.0]))
    teach(bandit, 0, 40, 0)
    assert (bandit.order(table(50, [1.0, 2.0, 3.0])) == first).all()  # it forgot


def test_empty_patches_come_last_and_teach_nothing() -> None:
    limit_hit = np.zeros((100, 3), bool)
    limit_hit[:, 1] = True
    given = table(100, [5.0, 0.001, 5.0], limit_hit=limit_hit)
    bandit = Bandit(0)
    assert (bandit.order(given)[:, 2] == 1).all()
    order = teach(bandit, 1, 0, 100)
    assert order is not None
    fresh = Bandit(0)
    fresh.order(given)
    assert (fresh._rank() == order).all()  # as if there had been no verdicts
    assert (Bandit(0, per_attempt=False).order(given)[:, 0] == 1).all()  # cheap, and not looked at


def test_the_price_is_the_attempts_own_or_the_candidates() -> None:
    cost = np.array([[1e-6, 1.0], [1.0, 1e-6]]).repeat(50, axis=0)
    given = CandidateTable(("a", "b"), 100, cost=cost)
    order = Bandit(0, cost_weight=1.0).order(given)
    assert (order[:50, 0] == 0).mean() > 0.9 and (order[50:, 0] == 1).mean() > 0.9
    by_source = Bandit(0, cost_weight=1.0, per_attempt=False).order(given)
    assert 0.3 < first_share(by_source, 0) < 0.7


def test_what_cost_nothing_comes_first_and_is_no_division_by_zero() -> None:
    order = Bandit(0, cost_weight=1.0).order(table(500, [0.0, 1.0]))
    assert first_share(order, 0) > 0.99
    Bandit(0).order(table(5, [0.0, 0.0]))


def test_infrastructure_failures_teach_nothing() -> None:
    bandit = Bandit(0)
    bandit.order(table(100, [1.0, 1.0]))
    lost = Verdicts(np.zeros(64, bool), infrastructure={row: "crash" for row in range(1, 64)})
    assert bandit.update(np.arange(64), np.zeros(64, int), lost) is None
    assert bandit.wave == FIRST - 1


def test_tensors_are_read_as_arrays_are() -> None:
    orders = []
    for convert in (np.asarray, torch.from_numpy):
        bandit = Bandit(0)
        bandit.order(table(40, [1.0, 2.0]))
        given = (np.arange(40), np.arange(40) % 2, np.arange(40) % 3 == 0)
        roots, candidates, passed = map(convert, given)
        orders.append(bandit.update(roots, candidates, Verdicts(passed)))
    assert orders[0] is not None and (orders[0] == orders[1]).all()


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="`cost_weight` is"):
        Bandit(cost_weight=weight)
