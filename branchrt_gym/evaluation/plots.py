"""What replays look like: the roots solved against the attempts and dollars paid for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.errors import MissingExtraError
from branchrt_gym.evaluation.replay import Replay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_replays", "random_band_at"]

# Colours of Okabe and Ito, told apart with any colour vision; dashes beyond them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)))
BAND, TARGET = "#BBBBBB", "#555555"
POINTS = 400  # of a curve: more do not show


def random_band_at(
    replays: Sequence[Replay], places: NDArray[np.float64], *, by_cost: bool = False
) -> NDArray[np.float64]:
    """Returns the solved share of replays at given attempts or dollars: how they spread.

    A replay that stopped earlier keeps what it had solved.

    Args:
        replays: Of one table, at least one attempt each.
        places: `[P]`, 0 or more.
        by_cost: Whether these are dollars.

    Returns:
        `[3, P]`: the 10 % quantile, the median, the 90 % quantile.
    """
    return np.quantile([_share(each, places, by_cost) for each in replays], [0.1, 0.5, 0.9], axis=0)


def draw_replays(
    replays: Sequence[Replay], random: Sequence[Replay], path: str | os.PathLike[str]
) -> None:
    """Draws the solved share of each ordering over the band of random sequences, into a file.

    Left against attempts, right against dollars, where these are on record.

    Args:
        replays: One for each ordering; those made with labels are drawn thin.
        random: Replays of random sequences, one or more.
        path: The file, of any kind that matplotlib writes; its folder is made.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plot", "matplotlib") from error
    if not random or not all(each.attempts for each in (*replays, *random)):
        raise ValueError("`random` or `replays` has no attempt; expected one or more in each")
    style: Any = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        dollars = random[0].cost > 0
        figure = Figure(figsize=(16 if dollars else 9, 6.5), dpi=120, layout="constrained")
        panels = figure.subplots(1, 2 if dollars else 1, sharey=True, squeeze=False)[0]
        for axes, by_cost in zip(panels, (False, True), strict=False):
            _draw(axes, replays, random, by_cost)
        panels[0].set_ylabel("share of roots solved")
        panels[0].legend(loc="lower right", frameon=False)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _draw(axes: Axes, replays: Sequence[Replay], random: Sequence[Replay], by_cost: bool) -> None:
    every = (*replays, *random)
    end = max(each.cost if by_cost else each.attempts for each in every)
    places = np.linspace(0, end, POINTS)
    low, median, high = random_band_at(random, places, by_cost=by_cost)
    label = f"random, 10–90 % of {len(random)}"
    axes.fill_between(places, low, high, color=BAND, alpha=0.6, lw=0, label=label)
    axes.plot(places, median, color="white", lw=2, label=None)
    drawn = [each for each in replays if not each.ordering.startswith("random")]
    for number, each in enumerate(drawn):
        mine = places[places <= (each.cost if by_cost else each.attempts)]
        axes.plot(
            mine,
            _share(each, mine, by_cost),
            color=COLOURS[number % len(COLOURS)],
            ls=DASHES[number // len(COLOURS) % len(DASHES)],
            lw=1.2 if each.needs_labels else 2.2,
            label=each.ordering + (", needs labels" if each.needs_labels else ""),
        )
    target = random[0].target
    if target is not None:
        axes.axhline(target / random[0].roots, color=TARGET, lw=1, ls=":")
    axes.set(xlabel="dollars" if by_cost else "attempts", xlim=(0, end), ylim=(0, None))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _share(replay: Replay, places: NDArray[np.float64], by_cost: bool) -> NDArray[np.float64]:
    """The solved share at `places`, a step at each attempt that solves a root."""
    paid = replay.cost_at if by_cost else np.arange(1, replay.attempts + 1)
    solved = np.concatenate([[0], replay.solved_at])
    return np.asarray(solved[np.searchsorted(paid, places, side="right")] / replay.roots)
