"""Which tier a search runs in, and the buffers and graphs it keeps for the next one."""

from __future__ import annotations

import logging
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from branchrt_gym.checked import CheckedEnv
from branchrt_gym.memory import naming_memory
from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.roots import Roots
from branchrt_gym.search_captured import CapturedBeam
from branchrt_gym.search_eager import Found
from branchrt_gym.search_fused import FusedBeam, FusedBestFirst, unfit
from branchrt_gym.seeding import Rng

__all__ = ["TIERS", "Plan", "Tier", "plan_search"]

Tier = Literal["auto", "eager", "captured", "fused"]
TIERS: tuple[str, ...] = get_args(Tier)
KEPT = 4  # plans of one `Roots`
_log = logging.getLogger("branchrt_gym")


class Plan(Protocol):
    """A search that is ready to run, again and again, over the same roots.

    Attributes:
        tier: `"captured"` or `"fused"`.
        note: What it had to do without, in words, or None.
    """

    tier: str
    note: str | None

    def run(self) -> None:
        """Searches; no host synchronisation."""
        ...

    def found(self) -> Found:
        """Returns what the last `run` found, in tensors of their own; synchronises."""
        ...


def plan_search(
    env: CheckedEnv,
    roots: Roots,
    policy: Beam | BestFirst,
    depth: int,
    *,
    rng: Rng = "split",
    stop_solved: bool = True,
    tier: Tier = "auto",
    compiled: bool = True,
) -> tuple[Plan | None, str | None]:
    """Makes a plan, or takes the one that these roots were searched with before.

    A plan is kept with its roots, whose tensors it reads where they are: writing into them is
    seen, and new tensors have plans of their own. One thread at a time may search the same roots.

    Args:
        env: The rules. They must not change between searches.
        roots: Where to search from.
        policy: What to expand and keep.
        depth: Transitions of a branch, at most.
        rng: As for `search`.
        stop_solved: As for `search`.
        tier: `"auto"` takes the fastest that fits on a CUDA device, and eager on the CPU.
        compiled: As for `search`.

    Returns:
        The plan, or None for the eager tier; and why no faster tier runs, or None.

    Raises:
        ValueError: If the tier that was asked for does not fit, with the reason.
    """
    if tier not in TIERS:
        raise ValueError(f"`tier` is {tier!r}; expected one of {', '.join(map(repr, TIERS))}")
    device = roots.seed.device
    if tier == "eager" or (tier == "auto" and (device.type == "cpu" or depth == 0)):
        return None, None
    reasons = []
    for name in ("fused", "captured"):
        if tier not in ("auto", name):
            continue
        reason = unfit(env, device, policy, depth, fused=name == "fused")
        if reason is None:
            held = _check_roots(env, roots)
            key = (name, id(env.rules), held, policy, depth, rng, stop_solved, compiled)
            if key not in roots.plans:
                while len(roots.plans) >= KEPT:
                    roots.plans.pop(next(iter(roots.plans)))
                what = f"a search of {len(roots)} roots, {policy.width} branches each"
                with naming_memory(what, device, "search fewer roots at a time, or keep fewer"):
                    if isinstance(policy, BestFirst):
                        made: Plan = FusedBestFirst(env, roots, policy, depth, rng, stop_solved)
                    elif name == "fused":
                        made = FusedBeam(env, roots, policy.width, depth, rng, stop_solved)
                    else:
                        given = (env, roots, policy.width, depth, rng, stop_solved)
                        made = CapturedBeam(*given, compiled=compiled)
                roots.plans[key] = made
            plan: Plan = roots.plans[key]
            reasons += [] if plan.note is None else [plan.note]
            return plan, "; ".join(reasons) or None
        reasons.append(f"not {name}: {reason}")
    note = "; ".join(reasons)
    if tier != "auto":
        raise ValueError(f"`tier` is {tier!r}, but this search does not fit it ({note})")
    _log.warning("search runs in the eager tier (%s)", note)
    return None, note


def _check_roots(env: CheckedEnv, roots: Roots) -> tuple[int, ...]:
    """Returns where the roots' tensors lie; kernels read them without looking at their layout."""
    count = len(roots)
    wanted: dict[str, tuple[Tensor, torch.dtype, tuple[int, ...]]] = {
        "key": (roots.key, torch.int64, (count,)),
        "context_index": (roots.context_index, torch.int64, (count,)),
    }
    for name, field in env.contract.of("branch").items():
        wanted[name] = (roots.state[name], field.dtype, (count, *field.shape))
    for name, field in env.contract.of("shared").items():
        rows = roots.shared[name].shape[:1] if field.per_context else ()
        wanted[name] = (roots.shared[name], field.dtype, (*rows, *field.shape))
    for name, (given, dtype, shape) in wanted.items():
        if given.dtype != dtype or tuple(given.shape) != shape or not given.is_contiguous():
            raise ValueError(
                f"`{name}` of the roots is {given.dtype} of shape {tuple(given.shape)} and strides "
                f"{given.stride()}; expected contiguous {dtype} of shape {shape}, as `make_roots` "
                "makes them"
            )
    return tuple(given.data_ptr() for given, _, _ in wanted.values())
