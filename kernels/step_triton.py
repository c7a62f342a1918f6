"""A vector env's whole step as Triton: the environment's own device functions, inlined.

Slot `r` holds root `r`, as in a population that was never forked. A step is one launch. What its
programs cannot see is how many roots restart before their blocks of slots, so where their branch
ids begin: that is counted before, by the step in which those roots ended, or by `count`.
"""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from branchrt_gym.kernels.step_kernels_triton import (
    DISABLED,
    NEXT,
    SAME,
    count_kernel,
    step_kernel,
)

__all__ = [
    "DISABLED",
    "NEXT",
    "SAME",
    "Columns",
    "Counts",
    "Outputs",
    "Rules",
    "count",
    "num_blocks",
    "step",
]

_BLOCK = 256  # slots of a program
_WARPS = 4

Kernel = tuple[Any, tuple[int, ...], tuple[Tensor, ...]]


class Columns(NamedTuple):
    """The population, changed in place; dtypes as in `Frontier`, all `[N]` but `next_id`.

    `root_key` is that of each root's seed, `[N] int64`, and only read.
    """

    status: Tensor
    context: Tensor
    branch_id: Tensor
    depth: Tensor
    key: Tensor
    root_key: Tensor
    episode: Tensor
    first_id: Tensor
    oldest_id: Tensor
    next_id: Tensor


class Outputs(NamedTuple):
    """What a step says of each slot, `[N]`; the last two in SAME mode only.

    Attributes:
        reward: In the environment's dtype.
        terminated: bool.
        truncated: bool.
        live: bool, after the step.
        every: bool, always True.
        solved: bool.
        stepped: bool, whether the slot held a branch at all.
        ended: bool, whether its root starts again in this step.
        final_solved: bool, `solved` of those; where `ended`, `solved` itself is False.
    """

    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    live: Tensor
    every: Tensor
    solved: Tensor
    stepped: Tensor
    ended: Tensor
    final_solved: Tensor


class Counts(NamedTuple):
    """What is known of the restarts of a step before it.

    Attributes:
        each: `[num_blocks(N)] int32`, how many roots restart in each block of slots.
        first: `[] int64`, the branch id of the first of them.
    """

    each: Tensor
    first: Tensor


class Rules(NamedTuple):
    """The environment: its device functions, each with its params and tables, and its spaces.

    Attributes:
        transition: A `TransitionKernel`.
        initial: An `InitialKernel`.
        observation: An `ObservationKernel`.
        widths: The entries of each leaf of an observation; 0 for a leaf of shape `()`.
        rest: The entries of each leaf where nothing is to be seen.
        low: The lowest action.
        high: The highest.
        uses_key: Whether the transition looks at its key.
    """

    transition: Kernel
    initial: Kernel
    observation: Kernel
    widths: tuple[int, ...]
    rest: tuple[tuple[float, ...], ...]
    low: int
    high: int
    uses_key: bool


def num_blocks(num_slots: int) -> int:
    """Returns the number of blocks of slots."""
    return int(triton.cdiv(num_slots, _BLOCK))


def count(
    rules: Rules,
    shared: Sequence[Tensor],
    columns: Columns,
    state: Sequence[Tensor],
    actions: Tensor,
    counts: Counts,
    *,
    mode: int,
    max_depth: int,
) -> None:
    """Counts what the next step restarts, into `counts`; the arguments are those of `step`.

    To be called before each step in SAME mode; in NEXT mode only where something else than a step
    came before it.
    """
    size = actions.shape[0]
    act, params, tables = rules.transition
    with torch.cuda.device_of(actions):
        count_kernel[(num_blocks(size),)](
            (*shared, *tables),
            tuple(columns),
            tuple(state),
            actions,
            tuple(counts),
            size,
            max_depth,
            act,
            params,
            rules.low,
            rules.high,
            rules.uses_key,
            mode,
            _BLOCK,
            num_warps=_WARPS,
        )


def step(
    rules: Rules,
    shared: Sequence[Tensor],
    columns: Columns,
    state: Sequence[Tensor],
    actions: Tensor,
    leaves: Sequence[Tensor],
    final_leaves: Sequence[Tensor],
    outputs: Outputs,
    counts: Counts,
    next_counts: Counts,
    *,
    mode: int,
    num_contexts: int,
    max_depth: int,
) -> None:
    """Steps every slot; no host synchronisation, nothing is allocated.

    Args:
        rules: The environment.
        shared: Its shared fields.
        columns: The population.
        state: Its branch fields, each `[N]`; changed in place.
        actions: `[N] int64`, of any value.
        leaves: The observation's leaves, each `[N, …]`; written.
        final_leaves: In SAME mode, the last observations of what ended, likewise; else empty.
        outputs: Written.
        counts: As `count`, or in NEXT mode the step before, left them.
        next_counts: Written in NEXT mode; not the same ones.
        mode: NEXT, SAME or DISABLED.
        num_contexts: `C`.
        max_depth: The depth at which a branch takes its last step.
    """
    size = actions.shape[0]
    fields = tuple(shared)
    act, act_params, act_tables = rules.transition
    begin, begin_params, begin_tables = rules.initial
    see, see_params, see_tables = rules.observation
    with torch.cuda.device_of(actions):
        step_kernel[(num_blocks(size),)](
            (*fields, *act_tables),
            (*fields, *begin_tables),
            (*fields, *see_tables),
            tuple(columns),
            tuple(state),
            actions,
            tuple(leaves),
            tuple(final_leaves),
            tuple(outputs),
            tuple(counts),
            tuple(next_counts),
            size,
            num_contexts,
            max_depth,
            act,
            act_params,
            begin,
            begin_params,
            see,
            see_params,
            rules.widths,
            rules.rest,
            rules.low,
            rules.high,
            rules.uses_key,
            mode,
            _BLOCK,
            num_warps=_WARPS,
        )
