"""Interquartile means over seeds and their intervals, against SciPy's definition by hand."""

import numpy as np
import pytest

from branchrt_gym.bench.estimates import estimate, estimate_ratio
from branchrt_gym.bench.measure import interquartile_mean


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 20), (2, 7)])
def test_the_mean_is_of_all_samples_together(shape):
    samples = np.random.default_rng(shape[1]).gamma(2.0, size=shape).tolist()
    found = estimate(samples)
    assert found.interquartile_mean == pytest.approx(interquartile_mean(np.ravel(samples)))
    assert found.low <= found.interquartile_mean <= found.high
    assert (found.seeds, found.count) == (shape[0], shape[0] * shape[1])
    assert estimate(samples) == found  # the same in every run


def test_what_differs_between_seeds_alone_does_not_widen_the_interval():
    found = estimate([[1.0] * 9, [5.0] * 9, [2.0] * 9])
    assert found.low == found.interquartile_mean == found.high


def test_a_ratio():
    found = estimate_ratio([[4.0, 4.2, 3.8], [4.0]], [[2.0, 2.1], [1.9]])
    assert found.interquartile_mean == pytest.approx(2.0)
    assert found.low <= 2.0 <= found.high and found.count == 3


@pytest.mark.parametrize("samples", [[], [[]], [[1.0], []]])
def test_without_samples(samples):
    with pytest.raises(ValueError, match="expected one seed or more"):
        estimate(samples)


def test_the_interval_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = estimate(rng.normal(10.0, 1.0, size=(3, 20)).tolist())
        covered += found.low <= 10.0 <= found.high
    assert 170 <= covered <= 200
