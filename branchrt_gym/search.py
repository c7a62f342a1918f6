"""`search`: expand, rank and keep, over many roots at once."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from branchrt_gym import search_eager
from branchrt_gym.branch_step import num_actions
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import BranchEnv
from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.roots import Roots, make_roots
from branchrt_gym.search_plan import Tier, plan_search
from branchrt_gym.search_result import NO_CHOICE, Population, SearchResult
from branchrt_gym.seeding import Rng, check_rng

__all__ = ["NO_CHOICE", "Population", "SearchResult", "search"]


def search(
    env: BranchEnv,
    roots: Roots | int | Sequence[int],
    policy: Beam | BestFirst,
    depth: int,
    *,
    num_contexts: int | None = None,
    device: str | torch.device = "cpu",
    rng: Rng = "split",
    stop_solved: bool = True,
    tier: Tier = "auto",
    compiled: bool = True,
) -> SearchResult:
    """Searches from every root at once; what a root's branches share is stored once.

    `Beam(width)` expands, level by level, every open branch by every action and keeps the `width`
    best of each root. `BestFirst(budget, width)` expands the best open branch of each root alone,
    `budget` times, and keeps the `width` best. Ended branches compete with their final score and
    are never expanded. Order is total: score descending, then (parent's rank, action).

    Args:
        env: The rules; its actions are Discrete and its contract has the integer field that
            `env.score` names.
        roots: Roots, or their seeds, or a number of roots (see `make_roots`).
        policy: `Beam(width)` or `BestFirst(budget, width)`.
        depth: Transitions of a branch, at most; a search ends earlier when no branch is open.
        num_contexts: With seeds or a number: `C`; None gives each root its own context.
        device: With seeds or a number: where to search.
        rng: Whether children have random futures of their own or their parent's.
        stop_solved: Whether a root is done as soon as a child solves it: of its branches only
            the children that solve it stay, and nothing of it is expanded any more.
        tier: Which form runs; every one gives the same result, bit for bit. `"eager"`, plain
            torch, anywhere; `"captured"`, a CUDA graph of the environment's torch and our Triton
            kernels; `"fused"`, one kernel that the environment's `transition_kernel` is inlined
            into. `"auto"` takes the fastest that fits on a CUDA device, and eager on the CPU; the
            result's `tier` and `note` say which ran, and why not a faster one.
        compiled: Whether the captured tier puts the transition through `torch.compile`, which
            takes seconds once for each environment and shape.

    Raises:
        ValueError: If a tier was named that the search does not fit, with the reason.
    """
    check_rng(rng)
    if not isinstance(env, BranchEnv):
        raise TypeError(f"`env` is {type(env).__name__}; expected a BranchEnv, such as DeepTree()")
    checked = env if isinstance(env, CheckedEnv) else CheckedEnv(env)
    if checked.score not in checked.contract.of("branch"):
        raise ValueError(
            f"the contract has no `branch` field `{checked.score}`; `search` ranks by the integer "
            "field that `env.score` names"
        )
    ranked = checked.contract.of("branch")[checked.score]
    if ranked.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"`{checked.score}` is {ranked.dtype}; `search` ranks by torch.int32 or torch.int64"
        )
    if not isinstance(policy, Beam | BestFirst):
        raise TypeError(
            f"`policy` is {type(policy).__name__}; expected Beam(width) or BestFirst(budget)"
        )
    if depth < 0:
        raise ValueError(f"`depth` is {depth}; expected 0 or more levels")
    if not isinstance(roots, Roots):
        roots = make_roots(checked, roots, num_contexts=num_contexts, device=device)
    began = time.perf_counter()
    plan, note = plan_search(
        checked,
        roots,
        policy,
        depth,
        rng=rng,
        stop_solved=stop_solved,
        tier=tier,
        compiled=compiled,
    )
    if plan is not None:
        plan.run()
        population, choices, transitions = plan.found()
    else:
        population, choices, transitions = _eager(checked, roots, policy, depth, rng, stop_solved)
    return SearchResult(
        branch_id=population.branch_id[:, 0],
        score=population.score[:, 0],
        solved=population.solved.any(1),
        population=population,
        tier="eager" if plan is None else plan.tier,
        note=note,
        levels=len(choices),
        transitions=transitions,
        seconds=time.perf_counter() - began,
        choices=choices,
        fanout=num_actions(checked),
        width=policy.width,
        env=checked,
        roots=roots,
        rng=rng,
    )


def _eager(
    env: CheckedEnv,
    roots: Roots,
    policy: Beam | BestFirst,
    depth: int,
    rng: Rng,
    stop_solved: bool,
) -> search_eager.Found:
    with torch.inference_mode():
        if isinstance(policy, Beam):
            found = search_eager.beam(env, roots, policy.width, depth, rng, stop_solved)
        else:
            found = search_eager.best_first(
                env, roots, policy.width, policy.budget, depth, rng, stop_solved
            )
    if roots.seed.device.type == "cuda":
        torch.cuda.synchronize(roots.seed.device)
    population, choices, transitions = found
    # Inference tensors are quick to make but refuse autograd and changes in place; copies do not.
    return population.clone(), [choice.clone() for choice in choices], transitions
