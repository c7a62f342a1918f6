"""The fused tier of `search`: all of it in one kernel, the environment's own code inlined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from branchrt_gym.branch_step import first_action, num_actions
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.kernels.dispatch import has_triton, interpreted
from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.roots import Roots
from branchrt_gym.search_eager import Found
from branchrt_gym.search_result import NO_CHOICE, Population
from branchrt_gym.seeding import Rng

__all__ = ["FusedBeam", "FusedBestFirst", "read", "unfit"]

LANES = 4096  # the most children of a root that one block takes
BIRTHS = 1 << 27  # `levels * width` stays below it, so that a birth and its flags fit in a word
TERMINATED, TRUNCATED, SOLVED, BIRTH = 1, 2, 4, 3  # of a branch's word; see `search_triton`


def unfit(
    env: CheckedEnv,
    device: torch.device,
    policy: Beam | BestFirst,
    depth: int,
    *,
    fused: bool = True,
) -> str | None:
    """Says why a search cannot run in the fused tier (or the captured), or returns None."""
    if not has_triton():
        return "Triton is not installed"
    if env.contract.not_in_registers is not None:
        return env.contract.not_in_registers
    if fused and env.transition_kernel(device) is None:
        return f"{type(env.rules).__name__} has no `transition_kernel`"
    if fused and device.type != "cuda" and not interpreted():
        return f"the roots are on {device}, where Triton runs only with TRITON_INTERPRET=1"
    if not fused and device.type != "cuda":
        return f"CUDA graphs need a CUDA device, and the roots are on {device}"
    fanout = num_actions(env)
    if isinstance(policy, Beam):
        children, levels = policy.width * fanout, depth
    elif fused:
        children, levels = policy.width + fanout - 1, policy.budget
    else:
        return f"{type(policy).__name__} has no captured form"
    if children > LANES:
        return f"{children} candidates of a root; one block takes {LANES}"
    if policy.width * (levels + 1) >= BIRTHS:
        return f"{levels} levels of {policy.width} branches; expected a product below {BIRTHS}"
    if children > 32 and env.contract.of("branch")[env.score].dtype != torch.int32:
        return f"`{env.score}` is not int32 and a root has more than 32 candidates"
    return None


class _Fused:
    """Buffers of a fused search over given roots, allocated once.

    Attributes:
        tier: `"fused"`. note: None.
    """

    tier = "fused"
    note: str | None = None

    def __init__(
        self, env: CheckedEnv, roots: Roots, width: int, levels: int, rng: Rng, stop_solved: bool
    ) -> None:
        """Allocates what the search writes."""
        self.env = env
        self.roots = replace(roots, plans={})  # which keeps this plan; no circle
        self.width = width
        count, device = len(roots), roots.seed.device
        kernel = env.transition_kernel(device)
        assert kernel is not None
        self.kernel = kernel

        def places(dtype: torch.dtype) -> Tensor:
            return torch.empty((count, width), dtype=dtype, device=device)

        fields = env.contract.of("branch")
        self.state = {name: places(field.dtype) for name, field in fields.items()}
        self.key = places(torch.int64) if env.uses_key else roots.key
        self.word = places(torch.int32)
        self.choices = torch.empty((count, levels, width), dtype=torch.int32, device=device)
        self.expanded = torch.empty(count, dtype=torch.int64, device=device)
        self.levels = torch.empty(count, dtype=torch.int32, device=device)
        self.options: dict[str, Any] = {
            "score": [*self.state].index(env.score),
            "fanout": num_actions(env),
            "first": first_action(env),
            "uses_key": env.uses_key,
            "split": rng == "split",
            "stop": stop_solved,
        }

    @property
    def given(self) -> dict[str, Any]:
        """What a launch reads and writes."""
        return {
            "kernel": self.kernel,
            "shared": [self.roots.shared[name] for name in self.env.contract.of("shared")],
            "context_index": self.roots.context_index,
            "root_key": self.roots.key,
            "root_state": [self.roots.state[name] for name in self.state],
            "state": [*self.state.values()],
            "key": self.key,
            "word": self.word,
            "choices": self.choices,
            "expanded": self.expanded,
            "levels": self.levels,
            **self.options,
        }


class FusedBeam(_Fused):
    """A beam search over given roots, its buffers allocated once; `run` may be called again."""

    def run(self) -> None:
        """Searches; no host synchronisation."""
        from branchrt_gym.kernels.search_triton import search_beam

        search_beam(**self.given)

    def found(self) -> Found:
        """Returns what the last `run` found, in tensors of their own; synchronises."""
        record = self.word, self.choices, self.expanded, self.levels
        return read(self.env, self.roots, self.state, self.key, *record)


class FusedBestFirst(_Fused):
    """A best-first search, likewise.

    Args:
        env: The rules.
        roots: Where to search from.
        policy: Budget and width.
        depth: Transitions of a branch, at most.
        rng: As for `search`.
        stop_solved: As for `search`.
    """

    def __init__(
        self,
        env: CheckedEnv,
        roots: Roots,
        policy: BestFirst,
        depth: int,
        rng: Rng,
        stop_solved: bool,
    ) -> None:
        """Allocates what the search writes."""
        super().__init__(env, roots, policy.width, policy.budget, rng, stop_solved)
        self.depth = depth
        self.depths = torch.empty_like(self.word)

    def run(self) -> None:
        """Searches; no host synchronisation."""
        from branchrt_gym.kernels.best_first_triton import search_best_first

        search_best_first(**self.given, depths=self.depths, depth=self.depth)

    def found(self) -> Found:
        """Returns what the last `run` found, in tensors of their own; synchronises."""
        record = self.word, self.choices, self.expanded, self.levels
        return read(self.env, self.roots, self.state, self.key, *record, self.depths)


def read(
    env: CheckedEnv,
    roots: Roots,
    state: Mapping[str, Tensor],
    key: Tensor,
    word: Tensor,
    choices: Tensor,
    expanded: Tensor,
    levels: Tensor,
    depths: Tensor | None = None,
) -> Found:
    """Reads what a kernel wrote; see `search_triton`. Synchronises.

    Args:
        env: The rules.
        roots: The roots.
        state: `[R, width]` each.
        key: Likewise, for an environment that uses keys.
        word: `[R, width] int32`.
        choices: `[R, depth, width] int32`.
        expanded: `[R] int64`.
        levels: `[R] int32`.
        depths: `[R, width] int32`, of a best-first search; in a beam a branch is as deep as the
            level it was born in.
    """
    count, fanout, width = len(roots), num_actions(env), word.shape[1]
    depth = int(levels.max())
    kept = [1]
    for _ in range(depth):
        most = kept[-1] * fanout if depths is None else kept[-1] + fanout - 1
        kept.append(min(width, most))
    here = kept[-1]
    word = word[:, :here]
    there = word >= 0
    birth = (word >> BIRTH).to(torch.int64)
    level, rank = birth // width, birth % width
    deep = level if depths is None else depths[:, :here]
    root = torch.arange(count, device=word.device)[:, None]
    fields = {name: values[:, :here].flatten() for name, values in state.items()}
    population = Population(
        branch_id=torch.where(there, (level * count + root) * width + rank, NO_CHOICE),
        score=fields[env.score].view(count, here).to(torch.int64),
        depth=torch.where(there, deep, 0).to(torch.int32),
        terminated=there & ((word & TERMINATED) != 0),
        truncated=there & ((word & TRUNCATED) != 0),
        solved=there & ((word & SOLVED) != 0),
        state={name: values.clone() for name, values in fields.items()},
        key=key[:, :here].flatten().clone() if env.uses_key else None,
    )
    steps = [choices[:, step, : kept[step + 1]].to(torch.int64) for step in range(depth)]
    return population, steps, int(expanded.sum()) * fanout
