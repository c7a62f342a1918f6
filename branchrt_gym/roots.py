"""Roots: the starts of a search, with their contexts made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import BranchEnv
from branchrt_gym.frontier import check_device
from branchrt_gym.memory import naming_memory
from branchrt_gym.seeding import check_seeds, context_key, episode_key

__all__ = ["Roots", "make_roots"]


@dataclass(frozen=True, eq=False)
class Roots:
    """`R` starts over `C` contexts.

    Attributes:
        seed: `[R] int64`.
        key: `[R] int64`, the roots' random keys.
        context_index: `[R] int64`, `r % C`.
        shared: The `shared` fields.
        state: The `branch` fields of the roots, each `[R, …]`.
        plans: What earlier searches of these roots keep for the next; see `plan_search`.
    """

    seed: Tensor
    key: Tensor
    context_index: Tensor
    shared: dict[str, Tensor]
    state: dict[str, Tensor]
    plans: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the plans, which belong to this process."""
        return {**self.__dict__, "plans": {}}

    def __len__(self) -> int:
        """The number of roots."""
        return self.seed.shape[0]


def make_roots(
    env: BranchEnv,
    roots: int | Sequence[int],
    *,
    num_contexts: int | None = None,
    device: str | torch.device = "cpu",
) -> Roots:
    """Makes roots and their contexts, equal to a vector env's first episodes of these seeds.

    Args:
        env: The rules.
        roots: Their seeds, or a number `R` for the seeds `0 … R - 1`.
        num_contexts: `C`; None gives each root its own.
        device: Where to make them.
    """
    where = check_device(device)
    count = roots if isinstance(roots, int) else len(roots)
    if count < 1:
        raise ValueError(f"`roots` is {roots!r}; expected one root or more")
    contexts = count if num_contexts is None else num_contexts
    if not 1 <= contexts <= count:
        raise ValueError(f"`num_contexts` is {contexts}; expected 1 … {count}, the roots")
    checked = env if isinstance(env, CheckedEnv) else CheckedEnv(env)
    seed = check_seeds(0 if isinstance(roots, int) else roots, count).to(where)
    context_index = torch.arange(count, device=where) % contexts
    key = episode_key(seed, torch.zeros_like(seed))
    what = f"{count} roots in {contexts} contexts"
    with naming_memory(what, where, "make fewer at a time, or let roots share `num_contexts`"):
        shared = checked.initial_shared(context_key(seed[:contexts]))
        state = checked.initial(shared, context_index, key)
    return Roots(seed, key, context_index, shared, state)
