"""SharedCounter's rules as Triton device functions, for the runtime's own kernels."""
# Triton ships no types; what runs on the device is not typed.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from branchrt_gym.kernels.keys_triton import fold_device

__all__ = ["initial", "observation", "transition"]


@triton.jit
def transition(shared, context, depth, key, state, action, params: tl.constexpr):
    """`SharedCounter.transition` for a block of branches; see `BranchEnv.transition_kernel`."""
    table, goals = shared
    counter, score = state
    width: tl.constexpr = params[0]
    last: tl.constexpr = params[1] - 1
    target: tl.constexpr = params[2]
    place = (counter.to(tl.uint32).to(tl.uint64) * width) >> 32
    entry = tl.load(table + (context * width + place.to(tl.int64)))
    bits = (counter + action).to(tl.uint32) * 0x9E3779B1 + entry.to(tl.uint32)
    reward = ((bits >> 29).to(tl.int32) == tl.load(goals + context)).to(tl.int32)
    score = score + reward
    solved = score >= target
    truncated = (depth >= last) & (score < target)
    return (bits.to(tl.int32), score), reward, solved, truncated, solved


@triton.jit
def initial(shared, context, key, params: tl.constexpr):
    """`SharedCounter.initial` for a block of roots; see `BranchEnv.initial_kernel`."""
    counter = fold_device(key, 0).to(tl.int32)
    return counter, counter * 0


@triton.jit
def observation(shared, context, depth, state, params: tl.constexpr):
    """`SharedCounter.observation` for a block of branches; see `BranchEnv.observation_kernel`."""
    table, goals = shared
    counter, score = state
    width: tl.constexpr = params[0]
    place = (counter.to(tl.uint32).to(tl.uint64) * width) >> 32
    entry = tl.load(table + (context * width + place.to(tl.int64)))
    return ((tl.load(goals + context), counter, entry, score, depth),)
