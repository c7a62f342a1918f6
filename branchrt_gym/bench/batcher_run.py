"""One run of the general batcher: the population, level by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from branchrt_gym.branch_step import first_action
from branchrt_gym.contract import Branches, Transition
from branchrt_gym.kernels import fold, top_k_per_root
from branchrt_gym.search import NO_CHOICE
from branchrt_gym.seeding import fork_key

if TYPE_CHECKING:
    from branchrt_gym.bench.batcher import GeneralBatcher

__all__ = ["BatcherResult", "BatcherRun"]


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


class BatcherRun:
    """One search."""

    def __init__(self, batcher: GeneralBatcher) -> None:
        """Starts with a branch of each root."""
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
            closed = None
            if step >= self.batcher.surely_open:
                ended = ~self.present | self.terminated | self.truncated
                open_count = ended.numel() - int(ended.sum())
                if not open_count:
                    break
                closed = ended if open_count < ended.numel() else None
            self._level(step, closed)
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
        batcher, fanout, count = self.batcher, self.fanout, self.count
        if self.kept != self.present.shape[1] or step == 1:  # from then on, rows of their own
            self._shape()
        parents = {name: rows.index_select(0, self.parent) for name, rows in self.state.items()}
        key = here = None
        if self.key is not None:
            key = self.key.index_select(0, self.parent)
            key = fork_key(key, torch.zeros_like(key), self.child, batcher.rng)
            here = fold(key, step)
        row = self.row
        if batcher.children:
            self.owned = self._copy(1, self.row)
            row = self.each
        branches = Branches(row, torch.full_like(row, step, dtype=torch.int32), parents)
        made = self.env.transition(
            {**self.roots.shared, **self.owned}, branches._replace(key=here), self.action
        )
        state = dict(made.state)
        ends = valid = None
        if step + 1 >= batcher.surely_open:
            ends, valid = self._ends(made, state, parents, closed)
        score = state[self.env.score].view(count, -1)
        keep = min(batcher.width, score.shape[1])
        choice, _ = top_k_per_root(score, keep, valid)

        place = choice if valid is None else choice.clamp(min=0)
        rows = (place + self.first * fanout).view(-1)
        self.state_bytes = max(self.state_bytes, _bytes(state) + _bytes(self.state))
        self.state = {name: values.index_select(0, rows) for name, values in state.items()}
        self.key = None if key is None else key.index_select(0, rows)
        self.present = choice != NO_CHOICE
        no = torch.zeros_like(self.present)
        self.terminated, self.truncated, self.solved = no, no, no
        if ends is not None:
            chosen = ends.index_select(1, rows).view(3, count, keep) & self.present
            self.terminated, self.truncated, self.solved = chosen.unbind()
        if batcher.children:
            self.owned = self._copy(0, rows)
        else:
            self.owned = self._copy(step % 2, row.index_select(0, rows))

    def _ends(
        self,
        made: Transition,
        state: dict[str, Tensor],
        parents: Mapping[str, Tensor],
        closed: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the children's flags and which compete; an ended branch is its only child."""
        ends = torch.stack([made.terminated, made.truncated, made.solved])
        if closed is None:
            return ends, None
        stays = closed.view(-1).index_select(0, self.parent)
        for name, rows in state.items():
            grid = stays.view(-1, *[1] * (rows.ndim - 1))
            state[name] = torch.where(grid, parents[name], rows)
        flags = torch.stack([self.terminated, self.truncated, self.solved]).view(3, -1)
        ends = torch.where(stays, flags.index_select(1, self.parent), ends)
        there = self.present.view(-1).index_select(0, self.parent)
        return ends, (~stays | (there & (self.child == 0))).view(self.count, -1)

    def _copy(self, to: int, parent: Tensor) -> dict[str, Tensor]:
        """Gives each of these branches its parent's rows."""
        owned = self.batcher.copy_rows(self.owned, to, parent)
        self.copied += _bytes(owned)
        return owned

    def _shape(self) -> None:
        """Makes the index tensors of an expansion of as many branches as there are now."""
        device = self.roots.seed.device
        self.kept = self.present.shape[1]
        rows = torch.arange(self.count * self.kept, device=device)
        self.parent = rows.repeat_interleave(self.fanout)
        self.child = torch.arange(self.fanout, device=device).repeat(rows.shape[0])
        self.action = self.child + first_action(self.env)
        self.first = torch.arange(self.count, device=device)[:, None] * self.kept
        self.each = torch.arange(self.parent.shape[0], device=device)
        # The row of shared fields that each child reads: its parent's.
        self.row = self.roots.context_index if self.owned is self.roots.shared else rows
        self.row = self.row.index_select(0, self.parent)


def _bytes(fields: Mapping[str, Tensor]) -> int:
    return sum(values.nbytes for values in fields.values())
