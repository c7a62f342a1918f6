"""What the README says of the rows of `branchrt bench deep-tree` on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["HEADLINES", "form_lines"]

HEADLINES = (128, 1024)  # the numbers of roots that have lines of their own

Row = Mapping[str, Any]

# Of the row's ratio: what it is, the two forms whose times are named, and by which clock.
_RATIOS = {
    "batcher_over_fused": (
        "fused search against a general batcher, both in CUDA graphs",
        ("fused", "batcher_graph"),
        "seconds",
    ),
    "fused_over_floor": (
        "time of fused search over that of a kernel written by hand for this one tree",
        ("fused", "floor"),
        "seconds",
    ),
    "expert_over_fused": (
        "fused search against the best that an expert writes without us, wall time",
        ("fused", "best"),
        "wall_seconds",
    ),
    "captured_over_jax": (
        "time of captured search (the author writes torch) over that of an expert's JAX, wall time",
        ("captured", "jax"),
        "wall_seconds",
    ),
}
_EXPERTS = {
    "torch": "torch",
    "torch_compiled": "compiled torch",
    "torch_sorting": "compiled torch that sorts",
    "jax": "JAX",
}
_SHOWN = {  # the sizes at which a ratio has a line
    "batcher_over_fused": (128,),
    "fused_over_floor": HEADLINES,
    "expert_over_fused": HEADLINES,
    "captured_over_jax": HEADLINES,
}


def form_lines(rows: Sequence[Row]) -> Iterator[tuple[str, str, Row]]:
    """Yields what was measured, the figure, and the row it is from.

    Args:
        rows: The newest of each size, of one device and all else but roots equal.
    """
    rows = sorted(rows, key=lambda row: row["sizes"]["roots"])
    for name, (what, forms, clock) in _RATIOS.items():
        for row in rows:
            ratio = row["ratios"].get(name)
            if ratio is not None and row["sizes"]["roots"] in _SHOWN[name]:
                yield f"{what}, {_sizes(row)}", _figure(row, name, forms, clock), row
    ratios = [(row, row["ratios"].get("batcher_over_fused")) for row in rows]
    known = [(row, ratio) for row, ratio in ratios if ratio is not None]
    if len(known) > 1:
        counts = ", ".join(f"{row['sizes']['roots']:,}" for row, _ in known)
        figure = ", ".join(f"{ratio['interquartile_mean']:.0f}×" for _, ratio in known)
        yield f"fused search against the batcher, {counts} roots", figure, known[-1][0]


def _figure(row: Row, name: str, forms: tuple[str, str], clock: str) -> str:
    ratio = row["ratios"][name]
    digits = 0 if name == "batcher_over_fused" else 1 if name == "expert_over_fused" else 2
    best = row["best_expert"]
    ours, theirs = (row["forms"][best if form == "best" else form][clock] for form in forms)
    figure = (
        f"**{ratio['interquartile_mean']:.{digits}f}×** ({ratio['low']:.{digits}f} … "
        f"{ratio['high']:.{digits}f}): {_time(ours)} against {_time(theirs)}"
    )
    if name == "batcher_over_fused":
        share = row["batcher_copy_share"]["interquartile_mean"]
        figure += f", whose copies run at {share:.0%} of the copy bandwidth"
    if name == "expert_over_fused":
        others = [
            (text, row["ratios"][f"{expert}_over_fused"]) for expert, text in _EXPERTS.items()
        ]
        more = [f"{text} {known['interquartile_mean']:.0f}×" for text, known in others if known]
        figure += f" of {_EXPERTS[best]} ({', '.join(more)}; torch in CUDA graphs)"
    return figure + f"; {row['mismatches']} mismatches in {row['compared']:,}"


def _sizes(row: Row) -> str:
    sizes = row["sizes"]
    return (
        f"{sizes['roots']:,} roots × {sizes['width']:,}, beam {sizes['beam']}, fan-out "
        f"{sizes['fanout']}, {sizes['depth']} levels, cache flushed"
    )


def _time(seconds: Mapping[str, float]) -> str:
    mean = seconds["interquartile_mean"]
    return f"{mean * 1e3:,.2f} ms" if mean >= 1e-3 else f"{mean * 1e6:.0f} µs"
