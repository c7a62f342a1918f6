"""The timeline of the three layers, drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.errors import MissingExtraError
from branchrt_gym.evaluation.profile import LAYERS, Profile

__all__ = ["draw_timeline", "layer_shares"]

# Colours of Okabe and Ito, told apart with any colour vision, in the order of LAYERS.
COLOURS = ("#E69F00", "#56B4E9", "#D55E00")
STRETCHES = 256  # drawn at most; finer ones would not be seen


def layer_shares(profile: Profile) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns which share of each stretch of a run its layers took.

    Returns:
        `edges: [B + 1] float64`, in seconds from the begin, the last at the end; and
        `shares: [3, B] float64`, in the order of `LAYERS`. B is at most 256.
    """
    fine = np.array([profile.timeline.get(name, []) for name in LAYERS])
    times = max(1, -(-fine.shape[1] // STRETCHES))
    padded = np.pad(fine, ((0, 0), (0, -fine.shape[1] % times)))
    took = padded.reshape(len(LAYERS), -1, times).sum(2)
    edges = np.arange(took.shape[1] + 1) * times * profile.bin_seconds
    edges[-1] = profile.wall
    return edges, took / np.diff(edges)


def draw_timeline(profiles: Mapping[str, Profile], path: str | os.PathLike[str]) -> None:
    """Draws how the layers of runs shared the time, below each other, into a PNG.

    Args:
        profiles: Profiles that have ended, by what their runs are called.
        path: The file; its folder is made.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plot", "matplotlib") from error
    for name, profile in profiles.items():
        if not profile.wall:
            raise ValueError(f"`profiles` has {name!r}, which has not ended; run its block first")
    if not profiles:
        raise ValueError("`profiles` is empty; expected one profile or more")
    style: Any = {"font.family": "DejaVu Sans", "font.size": 12.5, "axes.spines.top": False}
    with mpl.rc_context({**style, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 1.2 + 2.1 * len(profiles)), dpi=150, layout="constrained")
        rows = figure.subplots(len(profiles), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, profile) in zip(rows, profiles.items(), strict=True):
            edges, shares = layer_shares(profile)
            below = np.zeros(shares.shape[1])
            for layer, colour, share in zip(LAYERS, COLOURS, shares, strict=True):
                label = "environment + verifier" if layer == "environment" else layer
                axes.stairs(
                    below + share, edges, baseline=below, fill=True, color=colour, label=label
                )
                below = below + share
            split = ", ".join(
                f"{layer} {profile.seconds[layer] / profile.wall:.0%}" for layer in LAYERS
            )
            axes.set_title(f"{name}: {profile.wall:,.3g} s, {split}", loc="left", fontsize=12.5)
            axes.set(ylim=(0, 1), yticks=(0, 0.5, 1), yticklabels=("0", "50 %", "100 %"))
        rows[-1].set_xlabel("seconds since the begin")
        rows[-1].set_xlim(0, max(profile.wall for profile in profiles.values()))
        handles = rows[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper right", ncols=len(LAYERS), frameon=False)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
