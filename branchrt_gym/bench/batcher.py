"""The general batcher: beam search as vectorised frameworks do it today, the bench's baseline.

Each branch owns its whole state, context included. A level is one vectorised transition through
the same hooks that `search` uses, a selection in the same total order, and a gather of the
survivors, each of which copies its context from its parent's row. It is as strong as we know to
make it: children read their parent's row, so only survivors are copied; two buffers are made once
and used by turns; the selection is the runtime's own; and rows move by the copy that measured
fastest. On a GPU that is torch's `index_select` of wide words. On the CPU it is NumPy's `take` in
as many threads as torch uses: 1.43 s where `index_select` takes 1.69 s for the bench's 64 GiB on
two cores, and as long as that where another process wants a core, where `index_select`, which waits
for its threads after every row, took 25 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from branchrt_gym.bench.measure import Threads, clock, free_memory
from branchrt_gym.branch_step import first_action, num_actions
from branchrt_gym.contract import BranchEnv, Branches
from branchrt_gym.kernels import fold, top_k_per_root
from branchrt_gym.roots import Roots
from branchrt_gym.search import NO_CHOICE
from branchrt_gym.seeding import Rng, fork_key

__all__ = ["BatcherResult", "GeneralBatcher"]

WORDS = (torch.int64, torch.int32, torch.int16, torch.int8)
MEMORY_SHARE = 0.9  # of the free memory that the buffers may take
TRIALS = 3


@dataclass(frozen=True)
class BatcherResult:
    """The branches kept last, `K` places for each root, best first.

    Attributes:
        score: `[R, K] int64`.
        present: `[R, K] bool`, False in an empty place.
        state: The `branch` fields, each `[R * K, …]`.
        terminated, truncated, solved: `[R, K] bool`.
        levels: Levels expanded.
        copied: Bytes of context copied, each counted once though it is read and written.
        held: Bytes held at the peak: the buffers, and the rows of state beside them.
    """

    score: Tensor
    present: Tensor
    state: dict[str, Tensor]
    terminated: Tensor
    truncated: Tensor
    solved: Tensor
    levels: int
    copied: int
    held: int


class GeneralBatcher:
    """A beam search that materializes each survivor's context at every level.

    The first level reads the roots' own contexts; only from then on does a branch own a row.

    Args:
        env: The rules.
        roots: The roots; their contexts are not copied for the first level.
        width: `K`, branches kept per root.
        depth: Levels, at most.
        seconds: What one run may take; an estimate above it lowers `levels`.
        free_bytes: Memory that may be taken; None for what is free now.
        rng: As in `search`.

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
    ) -> None:
        """Allocates and touches the buffers, and measures how long rows take to copy."""
        self.env, self.roots, self.width, self.rng = env, roots, width, rng
        self.fanout = num_actions(env)
        self.levels = depth
        self.shortened: str | None = None
        on_cpu = roots.seed.device.type == "cpu"
        self.copy_method = "numpy take, threads" if on_cpu else "torch index_select"
        self._threads = Threads()
        declared = env.contract.of("shared")
        self._rows = [name for name, field in declared.items() if field.per_context]
        self._row_bytes = sum(roots.shared[name][0].nbytes for name in self._rows)
        self._fit_memory(free_memory(roots.seed.device) if free_bytes is None else free_bytes)
        # Level n is written to buffer (n - 1) % 2, so the last level's is `last`.
        last = (self.levels - 1) % 2
        self.buffers = [self._buffer(self.levels - (number != last)) for number in range(2)]
        if self.levels:
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
            return _Run(self).result()

    def copy_rows(self, source: Mapping[str, Tensor], to: int, parent: Tensor) -> dict[str, Tensor]:
        """Sets the first rows of buffer `to` to the source's rows `parent`, and returns them."""
        count = parent.shape[0]
        owned = {name: self.buffers[to][name][:count] for name in self._rows}
        for name, rows in owned.items():
            self._copy(_words(source[name]), parent, _words(rows))
        return owned

    def _copy(self, source: Tensor, parent: Tensor, target: Tensor) -> None:
        if self.copy_method == "torch index_select":
            torch.index_select(source, 0, parent, out=target)
            return
        rows, index, into = source.numpy(), parent.numpy(), target.numpy()

        def take(piece: slice) -> None:
            np.take(rows, index[piece], axis=0, out=into[piece], mode="clip")

        self._threads.each(take, len(index))

    def _buffer(self, level: int) -> dict[str, Tensor]:
        count = len(self.roots) * self.kept(level) if level > 0 else 0
        shared = self.roots.shared
        return {name: _touched(count, shared[name]) for name in self._rows}

    def _fit_memory(self, free: int | None) -> None:
        if free is None:
            return
        wanted = self.levels
        count = len(self.roots) * self._row_bytes

        def need(levels: int) -> int:
            return sum(count * self.kept(level) for level in (levels, levels - 1) if level > 0)

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
            f"{wanted} levels would take about {estimate:.0f} s and it may take {seconds:.0f} s, "
            f"so it runs {self.levels} of {wanted} levels"
        )

    def _time_copy(self) -> float:
        """Returns the seconds that the copy of a whole level takes."""
        last = (self.levels - 1) % 2
        source = self.buffers[1 - last] if self.levels > 1 else self.roots.shared
        rows = len(self.roots) * self.kept(self.levels)
        have = next((source[name].shape[0] for name in self._rows), 1)
        parent = torch.arange(rows, device=self.roots.seed.device) % have
        trials = [
            clock(lambda: self.copy_rows(source, last, parent), parent.device)
            for _ in range(TRIALS)
        ]
        return min(trials)


def _words(rows: Tensor) -> Tensor:
    """Views `[N, …]` as `[N, J]` of the widest integers that fit: wide words copy faster."""
    flat = rows.view(rows.shape[0], -1)
    row_bytes = flat.shape[1] * flat.element_size()
    widest = next(word for word in WORDS if row_bytes % word.itemsize == 0)
    return flat.view(torch.int8).view(widest)


def _touched(count: int, like: Tensor) -> Tensor:
    """Allocates rows and writes to them, so that no later write meets a fresh page."""
    return torch.empty((count, *like.shape[1:]), dtype=like.dtype, device=like.device).fill_(0)


def _bytes(fields: Mapping[str, Tensor]) -> int:
    return sum(values.nbytes for values in fields.values())


class _Run:
    """One search: the population, level by level."""

    def __init__(self, batcher: GeneralBatcher) -> None:
        self.batcher = batcher
        self.env, self.roots, self.fanout = batcher.env, batcher.roots, batcher.fanout
        device = self.roots.seed.device
        self.count = len(self.roots)
        self.kept = 0
        self.state = dict(self.roots.state)
        self.key = self.roots.key if self.env.uses_key else None
        self.present = torch.ones(self.count, 1, dtype=torch.bool, device=device)
        no = torch.zeros_like(self.present)
        self.terminated, self.truncated, self.solved = no, no, no
        self.owned: Mapping[str, Tensor] = self.roots.shared
        self.copied = 0
        self.state_bytes = 0

    def result(self) -> BatcherResult:
        """Runs the levels."""
        levels = 0
        for step in range(self.batcher.levels):
            closed = ~self.present | self.terminated | self.truncated
            open_count = closed.numel() - int(closed.sum())
            if not open_count:
                break
            self._level(step, closed if open_count < closed.numel() else None)
            levels += 1
        score = self.state[self.env.score].view(self.count, -1).to(torch.int64)
        return BatcherResult(
            score=score,
            present=self.present,
            state=self.state,
            terminated=self.terminated,
            truncated=self.truncated,
            solved=self.solved,
            levels=levels,
            copied=self.copied,
            held=self.batcher.buffer_bytes + self.state_bytes,
        )

    def _level(self, step: int, closed: Tensor | None) -> None:
        """Expands, selects, gathers, and copies the survivors' contexts."""
        fanout, count = self.fanout, self.count
        if self.kept != self.present.shape[1] or step == 1:  # from then on, rows of their own
            self._shape()
        parents = {name: rows.index_select(0, self.parent) for name, rows in self.state.items()}
        flags = torch.stack([self.terminated, self.truncated, self.solved]).view(3, -1)
        key = here = None
        if self.key is not None:
            key = self.key.index_select(0, self.parent)
            key = fork_key(key, torch.zeros_like(key), self.child, self.batcher.rng)
            here = fold(key, step)
        branches = Branches(self.row, torch.full_like(self.row, step, dtype=torch.int32), parents)
        made = self.env.transition(
            {**self.roots.shared, **self.owned}, branches._replace(key=here), self.action
        )
        state = dict(made.state)
        ends = torch.stack([made.terminated, made.truncated, made.solved])
        valid = None
        if closed is not None:
            # An ended branch is its own only child, as it is.
            stays = closed.view(-1).index_select(0, self.parent)
            for name, rows in state.items():
                grid = stays.view(-1, *[1] * (rows.ndim - 1))
                state[name] = torch.where(grid, parents[name], rows)
            ends = torch.where(stays, flags.index_select(1, self.parent), ends)
            there = self.present.view(-1).index_select(0, self.parent)
            valid = (~stays | (there & (self.child == 0))).view(count, -1)
        score = state[self.env.score].view(count, -1)
        keep = min(self.batcher.width, score.shape[1])
        choice, _ = top_k_per_root(score, keep, valid)

        place = choice.clamp(min=0)
        rows = (place + self.first * fanout).view(-1)
        self.state_bytes = max(self.state_bytes, _bytes(state) + _bytes(self.state))
        self.state = {name: values.index_select(0, rows) for name, values in state.items()}
        self.key = None if key is None else key.index_select(0, rows)
        self.present = choice != NO_CHOICE
        chosen = ends.index_select(1, rows).view(3, count, keep) & self.present
        self.terminated, self.truncated, self.solved = chosen.unbind()
        parent = self.row.index_select(0, rows)
        self.owned = self.batcher.copy_rows(self.owned, step % 2, parent)
        self.copied += _bytes(self.owned)

    def _shape(self) -> None:
        """Makes the index tensors of an expansion of as many branches as there are now."""
        device = self.roots.seed.device
        self.kept = self.present.shape[1]
        rows = torch.arange(self.count * self.kept, device=device)
        self.parent = rows.repeat_interleave(self.fanout)
        self.child = torch.arange(self.fanout, device=device).repeat(rows.shape[0])
        self.action = self.child + first_action(self.env)
        self.first = torch.arange(self.count, device=device)[:, None] * self.kept
        # The row of shared fields that each child reads: its parent's.
        self.row = self.roots.context_index if self.owned is self.roots.shared else rows
        self.row = self.row.index_select(0, self.parent)
