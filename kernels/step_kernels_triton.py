"""A vector env's step on the device: what `step_triton` launches.

Slot `r` holds root `r`. The places of `columns`, `outputs` and the counts are those of the tuples
of these names in `step_triton`.
"""
# Triton ships no types; what runs on the device is not typed.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from branchrt_gym.kernels.keys_triton import bounded_device, fold_device

__all__ = ["DISABLED", "NEXT", "SAME", "count_kernel", "step_kernel"]

# When an ended root starts again: in the next step, in the same one, or never.
NEXT, SAME, DISABLED = 0, 1, 2
_NEXT = tl.constexpr(NEXT)
_SAME = tl.constexpr(SAME)
_DISABLED = tl.constexpr(DISABLED)
# As in `slots` and `seeding`.
_LIVE = tl.constexpr(1)
_DONE = tl.constexpr(2)
_CONTEXT = tl.constexpr(1 << 40)
_EPISODE = tl.constexpr(2 << 40)
# Places in `Columns`.
_STATUS = tl.constexpr(0)
_WHERE = tl.constexpr(1)
_DEPTH = tl.constexpr(3)
_KEY = tl.constexpr(4)
_NEXT_ID = tl.constexpr(9)


@triton.jit
def _span(num_slots, BLOCK: tl.constexpr):
    """This program's slots as 64-bit offsets, and which of them exist."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < num_slots


@triton.jit
def _load(fields, at, there):
    taken = ()
    for j in tl.static_range(len(fields)):
        taken = taken + (tl.load(fields[j] + at, mask=there, other=0),)
    return taken


@triton.jit
def _select(mask, fields, others):
    """Returns the fields where `mask` is set, elsewhere the others, in the dtypes of these."""
    merged = ()
    for j in tl.static_range(len(others)):
        merged = merged + (tl.where(mask, fields[j].to(others[j].dtype), others[j]),)
    return merged


@triton.jit
def _act(
    shared,
    columns,
    state,
    live,
    context,
    depth,
    actions,
    at,
    there,
    max_depth,
    transition: tl.constexpr,
    PARAMS: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    USES_KEY: tl.constexpr,
):
    """Runs the transition of a block of slots; the flags are set for live ones only."""
    action = tl.load(actions + at, mask=there, other=LOW)
    action = tl.minimum(tl.maximum(action, LOW), HIGH).to(tl.int32)
    key = at
    if USES_KEY:
        key = fold_device(tl.load(columns[_KEY] + at, mask=there, other=0), depth)
    fresh, reward, terminated, truncated, solved = transition(
        shared, context, depth, key, state, action, PARAMS
    )
    truncated = live & (truncated | (depth >= max_depth))
    return fresh, reward, live & terminated, truncated, live & solved


@triton.jit
def _show(leaf, at, visible, value, there, REST: tl.constexpr):
    dtype: tl.constexpr = leaf.dtype.element_ty
    tl.store(leaf + at, tl.where(visible, value.to(dtype), tl.full((), REST, dtype)), mask=there)


@triton.jit
def _show_entries(
    leaf,
    at,
    visible,
    entries,
    there,
    WIDTH: tl.constexpr,
    REST: tl.constexpr,
    J: tl.constexpr,
):
    for k in tl.static_range(WIDTH):
        _show(leaf + k, at * WIDTH, visible, entries[k], there, REST[J][k])


@triton.jit
def _observe(
    shared,
    leaves,
    visible,
    context,
    depth,
    state,
    at,
    there,
    observation: tl.constexpr,
    PARAMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    REST: tl.constexpr,
):
    """Writes the observations of a block of slots, the constant one where nothing is visible."""
    seen = observation(shared, context, depth, state, PARAMS)
    for j in tl.static_range(len(leaves)):
        if WIDTHS[j] == 0:
            _show(leaves[j], at, visible, seen[j], there, REST[j][0])
        else:
            _show_entries(leaves[j], at, visible, seen[j], there, WIDTHS[j], REST, j)


@triton.jit
def _look(columns, at, there):
    """Returns the status, context and depth of a block of slots."""
    status = tl.load(columns[_STATUS] + at, mask=there, other=0)
    context = tl.load(columns[_WHERE] + at, mask=there, other=0)
    return status, context, tl.load(columns[_DEPTH] + at, mask=there, other=0)


@triton.jit(do_not_specialize=["max_depth"])
def count_kernel(
    shared,
    columns,
    state,
    actions,
    counts,
    num_slots,
    max_depth,
    transition: tl.constexpr,
    PARAMS: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    USES_KEY: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Counts each block's restarts, and puts the next id where no later program changes it."""
    at, there = _span(num_slots, BLOCK)
    status, context, depth = _look(columns, at, there)
    restarts = status == _DONE
    if MODE == _SAME:
        _, _, terminated, truncated, _ = _act(
            shared,
            columns,
            _load(state, at, there),
            status == _LIVE,
            context,
            depth,
            actions,
            at,
            there,
            max_depth,
            transition,
            PARAMS,
            LOW,
            HIGH,
            USES_KEY,
        )
        restarts = restarts | terminated | truncated
    each, first = counts
    tl.store(each + tl.program_id(0), tl.sum(restarts.to(tl.int32), 0))
    tl.store(first, tl.load(columns[_NEXT_ID]), mask=tl.program_id(0) == 0)


@triton.jit
def _restart(
    shared,
    columns,
    state,
    restarts,
    context,
    depth,
    at,
    counts,
    next_counts,
    num_contexts,
    initial: tl.constexpr,
    PARAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Begins the next episode of the roots in `restarts`; returns what it changed."""
    _, contexts, branch_ids, _, keys, root_keys, episodes, first_ids, oldest_ids, next_id = columns
    each, first = counts
    block = tl.program_id(0)
    earlier = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, block, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        earlier += tl.load(each + place, mask=place < block, other=0)
    number = restarts.to(tl.int32)
    before = tl.load(first) + tl.sum(earlier, 0)
    branch_id = before + tl.cumsum(number, 0) - number
    # No program of this launch reads what these say.
    beyond = before + tl.sum(number, 0)
    tl.store(next_id, beyond, mask=block == tl.num_programs(0) - 1)
    tl.store(next_counts[1], beyond, mask=block == tl.num_programs(0) - 1)

    tl.store(oldest_ids + at, tl.load(first_ids + at, mask=restarts, other=0), mask=restarts)
    tl.store(first_ids + at, branch_id, mask=restarts)
    tl.store(branch_ids + at, branch_id, mask=restarts)
    episode = tl.load(episodes + at, mask=restarts, other=0) + 1
    tl.store(episodes + at, episode, mask=restarts)
    key = tl.load(root_keys + at, mask=restarts, other=0)
    key = fold_device(key, episode.to(tl.int64) + _EPISODE)
    tl.store(keys + at, key, mask=restarts)
    drawn = bounded_device(fold_device(key, _CONTEXT), num_contexts)
    tl.store(contexts + at, drawn, mask=restarts)
    context = tl.where(restarts, drawn, context)
    state = _select(restarts, initial(shared, context, key, PARAMS), state)
    return state, context, tl.where(restarts, 0, depth)


@triton.jit(do_not_specialize=["max_depth", "num_contexts"])
def step_kernel(
    shared_of_transition,
    shared_of_initial,
    shared_of_observation,
    columns,
    state,
    actions,
    leaves,
    final_leaves,
    outputs,
    counts,
    next_counts,
    num_slots,
    num_contexts,
    max_depth,
    transition: tl.constexpr,
    TRANSITION: tl.constexpr,
    initial: tl.constexpr,
    INITIAL: tl.constexpr,
    observation: tl.constexpr,
    OBSERVATION: tl.constexpr,
    WIDTHS: tl.constexpr,
    REST: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    USES_KEY: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Steps a block of slots; the order is that of `BranchingVectorEnv.step`."""
    at, there = _span(num_slots, BLOCK)
    rewards, terminations, truncations, lives, everys, solutions, steps, ends, finals = outputs
    status, context, depth = _look(columns, at, there)
    live = status == _LIVE
    visible = live
    if MODE != _DISABLED:
        visible = live | (status == _DONE)
    before = _load(state, at, there)
    fresh, reward, terminated, truncated, solved = _act(
        shared_of_transition,
        columns,
        before,
        live,
        context,
        depth,
        actions,
        at,
        there,
        max_depth,
        transition,
        TRANSITION,
        LOW,
        HIGH,
        USES_KEY,
    )
    fresh = _select(live, fresh, before)
    depth += live.to(tl.int32)
    ended = terminated | truncated
    tl.store(rewards + at, tl.where(live, reward, 0), mask=there)
    tl.store(terminations + at, terminated, mask=there)
    tl.store(truncations + at, truncated, mask=there)
    after = tl.where(ended, _DONE, status.to(tl.int32))
    if MODE == _NEXT:
        tl.store(next_counts[0] + tl.program_id(0), tl.sum(ended.to(tl.int32), 0))

    if MODE == _SAME:
        _observe(
            shared_of_observation,
            final_leaves,
            live,
            context,
            depth,
            fresh,
            at,
            there,
            observation,
            OBSERVATION,
            WIDTHS,
            REST,
        )
        tl.store(ends + at, ended, mask=there)
        tl.store(finals + at, solved & ended, mask=there)
        solved = solved & (ended == 0)
    if MODE != _DISABLED:
        restarts = status == _DONE
        if MODE == _SAME:
            restarts = restarts | ended
        fresh, context, depth = _restart(
            shared_of_initial,
            columns,
            fresh,
            restarts,
            context,
            depth,
            at,
            counts,
            next_counts,
            num_contexts,
            initial,
            INITIAL,
            BLOCK,
        )
        after = tl.where(restarts, _LIVE, after)
    for j in tl.static_range(len(state)):
        tl.store(state[j] + at, fresh[j], mask=there)
    tl.store(columns[_DEPTH] + at, depth, mask=there)
    tl.store(columns[_STATUS] + at, after.to(tl.int8), mask=there)
    tl.store(lives + at, after == _LIVE, mask=there)
    tl.store(everys + at, there, mask=there)
    tl.store(solutions + at, solved, mask=there)
    tl.store(steps + at, visible, mask=there)
    _observe(
        shared_of_observation,
        leaves,
        visible,
        context,
        depth,
        fresh,
        at,
        there,
        observation,
        OBSERVATION,
        WIDTHS,
        REST,
    )
