"""The label-free orderings on tables small enough to see the answer."""

import numpy as np
import pytest

from branchrt_gym.evaluation import orderings as O
from branchrt_gym.evaluation.bandit import Bandit


def table(**given: object) -> O.CandidateTable:
    fields = {
        "dates": ("2026-02", "2025-01", "2026-02"),
        "cost": np.array([[1.0, 5.0, 0.5], [1.0, 0.1, 4.0]]),
        "limit_hit": np.array([[False, True, True], [True, False, False]]),
    }
    return O.CandidateTable(("b", "c", "a"), 2, **(fields | given))  # type: ignore[arg-type]


def test_fixed_orderings() -> None:
    assert O.manifest_order.order(table()).tolist() == [0, 1, 2]
    assert O.current_chronological.order(table()).tolist() == [1, 2, 0]  # a draw: a before b
    assert O.low_cost_first.order(table()).tolist() == [0, 2, 1]  # 1, 2.25, 2.55 on average
    assert O.low_empty_first.order(table()).tolist() == [1, 2, 0]  # a draw: by date, then name
    assert O.nonempty_patch_first.order(table()).tolist() == [[0, 1, 2], [1, 2, 0]]


def test_empty_patches_are_believed_before_limits() -> None:
    empty = np.array([[True, False, False], [True, False, True]])
    assert O.low_empty_first.order(table(empty=empty)).tolist() == [1, 2, 0]
    assert O.nonempty_patch_first.order(table(empty=empty)).tolist() == [[1, 2, 0], [1, 0, 2]]


def test_absent_attempts_do_not_weigh() -> None:
    present = np.array([[True, False, True], [True, True, True]])
    # Without its 5 dollars candidate 1 costs 0.1 on average.
    assert O.low_cost_first.order(table(present=present)).tolist() == [1, 0, 2]
    assert O.low_empty_first.order(table(present=present)).tolist() == [1, 2, 0]


def test_draws_without_dates_go_by_the_manifest() -> None:
    given = table(dates=None, limit_hit=np.zeros((2, 3), bool))
    assert O.low_empty_first.order(given).tolist() == [0, 1, 2]


def test_random_orders_are_permutations_by_seed() -> None:
    seen = {tuple(O.random_order(seed).order(table()).tolist()) for seed in range(60)}
    assert len(seen) == 6
    again = O.random_order(7).order(table()).tolist()
    assert again == O.random_order(7).order(table()).tolist()


def test_oracles_look_at_labels_and_say_so() -> None:
    passed = np.array([[False, True, True], [True, False, True]])
    best, each = O.oracle_best(passed), O.oracle_each_root(passed)
    assert best.order(table()).tolist() == [2, 1, 0]
    assert each.order(table()).tolist() == [[2, 1, 0], [0, 2, 1]]  # passing first, cheapest first
    assert best.needs_labels and each.needs_labels
    assert not any(
        getattr(O, name).needs_labels
        for name in ("manifest_order", "current_chronological", "low_empty_first",
                     "nonempty_patch_first", "low_cost_first")
    )  # fmt: skip


def test_a_repeated_table_repeats_its_rows() -> None:
    found = table().repeated(5)
    assert found.num_roots == 5
    assert found.cost[:, 1].tolist() == [5.0, 0.1, 5.0, 0.1, 5.0]
    assert found.calls is None


@pytest.mark.parametrize(
    ("ordering", "missing", "message"),
    [
        (O.current_chronological, "dates", "`current_chronological` needs `dates`"),
        (O.low_cost_first, "cost", "`low_cost_first` needs `cost`"),
        (O.low_empty_first, "limit_hit", "`low_empty_first` needs `empty` or `limit_hit`"),
        (O.nonempty_patch_first, "limit_hit", "needs `empty` or `limit_hit`"),
        (Bandit(), "cost", "`bandit` needs `cost`"),
    ],
)
def test_what_is_not_known_is_named(ordering: O.Ordering, missing: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ordering.order(table(**{missing: None}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cost": np.zeros((3, 2))}, r"`cost` has shape \(3, 2\); expected \(2, 3\)"),
        ({"dates": ("2026",)}, "`dates` has 1 entries; expected 3"),
    ],
)
def test_wrong_shapes_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table(**given)


def test_names_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="`names` has 'x' twice"):
        O.CandidateTable(("x", "y", "x"), 1)


def test_they_keep_the_protocols() -> None:
    assert isinstance(O.manifest_order, O.Ordering)
    assert not isinstance(O.manifest_order, O.LearningOrdering)
    assert isinstance(Bandit(), O.LearningOrdering)
