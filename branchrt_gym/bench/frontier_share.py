"""What part of a search is the frontier's, and what Amdahl's law makes of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from branchrt_gym.bench.deep_tree import Sizes
from branchrt_gym.bench.form import Form, NotRunError, Setting
from branchrt_gym.bench.forms import FORMS
from branchrt_gym.bench.measure import clock
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import Branches, Transition
from branchrt_gym.envs.deep_tree import DeepTree
from branchrt_gym.roots import Roots

__all__ = ["FrontierShare", "frontier_share"]

TRIALS = 3


@dataclass(frozen=True)
class FrontierShare:
    """The wall time of a tier that is not the environment's transition.

    Attributes:
        seconds: Median wall time of the search, warm.
        frontier_seconds: Likewise, of the same search whose transitions only copy the state.
        share: The second over the first.
        amdahl: How many times as fast the search would be if the frontier took no time.
    """

    seconds: float
    frontier_seconds: float
    share: float
    amdahl: float


class _Idle(DeepTree):
    """DeepTree whose transitions only copy the state."""

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        state = {name: rows.clone() for name, rows in branches.state.items()}
        no = torch.zeros_like(branches.depth, dtype=torch.bool)
        return Transition(
            state=state, reward=state["score"], terminated=no, truncated=no, solved=no
        )


def frontier_share(
    env: CheckedEnv, roots: Roots, sizes: Sizes, made: Mapping[str, Form]
) -> dict[str, FrontierShare]:
    """Times the eager and the captured search beside ones whose transitions do nothing."""
    idle = CheckedEnv(_Idle(width=sizes.width, fanout=sizes.fanout, depth=sizes.depth))
    device = roots.seed.device
    shares = {}
    for name in ("eager", "captured"):
        if name not in made:
            continue
        try:
            alone = FORMS[name](Setting(sizes, idle, roots), {})
        except NotRunError:
            continue
        times: list[list[float]] = [[], []]
        for _ in range(TRIALS):
            for form, kept in zip((made[name], alone), times, strict=True):
                kept.append(clock(form.run, device))
        whole, frontier = map(statistics.median, times)
        share = min(frontier / whole, 1.0)
        left = max(whole - frontier, 1e-9)
        shares[name] = FrontierShare(whole, frontier, share, whole / left)
    return shares
