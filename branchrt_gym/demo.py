"""What the demo draws: the search tree of one root, and its score against depth."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from branchrt_gym.errors import MissingExtraError
from branchrt_gym.search_result import NO_CHOICE, SearchResult, read_choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SearchTree", "best_ranks", "choose_root", "draw", "read_tree"]

# Colours of Okabe and Ito, told apart with any colour vision, as is the map, cividis.
BEST, KEPT, MEDIAN, TARGET = "#D55E00", "#56B4E9", "#333333", "#009E73"
_SHADES = np.linspace(0, 0.9, 64)  # of cividis; the rest is too bright for thin lines on white
EARLY = 8  # levels in which a path that starts poor is behind
FONT = {"font.family": "DejaVu Sans", "font.size": 12.5, "axes.titlesize": 14.5}


@dataclass(frozen=True)
class SearchTree:
    """What a search kept of one root, level by level; level 0 holds the root at rank 0.

    Attributes:
        root: Its number.
        parent: For each level from 1 on `[K] int64`, the rank of each place's parent one level
            up, or `NO_CHOICE` in an empty place.
        score: For each level from 0 on `[K] float64`.
        best: `[L + 1] int64`, the ranks of the best branch and its ancestors.
        survives: For each level `[K] bool`, whether a branch kept last descends from the place.
    """

    root: int
    parent: list[NDArray[np.int64]]
    score: list[NDArray[np.float64]]
    best: NDArray[np.int64]
    survives: list[NDArray[np.bool_]]


def best_ranks(result: SearchResult) -> Tensor:
    """Returns the ranks of each root's best branch and its ancestors, `[R, L + 1] int64`."""
    place = torch.zeros_like(result.branch_id)
    ranks = [place]
    for choice in reversed(result.choices):
        place, _ = read_choice(choice.gather(1, place[:, None])[:, 0], result.fanout)
        ranks.append(place)
    return torch.stack(ranks[::-1], dim=1)


def choose_root(result: SearchResult) -> int:
    """Picks the root that shows most: solved, by a path that stood lowest at first.

    Only where no root is solved, one that is not. The lowest number wins a draw.
    """
    behind = best_ranks(result)[:, : EARLY - 1].sum(1)
    lowest = behind + result.solved * (int(behind.max()) + 1)
    return int(lowest.cpu().numpy().argmax())  # NumPy's argmax is the first of equals


def read_tree(result: SearchResult, root: int) -> SearchTree:
    """Reads the tree of a root from a search's choices; scores are the sums of its rewards."""
    choices = [choice[root].cpu() for choice in result.choices]
    parent = [read_choice(choice, result.fanout)[0].numpy() for choice in choices]
    ids = [np.array([root * result.width])]
    for level, choice in enumerate(choices, start=1):
        first = (level * len(result.roots) + root) * result.width
        there = np.flatnonzero(choice != NO_CHOICE)
        stayed = ids[-1][parent[level - 1][there]]
        ids.append(np.where(choice.numpy()[there] < NO_CHOICE, stayed, first + there))
    earned = result.trajectories(np.concatenate(ids)).reward.sum(1).cpu().numpy().astype(float)
    start = result.roots.state[result.env.score][root].item()
    score = np.split(earned + start, np.cumsum([len(level) for level in ids])[:-1])
    survives = [np.ones(len(score[-1]), dtype=bool)]
    for level in range(len(choices) - 1, -1, -1):
        above = np.zeros(len(score[level]), dtype=bool)
        above[parent[level][: len(survives[0])][survives[0]]] = True
        survives.insert(0, above)
    best = best_ranks(result)[root].cpu().numpy()
    return SearchTree(root, parent, score, best, survives)


def draw(result: SearchResult, path: str | os.PathLike[str], root: int | None = None) -> int:
    """Draws one root's search into a PNG.

    Left the tree: levels from left to right, the branches kept at each by rank, best on top.
    Right score against depth: the path of the best branch, the band of those kept, the median
    over the roots of their best paths, and the root's target.

    Args:
        result: A search of an environment with a shared field `target`, one level or more.
        path: The file; its folder is made.
        root: Which root; None for a telling one.

    Returns:
        The root drawn.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plot", "matplotlib") from error
    if not result.choices:
        raise ValueError("`result` has no level; expected a search of depth 1 or more")
    tree = read_tree(result, choose_root(result) if root is None else root)
    target = result.roots.shared["target"][result.roots.context_index[tree.root]].item()
    rewards = result.trajectories().reward.cpu().numpy().cumsum(1)
    median = np.concatenate([[0.0], np.median(rewards, axis=0)])
    style: Any = {**FONT, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(16, 6.8), dpi=150, layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1.22, 1])
        _draw_tree(figure, left, tree, result.width)
        _draw_scores(right, tree, median, float(target), len(result.roots))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    return tree.root


def _draw_tree(figure: Figure, axes: Axes, tree: SearchTree, width: int) -> None:
    """Draws levels by ranks, edges coloured by the score per step so far."""
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patheffects import Normal, Stroke
    from matplotlib.ticker import NullLocator

    edges, values, alive = [], [], []
    for level, parent in enumerate(tree.parent, start=1):
        for rank, above in enumerate(parent[parent != NO_CHOICE]):
            edges.append([(level - 1, above + 1), (level, rank + 1)])
            values.append(tree.score[level][rank] / level)
            alive.append(tree.survives[level][rank])
    # Those that last are drawn last. Lines and dots shrink as the levels draw together.
    order = np.argsort(alive, kind="stable")
    ends, score, lasting = np.array(edges)[order], np.array(values)[order], np.array(alive)[order]
    room = 1 / (1 + ends[:, 1, 0] / 8)
    colours: dict[str, Any] = {
        "cmap": LinearSegmentedColormap.from_list("scores", colormaps["cividis"](_SHADES)),
        "norm": Normalize(np.quantile(score, 0.04), score.max()),
    }
    widths = np.where(lasting, 0.8 + 2.4 * room, 0.5 + 1.6 * room)
    lines = LineCollection(list(ends), array=score, linewidths=widths, capstyle="round", **colours)
    axes.add_collection(lines)
    dots = np.maximum(34 * room, 8)
    x, y = ends[:, 1].T
    axes.scatter(x, y, c=score, s=dots, linewidths=0, zorder=2.5, **colours)
    levels = np.arange(len(tree.best))
    casing = [Stroke(linewidth=7.5, foreground="white"), Normal()]
    axes.plot(levels, tree.best + 1, color=BEST, lw=4, path_effects=casing, zorder=3)
    lowest = int(tree.best.argmax())
    if tree.best[lowest] > 0:
        count = int((tree.best == tree.best[lowest]).sum())
        text = f"the winner, rank {tree.best[lowest] + 1} of {width}"
        text += f" for {count} levels" if count > 1 else ""
        axes.annotate(
            text,
            (lowest, tree.best[lowest] + 1.06),
            (0.3, 0.045),
            textcoords="axes fraction",
            color=BEST,
            fontweight="bold",
            va="center",
            arrowprops={"arrowstyle": "-", "color": BEST, "shrinkB": 3, "relpos": (0, 0.5)},
        )
    axes.set(
        title=f"Search tree of root {tree.root}: the {width} kept at each level",
        xlabel="depth (transitions, compressed to the right)",
        ylabel="rank among the kept (1 = best score)",
        xlim=(-0.15, levels[-1] * 1.02),
        ylim=(width + max(1.3, 0.13 * width), 0.5),
        yticks=range(1, width + 1) if width <= 16 else np.linspace(1, width, 5).astype(int),
    )
    # The first levels, where branches change places, get most of the room.
    axes.set_xscale("function", functions=(lambda x: np.log1p(x / 4), lambda x: 4 * np.expm1(x)))
    ticks = [0, 1, 2, 3, 4, 6, 8, *(2**n for n in range(4, 32))]
    axes.set_xticks([tick for tick in ticks if tick < 0.75 * levels[-1]] + [levels[-1]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    bar = figure.colorbar(lines, ax=axes, pad=0.015, aspect=32, extend="min")
    bar.set_label("score per transition so far")
    bar.outline.set_visible(False)


def _draw_scores(
    axes: Axes, tree: SearchTree, median: NDArray[np.float64], target: float, roots: int
) -> None:
    """Draws score against depth, with the first levels enlarged."""
    levels = np.arange(len(tree.best))
    path = np.array([score[rank] for score, rank in zip(tree.score, tree.best, strict=True)])
    low = np.array([score.min() for score in tree.score])
    high = np.array([score.max() for score in tree.score])
    enlarged = len(levels) > 2 * EARLY
    inset = axes.inset_axes((0.65, 0.09, 0.34, 0.3)) if enlarged else None
    for each in [axes] if inset is None else [axes, inset]:
        each.fill_between(levels, low, high, color=KEPT, alpha=0.55, lw=0, label="kept, all ranks")
        each.plot(levels, median, color=MEDIAN, lw=2, ls=":", label=f"median best, {roots} roots")
        each.plot(levels, path, color=BEST, lw=3, label="path of the best leaf")
    axes.axhline(target, color=TARGET, lw=2.5, ls=(0, (5, 2)), label=f"target, {target:,.0f}")
    axes.set(
        title=f"Score of root {tree.root}",
        xlabel="depth (transitions)",
        ylabel="score",
        xlim=(0, levels[-1]),
    )
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top + 0.04 * (top - bottom))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(loc="upper left", bbox_to_anchor=(0.01, 0.86), frameon=False)
    if inset is not None:
        inset.set(
            xlim=(0, EARLY),
            ylim=(low[: EARLY + 1].min() - 500, high[: EARLY + 1].max() + 500),
        )
        inset.set_title(f"the first {EARLY} transitions", fontsize=12)
        inset.tick_params(labelsize=11)
        inset.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.indicate_inset_zoom(inset, edgecolor="#777777", alpha=0.8)
