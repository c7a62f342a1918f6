"""Compares a search with the scalar beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from branchrt_gym.certify.branch import AnyOracle, Rng
from branchrt_gym.certify.compare import Comparison
from branchrt_gym.certify.contents import compare_contents
from branchrt_gym.certify.difference import Disagreement, Ledger, compare_trajectories
from branchrt_gym.certify.search_model import beam_search
from branchrt_gym.contract import BranchEnv
from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.search import search
from branchrt_gym.search_result import NO_CHOICE

__all__ = ["compare_search"]


def compare_search(
    env: BranchEnv,
    make: Callable[[], AnyOracle],
    seeds: Sequence[int],
    *,
    width: int,
    depth: int,
    num_contexts: int | None,
    rng: Rng,
    device: torch.device,
    tier: str,
    budget: int | None = None,
    stop_solved: bool = True,
) -> Comparison:
    """Compares best scores, ids, verdicts, and the trajectories of all survivors.

    With a `budget` the policy is `BestFirst(budget, width)`, else `Beam(width)`.
    """
    model = beam_search(
        make,
        seeds,
        width,
        depth,
        env.score,
        budget=budget,
        num_contexts=num_contexts,
        rng=rng,
        stop_solved=stop_solved,
    )
    ledger = Ledger()
    best = [kept[0] for kept in model.survivors]
    survivors = [branch for kept in model.survivors for branch in kept]
    try:
        try:
            result = search(
                env,
                list(seeds),
                Beam(width) if budget is None else BestFirst(budget, width),
                depth,
                num_contexts=num_contexts,
                device=device,
                rng=rng,
                stop_solved=stop_solved,
                tier=tier,  # type: ignore[arg-type]  # a name that the matrix holds
                compiled=False,  # compiling takes longer than all the rest
            )
            ledger.same("tier", [tier], [result.tier])
            ledger.same("score", [scores[0] for scores in model.scores], result.score, best)
            # All ids before the paths, which are asked for by them.
            held = result.population.branch_id
            want = np.full(held.shape, NO_CHOICE)
            for root, kept in enumerate(model.survivors):
                want[root, : len(kept)] = [branch.branch_id for branch in kept]
            ledger.same("branch_id", want, held, best)
            ledger.same("branch_id", want[:, 0], result.branch_id, best)
            rows = [
                root * held.shape[1] + rank
                for root, kept in enumerate(model.survivors)
                for rank in range(len(kept))
            ]
            compare_contents(ledger, result.population.pages, survivors, rows)
            solved = [any(branch.solved for branch in kept) for kept in model.survivors]
            ledger.same("solved", solved, result.solved, best)
            ids = torch.tensor([branch.branch_id for branch in survivors], device=device)
            compare_trajectories(ledger, survivors, result.trajectories(ids))
            compare_trajectories(ledger, best, result.trajectories())
        except Disagreement:
            raise
        except Exception as error:
            ledger.fail("error", "none", f"{type(error).__name__}: {error}")
    except Disagreement as disagreement:
        return Comparison(ledger.compared, disagreement.difference, ())
    return Comparison(ledger.compared, None, ())
