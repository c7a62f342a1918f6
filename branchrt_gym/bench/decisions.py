"""`branchrt bench decisions`: what deciding takes, vectorised and in a plain loop over lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from rich.table import Table

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.estimates import Estimate, estimate, estimate_ratio
from branchrt_gym.evaluation.attempts import Verdicts
from branchrt_gym.evaluation.decisions import Decisions
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.frontier import check_device

__all__ = ["DecisionSizes", "DecisionTimes", "decisions_table", "measure_decisions"]

ATTEMPTS = 4000  # of one sample, about: small runs are repeated in it
FIGURES = ("done", "attempts", "solved_count", "attempts_to_target", "attempts_full_rounds")


@dataclass(frozen=True)
class DecisionSizes:
    """What is decided.

    Attributes:
        roots: Roots.
        candidates: Candidates of each.
        pass_share: The chance of an attempt to pass.
        target: Share of the roots to solve.
        needed: Passes that solve a root.
        costs: Whether verdicts have a cost and seconds.
    """

    roots: int
    candidates: int = 7
    pass_share: float = 0.35
    target: float = 0.8
    needed: int = 1
    costs: bool = False


@dataclass(frozen=True)
class DecisionTimes:
    """The comparison; times are None where decisions differ.

    Attributes:
        sizes: The sizes.
        device: Where the vectorised decisions are made.
        seeds: Tables of verdicts.
        waves: Of a run, the mean over seeds. attempts: likewise.
        compared: Attempts and figures compared.
        mismatches: How many differ.
        first: The first of them, in words.
        host_us: Microseconds a wave of the loop: deciding the wave, and committing its verdicts.
        host_ns: The same, in nanoseconds an attempt.
        ours_us: Microseconds a wave of `Decisions`.
        more_us: By how much that is more than `host_us`, difference of interquartile means.
        ratio: `host_us` over `ours_us`.
    """

    sizes: DecisionSizes
    device: str
    seeds: int
    waves: float
    attempts: float
    compared: int
    mismatches: int
    first: str | None
    host_us: Estimate | None = None
    host_ns: Estimate | None = None
    ours_us: Estimate | None = None
    more_us: float | None = None
    ratio: Estimate | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        renamed = {"sizes": asdict(self.sizes), "first_difference": self.first}
        return {"bench": "decisions", **vars(self), **renamed}


class Recorded:
    """A run's verdicts, wave by wave, as lists for the loop and as arrays."""

    def __init__(self, sizes: DecisionSizes, seed: int, device: str) -> None:
        """Runs both once and compares what they decide."""
        self.sizes, self.device = sizes, device
        chance = np.random.default_rng(seed)
        shape = sizes.roots, sizes.candidates
        passes = chance.random(shape) < sizes.pass_share
        paid = chance.random((2, *shape)) if sizes.costs else None
        self.lists: list[tuple[Any, ...]] = []
        self.columns: list[Verdicts] = []
        self.compared = self.mismatches = self.attempts = 0
        self.first: str | None = None
        loop, ours = self.loop(), self.arrays()
        while loop.done is None:
            roots, candidates = loop.wave()
            found = ours.wave()
            self._same(f"wave {len(self.lists)}", (roots, candidates), found)
            if self.mismatches:
                return
            rows = np.array(roots), np.array(candidates)
            columns = [passes[rows], *(() if paid is None else paid[:, rows[0], rows[1]])]
            self.lists.append(tuple(column.tolist() for column in columns))
            if device != "cpu":
                columns = [torch.from_numpy(column).to(device) for column in columns]
            self.columns.append(Verdicts(columns[0], None, *columns[1:]))
            loop.commit(roots, candidates, *self.lists[-1])
            ours.commit(*found, self.columns[-1])
            self.attempts += len(roots)
        for name in FIGURES:
            wanted, got = getattr(loop, name), getattr(ours, name)
            self._count(f"`{name}`", wanted, got, wanted != got, 1)
        self._same("`solved`", (loop.solved,), (ours.solved,))
        self._same("`status`", loop.status(), ours.status)

    def _same(self, name: str, wanted: Sequence[Any], found: Sequence[Any]) -> None:
        for want, have in zip(wanted, found, strict=True):
            got = have.tolist()
            differ = len(want) - len(got) or sum(map(int.__ne__, want, got))
            self._count(name, want[:3], got[:3], differ, len(want))

    def _count(self, name: str, wanted: Any, got: Any, differ: int, compared: int) -> None:
        self.compared += compared
        self.mismatches += abs(int(differ))
        if differ and self.first is None:
            self.first = f"{name}: the loop has {wanted}, the arrays have {got}"

    def _rules(self) -> dict[str, Any]:
        return {"needed": self.sizes.needed, "target": self.sizes.target}

    def loop(self) -> HostController:
        """Returns the loop before its first wave."""
        return HostController(self.sizes.roots, self.sizes.candidates, **self._rules())

    def arrays(self) -> Decisions:
        """Returns the vectorised decisions before their first wave."""
        shape = self.sizes.roots, self.sizes.candidates
        return Decisions(*shape, **self._rules(), device=self.device)

    def time(self, times: int) -> tuple[float, float]:
        """Runs both so often, by turns; returns the nanoseconds of each, the mean of a run."""
        host = ours = 0
        for number in range(times):
            if number % 2:
                ours += self._time_arrays()
                host += self._time_loop()
            else:
                host += self._time_loop()
                ours += self._time_arrays()
        return host / times, ours / times

    def _time_loop(self) -> int:
        loop = self.loop()
        begin = perf_counter_ns()
        for row in self.lists:
            roots, candidates = loop.wave()
            loop.commit(roots, candidates, *row)
        return perf_counter_ns() - begin

    def _time_arrays(self) -> int:
        arrays = self.arrays()
        cuda = torch.device(self.device).type == "cuda"
        if cuda:
            torch.cuda.synchronize(self.device)
        begin = perf_counter_ns()
        for verdicts in self.columns:
            roots, candidates = arrays.wave()
            arrays.commit(roots, candidates, verdicts)
        if cuda:
            torch.cuda.synchronize(self.device)
        return perf_counter_ns() - begin


def measure_decisions(
    sizes: DecisionSizes,
    *,
    seeds: int = 3,
    repetitions: int = 20,
    device: str = "cpu",
    progress: Progress = lambda stage, done, total: None,
) -> DecisionTimes:
    """Compares the decisions of whole runs, wave by wave, and then times them by turns.

    Each side is given verdicts as it likes them, lists or arrays. A wave's time is that of `wave`
    and `commit`, the mean over a run, in which ever fewer roots are open.

    Args:
        sizes: The sizes.
        seeds: Tables of verdicts.
        repetitions: Samples of each seed.
        device: Where the vectorised decisions are made; the loop runs on the CPU.
        progress: Called with what is done.
    """
    for name, count in (("seeds", seeds), ("repetitions", repetitions)):
        if count < 1:
            raise ValueError(f"`{name}` is {count}; expected 1 or more")
    check_device(device)
    runs = []
    for seed in range(seeds):
        progress(f"Comparing, {sizes.roots} roots, seed {seed + 1} of {seeds}", seed, 2 * seeds)
        runs.append(Recorded(sizes, seed, device))
    found = DecisionTimes(
        sizes,
        device,
        seeds,
        waves=float(np.mean([len(run.lists) for run in runs])),
        attempts=float(np.mean([run.attempts for run in runs])),
        compared=sum(run.compared for run in runs),
        mismatches=sum(run.mismatches for run in runs),
        first=next((run.first for run in runs if run.first), None),
    )
    if not found.equal:
        return found
    host: list[list[float]] = []
    ours: list[list[float]] = []
    for seed, run in enumerate(runs):
        progress(
            f"Timing, {sizes.roots} roots, seed {seed + 1} of {seeds}", seeds + seed, 2 * seeds
        )
        times = max(1, ATTEMPTS // run.attempts)
        run.time(times)  # once to warm up
        samples = [run.time(times) for _ in range(repetitions)]
        host.append([sample[0] / len(run.lists) / 1e3 for sample in samples])
        ours.append([sample[1] / len(run.lists) / 1e3 for sample in samples])
    progress("Done", 2 * seeds, 2 * seeds)
    per_attempt = [
        [sample * 1e3 * len(run.lists) / run.attempts for sample in samples]
        for samples, run in zip(host, runs, strict=True)
    ]
    host_us, ours_us = estimate(host), estimate(ours)
    return DecisionTimes(
        **{
            **vars(found),
            "host_us": host_us,
            "host_ns": estimate(per_attempt),
            "ours_us": ours_us,
            "more_us": ours_us.interquartile_mean - host_us.interquartile_mean,
            "ratio": estimate_ratio(host, ours),
        }
    )


def decisions_table(rows: Sequence[DecisionTimes]) -> Table:
    """Shows runs of several sizes below each other; no figure where decisions differ."""
    sizes = rows[0].sizes
    table = Table(
        title=f"Deciding a wave: {sizes.candidates} candidates, {sizes.pass_share:.0%} pass, "
        f"{sizes.needed} needed, target {sizes.target:.0%}"
        + (", with costs" if sizes.costs else ""),
        title_justify="left",
        title_style="bold",
    )
    for name in ("roots", "waves", "plain loop", "an attempt", "ours", "faster", "mismatches"):
        table.add_column(name, justify="right")
    for found in rows:
        figures = ["", "", "", ""]
        if found.host_us and found.host_ns and found.ours_us and found.ratio:
            figures = [
                f"{found.host_us.interquartile_mean:,.1f} µs",
                f"{found.host_ns.interquartile_mean:,.0f} ns",
                f"{found.ours_us.interquartile_mean:,.1f} µs ({found.device})",
                f"[bold]{found.ratio.interquartile_mean:,.2f}×[/] "
                f"({found.ratio.low:,.2f} – {found.ratio.high:,.2f})",
            ]
        style = "green" if found.equal else "bold red"
        table.add_row(
            f"{found.sizes.roots:,}",
            f"{found.waves:.1f}",
            *figures,
            f"[{style}]{found.mismatches}[/] of {found.compared:,}",
        )
    return table
