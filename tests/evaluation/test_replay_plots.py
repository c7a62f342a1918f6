"""What is drawn of replays."""

from pathlib import Path

import numpy as np
import pytest

from branchrt_gym.evaluation.attempts import Verdicts
from branchrt_gym.evaluation.orderings import (
    CandidateTable,
    low_cost_first,
    manifest_order,
    oracle_best,
    random_order,
)
from branchrt_gym.evaluation.plots import draw_replays, random_band_at
from branchrt_gym.evaluation.replay import Replay, replay

PASSED = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1], [1, 1, 0]], dtype=bool)


class Recorded:
    """Verdicts out of a table."""

    version = "1"

    def verify(self, roots: np.ndarray, candidates: np.ndarray) -> Verdicts:
        return Verdicts(PASSED[roots, candidates])


def table(cost: np.ndarray | None) -> CandidateTable:
    return CandidateTable(("a", "b", "c"), 4, cost=cost)


def replays(cost: np.ndarray | None) -> tuple[list[Replay], list[Replay]]:
    orderings = [manifest_order, oracle_best(PASSED)] + ([] if cost is None else [low_cost_first])
    drawn, random = (
        [replay(table(cost), Recorded(), each, 0.75) for each in some]
        for some in (orderings, [random_order(seed) for seed in range(30)])
    )
    return drawn, random


def test_the_curve_of_a_replay_and_its_band() -> None:
    (first, *_), _ = replays(np.tile([1.0, 2.0, 4.0], (4, 1)))
    # Round 1: i0 and i3 pass at a; round 2: i1 passes at b and the target of 3 is reached.
    assert first.solved_at.tolist() == [1, 1, 1, 2, 3]
    assert first.cost_at.tolist() == [1.0, 2.0, 3.0, 4.0, 6.0]
    places = np.array([0.0, 1.0, 3.9, 4.0, 5.0, 99.0])
    found = random_band_at([first], places)
    assert found.tolist() == [[0, 0.25, 0.25, 0.5, 0.75, 0.75]] * 3
    dollars = random_band_at([first], np.array([0.9, 1.0, 5.9, 6.0]), by_cost=True)
    assert dollars[1].tolist() == [0, 0.25, 0.5, 0.75]


def test_the_band_holds_the_quantiles_of_all() -> None:
    _, random = replays(None)
    low, median, high = random_band_at(random, np.array([2.0]))
    solved = [each.solved_at[1] / 4 for each in random]
    assert len(set(solved)) > 1
    assert (low, median, high) == tuple(np.quantile(solved, [0.1, 0.5, 0.9]))


@pytest.mark.parametrize("priced", [True, False])
def test_a_picture_is_drawn(tmp_path: Path, priced: bool) -> None:
    mpl = pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    drawn, random = replays(np.tile([1.0, 2.0, 4.0], (4, 1)) if priced else None)
    path = tmp_path / "new" / "replays.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):  # letters stay letters
        draw_replays(drawn, random, path)
    text = path.read_text()
    for word in (
        "attempts",
        "manifest_order",
        "oracle_best, needs labels",
        "random, 10–90 % of 30",
    ):
        assert f">{word}<" in text
    assert (">dollars<" in text) is priced


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    with pytest.raises(ValueError, match="has no attempt"):
        draw_replays([], [], tmp_path / "x.png")
