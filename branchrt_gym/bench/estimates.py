"""Interquartile means of samples taken over several seeds, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.bench.measure import LEVEL, RESAMPLES

__all__ = ["Estimate", "Strata", "estimate", "estimate_ratio"]

Strata = Sequence[Sequence[float]]
"""The samples of each seed."""


@dataclass(frozen=True)
class Estimate:
    """What samples of one quantity come to.

    Attributes:
        interquartile_mean: Of all samples together.
        low: Lower end of its bootstrap 95 % interval. high: likewise.
        seeds: How many seeds.
        count: How many samples.
    """

    interquartile_mean: float
    low: float
    high: float
    seeds: int
    count: int


def estimate(samples: Strata) -> Estimate:
    """Estimates one quantity; within a seed samples are drawn again, from seed to seed not."""
    chance = np.random.default_rng(0)
    return _estimate(_means(samples, chance), samples)


def estimate_ratio(above: Strata, below: Strata) -> Estimate:
    """Estimates one interquartile mean over another, both drawn again independently."""
    chance = np.random.default_rng(0)
    fewer = min(above, below, key=lambda samples: sum(map(len, samples)))
    return _estimate(_means(above, chance) / _means(below, chance), fewer)


def _estimate(means: NDArray[np.float64], samples: Strata) -> Estimate:
    low, high = np.quantile(means[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(
        interquartile_mean=float(means[0]),
        low=float(low),
        high=float(high),
        seeds=len(samples),
        count=sum(map(len, samples)),
    )


def _means(samples: Strata, chance: np.random.Generator) -> NDArray[np.float64]:
    """The interquartile mean of the samples, then those of samples drawn again."""
    if not samples or not all(map(len, samples)):
        raise ValueError(f"`samples` is {samples!r}; expected one seed or more, samples in each")
    seeds = [np.asarray(values, dtype=np.float64) for values in samples]
    again = [
        values[chance.integers(len(values), size=(RESAMPLES, len(values)))] for values in seeds
    ]
    rows = np.vstack([np.concatenate(seeds), np.concatenate(again, axis=1)])
    rows.sort(axis=1)
    cut = rows.shape[1] // 4
    means: NDArray[np.float64] = rows[:, cut : rows.shape[1] - cut].mean(axis=1)
    return means
