"""The fused tier of `search`: all of it in one kernel, the environment's own code inlined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from branchrt_gym.branch_step import first_action, num_actions
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.kernels.dispatch import has_triton
from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.roots import Roots
from branchrt_gym.search_eager import Found
from branchrt_gym.search_result import NO_CHOICE, Population
from branchrt_gym.seeding import Rng

__all__ = ["FusedBeam", "read", "unfit"]

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
    if fused and env.transition_kernel(device) is None:
        return f"{type(env.rules).__name__} has no `transition_kernel`"
    if not fused and device.type != "cuda":
        return f"CUDA graphs need a CUDA device, and the roots are on {device}"
    shaped = [name for name, field in env.contract.of("branch").items() if field.shape]
    if shaped:
        return f"the `branch` field `{shaped[0]}` is not a scalar"
    if not isinstance(policy, Beam):
        return f"{type(policy).__name__} has no such form"
    children = policy.width * num_actions(env)
    if children > LANES:
        return f"{children} children of a root; one block takes {LANES}"
    if policy.width * (depth + 1) >= BIRTHS:
        return f"{depth} levels of {policy.width} branches; expected a product below {BIRTHS}"
    if children > 32 and env.contract.of("branch")[env.score].dtype != torch.int32:
        return f"`{env.score}` is not int32 and a root has more than 32 children"
    return None


class FusedBeam:
    """A beam search over given roots, its buffers allocated once; `run` may be called again.

    Attributes:
        tier: `"fused"`. note: None.
    """

    tier = "fused"
    note: str | None = None

    def __init__(
        self, env: CheckedEnv, roots: Roots, width: int, depth: int, rng: Rng, stop_solved: bool
    ) -> None:
        """Allocates what the search writes."""
        self.env = env
        self.roots = replace(roots, plans={})  # which keeps this plan; no circle
        self.width, self.depth = width, depth
        self.rng, self.stop_solved = rng, stop_solved
        count, device = len(roots), roots.seed.device
        self.kernel = env.transition_kernel(device)

        def places(dtype: torch.dtype) -> Tensor:
            return torch.empty((count, width), dtype=dtype, device=device)

        fields = env.contract.of("branch")
        self.state = {name: places(field.dtype) for name, field in fields.items()}
        self.key = places(torch.int64) if env.uses_key else roots.key
        self.word = places(torch.int32)
        self.choices = torch.empty((count, depth, width), dtype=torch.int32, device=device)
        self.expanded = torch.empty(count, dtype=torch.int64, device=device)
        self.levels = torch.empty(count, dtype=torch.int32, device=device)

    def run(self) -> None:
        """Searches; no host synchronisation."""
        from branchrt_gym.kernels import search_triton

        assert self.kernel is not None
        search_triton.search_beam(
            self.kernel,
            [self.roots.shared[name] for name in self.env.contract.of("shared")],
            self.roots.context_index,
            self.roots.key,
            [self.roots.state[name] for name in self.state],
            [*self.state.values()],
            self.key,
            self.word,
            self.choices,
            self.expanded,
            self.levels,
            score=[*self.state].index(self.env.score),
            fanout=num_actions(self.env),
            first=first_action(self.env),
            uses_key=self.env.uses_key,
            split=self.rng == "split",
            stop=self.stop_solved,
        )

    def found(self) -> Found:
        """Returns what the last `run` found, in tensors of their own; synchronises."""
        return read(
            self.env,
            self.roots,
            self.width,
            self.state,
            self.key,
            self.word,
            self.choices,
            self.expanded,
            self.levels,
        )


def read(
    env: CheckedEnv,
    roots: Roots,
    width: int,
    state: Mapping[str, Tensor],
    key: Tensor,
    word: Tensor,
    choices: Tensor,
    expanded: Tensor,
    levels: Tensor,
) -> Found:
    """Reads what a kernel wrote; see `search_triton`. Synchronises.

    Args:
        env: The rules.
        roots: The roots.
        width: Of the beam.
        state: `[R, width]` each.
        key: Likewise, for an environment that uses keys.
        word: `[R, width] int32`.
        choices: `[R, depth, width] int32`.
        expanded: `[R] int64`.
        levels: `[R] int32`.
    """
    count, fanout = len(roots), num_actions(env)
    depth = int(levels.max())
    kept = [1]
    for _ in range(depth):
        kept.append(min(width, kept[-1] * fanout))
    here = kept[-1]
    word = word[:, :here]
    there = word >= 0
    birth = (word >> BIRTH).to(torch.int64)
    level, rank = birth // width, birth % width
    root = torch.arange(count, device=word.device)[:, None]
    fields = {name: values[:, :here].flatten() for name, values in state.items()}
    population = Population(
        branch_id=torch.where(there, (level * count + root) * width + rank, NO_CHOICE),
        score=fields[env.score].view(count, here).to(torch.int64),
        depth=torch.where(there, level, 0).to(torch.int32),
        terminated=there & ((word & TERMINATED) != 0),
        truncated=there & ((word & TRUNCATED) != 0),
        solved=there & ((word & SOLVED) != 0),
        state={name: values.clone() for name, values in fields.items()},
        key=key[:, :here].flatten().clone() if env.uses_key else None,
    )
    steps = [choices[:, step, : kept[step + 1]].to(torch.int64) for step in range(depth)]
    return population, steps, int(expanded.sum()) * fanout
