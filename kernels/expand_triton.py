"""The expansion as Triton: every action of every parent, the author's transition inlined.

A program takes `BLOCK` children; those of a parent are adjacent, so its fields come from cache for
all but the first. Three kernels share `_step`: what the children are, whether one of them solves
its root, and the children written as branches of a frontier with their entries of the lineage.
"""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from branchrt_gym.kernels.keys_triton import fold_device

__all__ = ["Rules", "children", "replace", "solves"]

_BLOCK = 256  # wider blocks need many registers and gain nothing: memory is the bound
_FORK = tl.constexpr(3 << 40)  # as `seeding.FORK`
_LIVE, _DONE = tl.constexpr(1), tl.constexpr(2)  # as in `slots`
_NO_ENTRY = tl.constexpr(-1)
# Bits of an entry's flags, as in `lineage`.
_TRANSITION = tl.constexpr(1)
_TERMINATED = tl.constexpr(2)
_TRUNCATED = tl.constexpr(4)


@dataclass(frozen=True)
class Rules:
    """What the kernels are compiled for.

    Attributes:
        kernel: A `TransitionKernel`.
        fanout: Actions of a parent. first: The lowest of them.
        uses_key: Whether the transition looks at its key.
        split: Whether children have keys of their own.
    """

    kernel: Any
    fanout: int
    first: int
    uses_key: bool
    split: bool


@triton.jit
def _span(first, end, FANOUT: tl.constexpr, BLOCK: tl.constexpr):
    """This program's children of `first … end - 1`: numbers, which exist, parents, actions.

    Places beyond the end have the last child's parent and action.
    """
    base = tl.program_id(0).to(tl.int64) * BLOCK + first
    lane = tl.arange(0, BLOCK)
    number = base + lane
    # One wide division for the program; the lanes' are narrow, of what is left.
    offset = tl.minimum(lane, end - 1 - base).to(tl.int32) + (base % FANOUT).to(tl.int32)
    return number, number < end, base // FANOUT + offset // FANOUT, offset % FANOUT


@triton.jit
def _step(
    shared,
    columns,
    state,
    row,
    action,
    transition: tl.constexpr,
    PARAMS: tl.constexpr,
    FIRST: tl.constexpr,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
    KEYED: tl.constexpr,
):
    """Steps the branches in `row` by `action`; also returns what was read of them on the way.

    Without KEYED neither the key nor the forks are read, and both are zero.
    """
    context_index, depths, keys, forked = columns
    context = tl.load(context_index + row).to(tl.int64)
    depth = tl.load(depths + row)
    key = context * 0
    forks = depth * 0
    if KEYED:
        key = tl.load(keys + row)
        forks = tl.load(forked + row)
        if SPLIT:
            key = fold_device(fold_device(key, forks.to(tl.int64) + _FORK), action)
    step_key = key
    if USES_KEY:
        step_key = fold_device(key, depth)
    before = ()
    for j in tl.static_range(len(state)):
        before = before + (tl.load(state[j] + row),)
    after, reward, terminated, truncated, solved = transition(
        shared, context, depth, step_key, before, action + FIRST, PARAMS
    )
    return context, depth, key, forks, after, reward, terminated, truncated, solved


@triton.jit
def _children_kernel(
    shared,
    columns,
    state,
    rows,
    state_out,
    key_out,
    reward_out,
    terminated_out,
    truncated_out,
    solved_out,
    end,
    transition: tl.constexpr,
    PARAMS: tl.constexpr,
    FANOUT: tl.constexpr,
    FIRST: tl.constexpr,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at, exists, row, action = _span(0, end, FANOUT, BLOCK)
    if rows is not None:
        row = tl.load(rows + row)
    KEYED: tl.constexpr = USES_KEY or key_out is not None
    _, _, key, _, after, reward, terminated, truncated, solved = _step(
        shared,
        columns,
        state,
        row,
        action,
        transition,
        PARAMS,
        FIRST,
        USES_KEY,
        SPLIT,
        KEYED,
    )
    for j in tl.static_range(len(state_out)):
        tl.store(state_out[j] + at, after[j], mask=exists)
    if key_out is not None:
        tl.store(key_out + at, key, mask=exists)
    if reward_out is not None:
        tl.store(reward_out + at, reward, mask=exists)
        tl.store(terminated_out + at, terminated, mask=exists)
        tl.store(truncated_out + at, truncated, mask=exists)
        tl.store(solved_out + at, solved, mask=exists)


@triton.jit
def _solves_kernel(
    shared,
    columns,
    state,
    rows,
    found,
    end,
    transition: tl.constexpr,
    PARAMS: tl.constexpr,
    FANOUT: tl.constexpr,
    FIRST: tl.constexpr,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    _, _, row, action = _span(0, end, FANOUT, BLOCK)
    _, _, _, _, _, _, _, _, solved = _step(
        shared,
        columns,
        state,
        tl.load(rows + row),
        action,
        transition,
        PARAMS,
        FIRST,
        USES_KEY,
        SPLIT,
        USES_KEY,
    )
    some = tl.max(solved.to(tl.int32), 0)  # places beyond the end repeat the last child
    tl.store(found, some.to(tl.int64), mask=some != 0)


@triton.jit
def _replace_kernel(
    shared,
    source,
    source_state,
    slots,
    target,
    target_state,
    entries,
    next_id,
    next_entry,
    reward_out,
    done_out,
    first,
    end,
    max_depth,
    transition: tl.constexpr,
    PARAMS: tl.constexpr,
    SCORE: tl.constexpr,
    FANOUT: tl.constexpr,
    FIRST: tl.constexpr,
    USES_KEY: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number, exists, row, action = _span(first, end, FANOUT, BLOCK)
    root_in, context_in, id_in, depth_in, key_in, forks_in, entry_in = source
    context, depth, key, forks, after, reward, terminated, truncated, _ = _step(
        shared,
        (context_in, depth_in, key_in, forks_in),
        source_state,
        row,
        action,
        transition,
        PARAMS,
        FIRST,
        USES_KEY,
        SPLIT,
        True,
    )
    root = tl.load(root_in + row)
    parent = tl.load(id_in + row)
    depth += 1
    if max_depth is not None:
        truncated = truncated | (depth >= max_depth)
    done = terminated | truncated
    branch_id = tl.load(next_id) + number
    last = number * 0 + _NO_ENTRY
    if entries is not None:
        # Unlike a slot, the first entry may be anywhere: these stores are not wide ones.
        last = tl.load(next_entry) + number
        parent_entry, entry_id, entry_root, entry_flags, entry_action, entry_reward = entries
        flags = terminated.to(tl.int32) * _TERMINATED + truncated.to(tl.int32) * _TRUNCATED
        flags += _TRANSITION
        tl.store(parent_entry + last, tl.load(entry_in + row), mask=exists)
        tl.store(entry_id + last, branch_id, mask=exists)
        tl.store(entry_root + last, root.to(tl.int32), mask=exists)
        tl.store(entry_flags + last, flags.to(tl.uint8), mask=exists)
        tl.store(entry_action + last, action + FIRST, mask=exists)
        tl.store(entry_reward + last, reward, mask=exists)
    if reward_out is not None:
        tl.store(reward_out + number, reward, mask=exists)
        tl.store(done_out + number, done, mask=exists)
    at = number
    if slots is not None:
        at = tl.load(slots + number, mask=exists, other=0)
    if SPLIT:
        forks = forks * 0
    else:
        forks += 1
    score = number * 0
    if SCORE >= 0:
        score = after[SCORE].to(tl.int64)
    status = tl.where(done, _DONE, _LIVE).to(tl.int8)
    values = (status, root, context, branch_id, parent, depth, key, forks, last, score)
    for j in tl.static_range(len(target)):
        tl.store(target[j] + at, values[j], mask=exists)
    for j in tl.static_range(len(target_state)):
        tl.store(target_state[j] + at, after[j], mask=exists)


def children(
    rules: Rules,
    shared: Sequence[Tensor],
    columns: Sequence[Tensor],
    state: Sequence[Tensor],
    rows: Tensor | None,
    state_out: Sequence[Tensor],
    key: Tensor | None = None,
    outcome: Sequence[Tensor] | None = None,
) -> None:
    """Writes the children of the branches in `rows`, in the order of (parent, action).

    Args:
        rules: What to compile for.
        shared: The shared fields.
        columns: `context_index`, `depth`, `key` and `forks` of all branches, `[N]`.
        state: Their `branch` fields, `[N]`.
        rows: `[P] int64`, which of them expand, at least one; None for the first ones.
        state_out: The children's fields, `[P * F]`.
        key: Their keys, if wanted.
        outcome: Reward, terminated, truncated and solved, if wanted.
    """
    number = state_out[0].shape[0]
    _launch(
        _children_kernel,
        state_out[0],
        number,
        rules,
        (*shared, *rules.kernel.tables),
        tuple(columns),
        tuple(state),
        rows,
        tuple(state_out),
        key,
        *((None,) * 4 if outcome is None else outcome),
        number,
    )


def solves(
    rules: Rules,
    shared: Sequence[Tensor],
    columns: Sequence[Tensor],
    state: Sequence[Tensor],
    rows: Tensor,
) -> Tensor:
    """Returns whether a child solves its root, `[] int64`, 0 or 1; arguments as of `children`."""
    found = torch.zeros((), dtype=torch.int64, device=rows.device)
    number = rows.shape[0] * rules.fanout
    fields = (*shared, *rules.kernel.tables), tuple(columns), tuple(state)
    _launch(_solves_kernel, found, number, rules, *fields, rows, found, number)
    return found


def replace(
    rules: Rules,
    shared: Sequence[Tensor],
    source: Sequence[Tensor],
    source_state: Sequence[Tensor],
    slots: Tensor | None,
    target: Sequence[Tensor],
    target_state: Sequence[Tensor],
    entries: Sequence[Tensor] | None,
    next_id: Tensor,
    next_entry: Tensor,
    outcome: Sequence[Tensor] | None,
    span: tuple[int, int],
    max_depth: int | None,
    score: int | None,
) -> None:
    """Writes the children `span` of the first branches of `source` as branches with entries.

    None of them may solve its root, which would leave it no other.

    Args:
        rules: What to compile for.
        shared: The shared fields.
        source: The parents' `root`, `context_index`, `branch_id`, `depth`, `key`, `forks` and
            `last_entry`. No child of the span may go where a parent of the span is read.
        source_state: Their `branch` fields.
        slots: Each child's slot; None for its own number.
        target: The frontier's `status`, then its columns.
        target_state: Its `branch` fields.
        entries: The lineage's `parent_entry`, `branch_id`, `root`, `flags`, `action`, `reward`;
            None to record nothing.
        next_id: `[] int64`, the first child's id. next_entry: `[] int64`, its entry.
        outcome: Reward and done of all children, if wanted.
        span: The first child and the one after the last.
        max_depth: Depth at which children are truncated.
        score: The place of the field that is the verdict's score, or None.
    """
    first, end = span
    _launch(
        _replace_kernel,
        next_id,
        end - first,
        rules,
        (*shared, *rules.kernel.tables),
        tuple(source),
        tuple(source_state),
        slots,
        tuple(target),
        tuple(target_state),
        None if entries is None else tuple(entries),
        next_id,
        next_entry,
        *((None, None) if outcome is None else outcome),
        first,
        end,
        max_depth,
        SCORE=-1 if score is None else score,
    )


def _launch(
    kernel: Any, near: Tensor, number: int, rules: Rules, *arguments: object, **more: int
) -> None:
    with torch.cuda.device_of(near):
        kernel[(triton.cdiv(number, _BLOCK),)](
            *arguments,
            transition=rules.kernel.function,
            PARAMS=rules.kernel.params,
            FANOUT=rules.fanout,
            FIRST=rules.first,
            USES_KEY=rules.uses_key,
            SPLIT=rules.split,
            BLOCK=_BLOCK,
            **more,
        )
