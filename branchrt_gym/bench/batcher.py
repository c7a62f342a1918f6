"""The general batcher: beam search as vectorised frameworks do it today, the bench's baseline.

Each branch owns its whole state, context included. A level is one vectorised transition through
the same hooks that `search` uses, a selection in the same total order, and a gather of the
survivors, each of which copies its context from its parent's row. It is as strong as we know to
make it: children read their parent's row, so only survivors are copied; two buffers are made once
and used by turns; the selection is the runtime's own; and rows move by the copy that measured
fastest. On a GPU that is a Triton kernel or torch's `index_select` of wide words. On the CPU it is
NumPy's `take` in as many threads as torch uses: 1.43 s where `index_select` takes 1.69 s for the
bench's 64 GiB on two cores, and as long as that where another process wants a core, where
`index_select`, which waits for its threads after every row, took 25 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from branchrt_gym.bench.batcher_run import BatcherResult, BatcherRun
from branchrt_gym.bench.measure import Threads, clock, fastest, free_memory
from branchrt_gym.branch_step import num_actions
from branchrt_gym.contract import BranchEnv
from branchrt_gym.kernels.dispatch import has_triton
from branchrt_gym.roots import Roots
from branchrt_gym.seeding import Rng

__all__ = ["GeneralBatcher"]

WORDS = (torch.int64, torch.int32, torch.int16, torch.int8)
MEMORY_SHARE = 0.9  # of the free memory that the buffers may take
TRIALS = 3
INDEX_SELECT, TRITON, NUMPY = "torch index_select", "triton", "numpy take, threads"


class GeneralBatcher:
    """A beam search that materializes each survivor's context at every level.

    The first level reads the roots' own contexts; only from then on does a branch own a row.
    With `children` each child is given a row of its own too, before it is known to survive, as
    frameworks do whose step takes and returns whole states.

    Args:
        env: The rules.
        roots: The roots; their contexts are not copied for the first level.
        width: `K`, branches kept per root.
        depth: Levels, at most.
        seconds: What one run may take; an estimate above it lowers `levels`.
        free_bytes: Memory that may be taken; None for what is free now.
        rng: As in `search`.
        children: Whether children own rows; then there is one buffer of survivors, one of children.
        surely_open: Levels in which, by the rules, no branch can have ended. They are not asked
            about it, so that a run waits for the device after them only.

    Attributes:
        levels: The levels that `run` takes, at most.
        shortened: Why `levels` is less than `depth`, or None.
        buffers: The two sets of rows, by field.
        copy_method: How rows are copied on this device.
    """

    def __init__(
        self,
        env: BranchEnv,
        roots: Roots,
        width: int,
        depth: int,
        *,
        seconds: float = 60.0,
        free_bytes: int | None = None,
        rng: Rng = "split",
        children: bool = False,
        surely_open: int = 0,
    ) -> None:
        """Allocates and touches the buffers, and measures how long rows take to copy."""
        self.env, self.roots, self.width, self.rng = env, roots, width, rng
        self.children, self.surely_open = children, surely_open
        self.fanout = num_actions(env)
        self.levels = depth
        self.shortened: str | None = None
        self.copy_method = NUMPY if roots.seed.device.type == "cpu" else INDEX_SELECT
        self._threads = Threads()
        declared = env.contract.of("shared")
        self._rows = [name for name, field in declared.items() if field.per_context]
        self._row_bytes = sum(roots.shared[name][0].nbytes for name in self._rows)
        self._fit_memory(free_memory(roots.seed.device) if free_bytes is None else free_bytes)
        self.buffers = [self._buffer(rows) for rows in self._sizes(self.levels)]
        if self.levels:
            if roots.seed.is_cuda and has_triton():
                self._choose_copy()
            self._fit_time(seconds, self._time_copy())

    def kept(self, level: int) -> int:
        """The branches held per root after `level` levels: 1, F, F², … up to K."""
        kept = 1
        for _ in range(level):
            if kept == self.width or self.fanout == 1:
                break
            kept = min(self.width, kept * self.fanout)
        return kept

    @property
    def buffer_bytes(self) -> int:
        """The bytes of both buffers."""
        return sum(rows.nbytes for buffer in self.buffers for rows in buffer.values())

    def run(self) -> BatcherResult:
        """Searches; the buffers are used again by the next run."""
        with torch.inference_mode():
            return BatcherRun(self).result()

    def copy_rows(self, source: Mapping[str, Tensor], to: int, parent: Tensor) -> dict[str, Tensor]:
        """Sets the first rows of buffer `to` to the source's rows `parent`, and returns them."""
        count = parent.shape[0]
        owned = {name: self.buffers[to][name][:count] for name in self._rows}
        for name, rows in owned.items():
            self._copy(_words(source[name]), parent, _words(rows))
        return owned

    def _copy(self, source: Tensor, parent: Tensor, target: Tensor) -> None:
        if self.copy_method == INDEX_SELECT:
            torch.index_select(source, 0, parent, out=target)
            return
        if self.copy_method == TRITON:
            from branchrt_gym.bench.rows_triton import take_rows

            take_rows(source, parent, target)
            return
        rows, index, into = source.numpy(), parent.numpy(), target.numpy()

        def take(piece: slice) -> None:
            np.take(rows, index[piece], axis=0, out=into[piece], mode="clip")

        self._threads.each(take, len(index))

    def _sizes(self, levels: int) -> tuple[int, int]:
        """The rows of a root in either buffer: by turns of the levels, or survivors, children."""
        if self.children:
            return self.kept(levels) if levels else 0, self.kept(max(levels - 1, 0)) * self.fanout
        # Level n is written to buffer (n - 1) % 2, so the last level's is `last`.
        last = (levels - 1) % 2
        before, after = (self.kept(level) if level > 0 else 0 for level in (levels - 1, levels))
        return (after, before) if last == 0 else (before, after)

    def _buffer(self, rows: int) -> dict[str, Tensor]:
        shared = self.roots.shared
        return {name: _touched(len(self.roots) * rows, shared[name]) for name in self._rows}

    def _fit_memory(self, free: int | None) -> None:
        if free is None:
            return
        wanted = self.levels
        count = len(self.roots) * self._row_bytes

        def need(levels: int) -> int:
            return count * sum(self._sizes(levels)) if levels else 0

        while self.levels and need(self.levels) > MEMORY_SHARE * free:
            # Every level that keeps as many needs as much.
            first = next(n for n in range(self.levels + 1) if need(n) == need(self.levels))
            self.levels = max(0, first - 1)
        if self.levels < wanted:
            self.shortened = (
                f"its two buffers for {wanted} levels take {need(wanted) / 2**30:.1f} GiB and "
                f"{free / 2**30:.1f} GiB are free, so it runs {self.levels} of {wanted} levels"
            )

    def _fit_time(self, seconds: float, level_seconds: float) -> None:
        """Lowers `levels` where whole levels, as long as the copy measured, take too long."""
        estimate = level_seconds * self.levels
        if estimate <= seconds:
            return
        wanted, self.levels = self.levels, max(1, int(seconds / level_seconds))
        self.shortened = (
            f"{wanted} levels would take about {estimate:.3g} s and it may take {seconds:.3g} s, "
            f"so it runs {self.levels} of {wanted} levels"
        )

    def _time_copy(self) -> float:
        """Returns the seconds that the copies of a whole level take."""
        copies = [self._level_copy()]
        if self.children:
            copies.append(self._level_copy(to=1))
        device = self.roots.seed.device
        calls = [partial(self.copy_rows, *copy) for copy in copies]
        return sum(min(clock(call, device) for _ in range(TRIALS)) for call in calls)

    def _choose_copy(self) -> None:
        """Takes the way to copy a whole level that is fastest on this device."""
        copy = self._level_copy()

        def trial(method: str) -> None:
            self.copy_method = method
            self.copy_rows(*copy)

        methods = {name: partial(trial, name) for name in (INDEX_SELECT, TRITON)}
        for method in methods.values():
            method()  # compiles
        self.copy_method = fastest(methods, self.roots.seed.device)

    def _level_copy(self, to: int | None = None) -> tuple[Mapping[str, Tensor], int, Tensor]:
        """What `copy_rows` is given at a level of full width, with parents taken by turns."""
        if to is None:
            to = 0 if self.children else (self.levels - 1) % 2
        whole = self.levels > 1 or (self.children and to == 0)
        source = self.buffers[1 - to] if whole else self.roots.shared
        have = next((source[name].shape[0] for name in self._rows), 1)
        rows = len(self.roots) * self._sizes(self.levels)[to]
        return source, to, torch.arange(rows, device=self.roots.seed.device) % have


def _words(rows: Tensor) -> Tensor:
    """Views `[N, …]` as `[N, J]` of the widest integers that fit: wide words copy faster."""
    flat = rows.view(rows.shape[0], -1)
    row_bytes = flat.shape[1] * flat.element_size()
    widest = next(word for word in WORDS if row_bytes % word.itemsize == 0)
    return flat.view(torch.int8).view(widest)


def _touched(count: int, like: Tensor) -> Tensor:
    """Allocates rows and writes to them, so that no later write meets a fresh page."""
    return torch.empty((count, *like.shape[1:]), dtype=like.dtype, device=like.device).fill_(0)
