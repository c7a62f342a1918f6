"""The captured tier of `search`: the environment's torch and our kernels in one CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from branchrt_gym.branch_step import first_action, num_actions
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import Branches, Transition
from branchrt_gym.roots import Roots
from branchrt_gym.search_eager import Found
from branchrt_gym.search_fused import read
from branchrt_gym.seeding import Rng

__all__ = ["CapturedBeam"]

_log = logging.getLogger("branchrt_gym")


class CapturedBeam:
    """A beam search over given roots, captured once; `run` may be called again.

    The author writes torch alone. `torch.compile` fuses it; where that fails it is captured as it
    is, and `note` says so.

    Attributes:
        tier: `"captured"`. note: What went without, or None.
    """

    tier = "captured"

    def __init__(
        self,
        env: CheckedEnv,
        roots: Roots,
        width: int,
        depth: int,
        rng: Rng,
        stop_solved: bool,
        *,
        compiled: bool = True,
    ) -> None:
        """Allocates, compiles and, on a CUDA device, captures."""
        self.env = env
        # Without the plans, which keep this one; and what the graph reads stays alive.
        self.roots = replace(roots, plans={}, state=dict(roots.state), shared=dict(roots.shared))
        self.depth = depth
        self.rng, self.stop_solved = rng, stop_solved
        self.note: str | None = None
        self.fanout = num_actions(env)
        count, device = len(roots), roots.seed.device
        fields = env.contract.of("branch")

        def rows(dtype: torch.dtype) -> Tensor:
            return torch.empty(count, width * self.fanout, dtype=dtype, device=device)

        self.parents = {name: rows(field.dtype) for name, field in fields.items()}
        self.parent_key = rows(torch.int64) if env.uses_key else roots.key
        self.step_key = rows(torch.int64) if env.uses_key else roots.key
        self.depths = rows(torch.int32)
        self.word = torch.empty((count, width), dtype=torch.int32, device=device)
        self.choices = torch.empty((count, depth, width), dtype=torch.int32, device=device)
        self.expanded = torch.empty(count, dtype=torch.int64, device=device)
        self.levels = torch.empty(count, dtype=torch.int32, device=device)
        action = torch.arange(self.fanout, device=device) + first_action(env)
        self.action = action.repeat(count * width)
        self.context_index = roots.context_index.repeat_interleave(width * self.fanout)
        self.transition: Callable[..., Transition] = env.transition
        self._graph: Any = None
        self._begin()
        self._transition()  # checks the hook's first call, and warms up
        if device.type == "cuda":
            self.transition = self._compile() if compiled else env.rules.transition
            self._capture(device)

    def run(self) -> None:
        """Searches; no host synchronisation."""
        spread = self.context_index.view(len(self.roots), -1)
        spread.copy_(self.roots.context_index[:, None])
        if self._graph is None:
            self._levels()
        else:
            self._graph.replay()

    def found(self) -> Found:
        """Returns what the last `run` found, in tensors of their own; synchronises."""

        def kept(rows: Tensor) -> Tensor:
            return rows.view(*self.word.shape, self.fanout)[:, :, 0]

        return read(
            self.env,
            self.roots,
            {name: kept(rows) for name, rows in self.parents.items()},
            kept(self.parent_key) if self.env.uses_key else self.parent_key,
            self.word,
            self.choices,
            self.expanded,
            self.levels,
        )

    def _levels(self) -> None:
        self._begin()
        for level in range(self.depth):
            self._select(self._transition(), level)

    def _begin(self) -> None:
        from branchrt_gym.kernels.level_triton import begin_levels

        begin_levels(
            [self.roots.state[name] for name in self.parents],
            self.roots.key,
            [*self.parents.values()],
            self.parent_key,
            self.step_key,
            self.depths,
            self.word,
            self.expanded,
            self.levels,
            fanout=self.fanout,
            uses_key=self.env.uses_key,
            split=self.rng == "split",
        )

    def _transition(self) -> Transition:
        state = {name: rows.view(-1) for name, rows in self.parents.items()}
        key = self.step_key.view(-1) if self.env.uses_key else None
        seen = Branches(self.context_index, self.depths.view(-1), state, key)
        return self.transition(self.roots.shared, seen, self.action)

    def _select(self, made: Transition, level: int) -> None:
        from branchrt_gym.kernels.level_triton import select_level

        flags = (made.terminated, made.truncated, made.solved)
        select_level(
            [made.state[name].contiguous() for name in self.parents],
            [flag.contiguous() for flag in flags],
            [*self.parents.values()],
            self.parent_key,
            self.step_key,
            self.depths,
            self.word,
            self.choices,
            self.expanded,
            self.levels,
            level,
            score=[*self.parents].index(self.env.score),
            fanout=self.fanout,
            uses_key=self.env.uses_key,
            split=self.rng == "split",
            stop=self.stop_solved,
        )

    def _compile(self) -> Callable[..., Transition]:
        """Compiles the author's transition, or returns it as it is and notes why."""
        compiled = torch.compile(self.env.rules.transition, fullgraph=True, dynamic=False)
        plain, self.transition = self.env.rules.transition, compiled
        try:
            with torch.no_grad():
                self._transition()
        except Exception as error:  # whatever the compiler raises: the search can do without it
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return self._uncompiled(plain, reason)
        # A compiler's integers need not wrap as torch's do, so both search once.
        if not all(map(torch.equal, self._searched(plain), self._searched(compiled))):
            return self._uncompiled(plain, "torch.compile changes what it finds")
        return compiled

    def _uncompiled(self, plain: Callable[..., Transition], reason: str) -> Callable[..., Any]:
        self.note = f"the transition is not compiled ({reason})"
        _log.warning("search: %s", self.note)
        return plain

    def _searched(self, transition: Callable[..., Transition]) -> list[Tensor]:
        """Searches by a transition; returns copies of what it found."""
        self.transition = transition
        # A place that no branch has held yet is compared too.
        written = [*self.parents.values(), self.word, self.choices, self.expanded, self.levels]
        for values in written:
            values.zero_()
        with torch.no_grad():
            self._levels()
        return [values.clone() for values in written]

    def _capture(self, device: torch.device) -> None:
        with torch.cuda.device(device), torch.no_grad():
            side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._levels()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            # Other threads, another library's among them, may use CUDA meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._levels()
