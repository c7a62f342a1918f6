"""Writes the figures of the README from the rows of evidence.

Run `python -m branchrt_gym.bench.readme` in the root of the repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from branchrt_gym.bench.beams_report import beam_lines
from branchrt_gym.bench.capacity_report import capacity_lines, page_step_lines
from branchrt_gym.bench.evaluation_report import blackjack_lines, decision_lines, journal_lines
from branchrt_gym.bench.forms_readme import form_lines
from branchrt_gym.bench.record import read_rows
from branchrt_gym.bench.snapshots_report import ppo_lines, snapshot_lines

__all__ = ["BEGIN", "END", "figures", "written"]

DEEP_TREE = "branchrt/DeepTree-v0"
# Benches of which each size is a row of its own.
SIZED = ("expand", "transcripts", "capacity", "decisions", "blackjack")
BEGIN, END = "<!-- evidence:begin -->", "<!-- evidence:end -->"


def figures(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns the newest figures of each bench, device, environment and matrix, as Markdown."""
    newest: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    forms: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if row["bench"] == "deep-tree-gpu":
            sizes = dict(row["sizes"])
            count = sizes.pop("roots")
            forms.setdefault((row["hardware"]["device"], str(sizes)), {})[count] = row
            continue
        # Rows of `bench step` from before it knew two environments name none.
        env = row.get("env", DEEP_TREE) if row["bench"] == "step" else row.get("environment", "")
        env += row.get("matrix", "")
        if row["bench"] in SIZED:
            env = str(row["sizes"])
        newest[row["bench"], row["hardware"]["device"], env] = row
    lines = ["| what | figure | where |", "|---|---|---|"]
    for _, row in sorted(newest.items()):
        lines += [
            f"| {what} | {figure} | {_place(row)} |" for what, figure in _WRITERS[row["bench"]](row)
        ]
    for _, sized in sorted(forms.items()):
        lines += [
            f"| {what} | {figure} | {_place(row)} |"
            for what, figure, row in form_lines([*sized.values()])
        ]
    return "\n".join(lines)


def written(readme: str, table: str) -> str:
    """Returns the README with the table between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _place(row: Mapping[str, Any]) -> str:
    hardware = row["hardware"]
    where = hardware.get("gpu") or f"{hardware['cores']} cores"
    return f"{where}, torch {row['versions']['torch']}, commit `{row['commit'][:9]}`"


def _deep_tree(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    sizes, ratio = row["sizes"], row["ratio"]
    what = (
        f"`search` against a general batcher, {sizes['roots']} roots × {sizes['width']:,}, beam "
        f"{sizes['beam']}, fan-out {sizes['fanout']}, {row['levels']} levels"
    )
    figure = (
        f"**{ratio['median']:.0f}×** ({ratio['low']:.0f} … {ratio['high']:.0f}): "
        f"{row['search_seconds']['median'] * 1e3:.1f} ms against "
        f"{row['batcher_seconds']['median'] * 1e3:,.0f} ms, whose copies run at "
        f"{row['batcher_copy_share']['median']:.0%} of the copy bandwidth; "
        f"{row['mismatches']} mismatches in {row['compared']:,}"
    )
    return [(what, figure)]


def _step(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    sizes, ratio = row["sizes"], row["ratio"]
    tree = row.get("env", DEEP_TREE) == DEEP_TREE
    if tree:
        what = (
            f"live steps of {sizes['slots']:,} slots of {sizes['roots']} roots, forked full, "
            f"against `SyncVectorEnv` of {sizes['roots']} scalar oracles"
        )
    else:
        what = (
            f"steps of {sizes['slots']:,} roots of `{row['env']}`, restarts included, against "
            f"`SyncVectorEnv` of {sizes['oracles']} scalar oracles"
        )
    figure = (
        f"**{ratio['median']:.0f}×** ({ratio['low']:.0f} … {ratio['high']:.0f}): "
        f"{row['branching_steps_per_second']['median'] / 1e6:.1f} million a second against "
        f"{row['oracles_steps_per_second']['median'] / 1e3:,.0f} thousand; {row['mismatches']} "
        f"mismatches in {row['compared']:,}"
    )
    reset = f"{row['reset_seconds']['median']:.2f} s"
    resets = [(f"reset of {sizes['slots']:,} roots in 64 contexts", reset)]
    return [(what, figure), *(resets if tree else [])]


def _certify(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    figure = (
        f"**{row['mismatches']} mismatches** in {row['compared']:,} values, {row['rows']} rows, "
        f"{row['seconds']:.0f} s"
    )
    return [(f"certificate of `{row['environment']}`, matrix {row['matrix']}", figure)]


def _expand(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    sizes, rates = row["sizes"], row["children_per_second"]
    what = (
        f"fork, transition and reward of {row['children']:,} children in one call, {sizes['roots']}"
        f" roots × {sizes['width']:,}, branches of the roots {sizes['order']}"
    )
    figure = (
        f"**{rates['full'] / 1e9:.0f} billion a second** with all columns and the lineage, "
        f"{row['bytes_per_child']['full']:.0f} bytes each (the copy bandwidth allows "
        f"{row['bound_by_copy_bandwidth']['full'] / 1e9:.0f}); {rates['bare'] / 1e9:.0f} for "
        f"position and score alone, {row['bare_share_of_reads']:.0%} of what as many random reads "
        f"alone reach; `branch_step` in torch {rates['torch'] / 1e9:.1f}; {row['mismatches']} "
        f"mismatches in {row['compared']:,}"
    )
    return [(what, figure)]


def _device_steps(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    what = f"a step of {row['sizes']['slots']:,} roots of `{row['env']}`, restarts included"
    modes = ", ".join(
        f"{mode} {row['seconds'][mode]['median'] * 1e6:.0f} µs, {rate / 1e9:.1f} billion live "
        "steps a second"
        for mode, rate in row["live_steps_per_second"].items()
    )
    host = row["host_seconds"]["static"]["median"] * 1e6
    figure = f"{modes}; a step of few costs the host {host:.0f} µs; {row['mismatches']} mismatches"
    return [(what, f"{figure} in {row['compared']:,}")]


def _transcripts(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    sizes, held, times = row["sizes"], row["bytes"], row["times_less"]
    spent = [row["export_seconds"][name]["interquartile_mean"] for name in ("lineage", "copies")]
    what = (
        f"{sizes['trajectories']:,} trajectories of {sizes['roots']} root"
        f"{'s' * (sizes['roots'] > 1)} that share {sizes['shared_turns']} turns of "
        f"{sizes['least']} to {sizes['tokens']} tokens as `log` and go on for "
        f"{sizes['own_turns']}, against a copy in each"
    )
    figure = (
        f"**{times['copies']:.1f}×** ({times['least']:.1f} … {times['most']:.1f}) less memory: "
        f"{held['frontier'] / 1e6:.1f} MB against {held['copies'] / 1e6:.1f}, or "
        f"{times['padded_copies']:.1f}× where copies are padded (turns of one size would allow "
        f"{times['ideal']:.1f}×; {row['note']}); the same padded batches in "
        f"{spent[0] * 1e3:.1f} ms against {spent[1] * 1e3:.1f}; {row['mismatches']} mismatches in "
        f"{row['compared']:,}"
    )
    return [(what, figure)]


_WRITERS = {
    "beams": beam_lines,
    "capacity": capacity_lines,
    "page-steps": page_step_lines,
    "step on the device": _device_steps,
    "deep-tree": _deep_tree,
    "expand": _expand,
    "step": _step,
    "certify": _certify,
    "transcripts": _transcripts,
    "blackjack": blackjack_lines,
    "decisions": decision_lines,
    "journal": journal_lines,
    "sb3": ppo_lines,
    "snapshots": snapshot_lines,
}


def main(root: Path = Path()) -> None:
    """Rewrites the README in `root`."""
    readme = root / "README.md"
    rows = [row for path in sorted((root / "evidence").glob("*.jsonl")) for row in read_rows(path)]
    readme.write_text(written(readme.read_text(), figures(rows)))


if __name__ == "__main__":
    main()
