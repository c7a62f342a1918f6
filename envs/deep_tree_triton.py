"""DeepTree's rules as Triton device functions, for fused searches and steps."""
# Triton ships no types; what runs on the device is not typed.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from branchrt_gym.kernels.keys_triton import bounded_device, fold_device, mix32_device

__all__ = ["initial", "observation", "transition"]


@triton.jit
def transition(shared, context, depth, key, state, action, params: tl.constexpr):
    """`DeepTree.transition` for a block of branches; see `BranchEnv.transition_kernel`."""
    entries, _, target = shared
    position, score = state
    width: tl.constexpr = params[0]
    last: tl.constexpr = params[1] - 1
    bits = position.to(tl.uint32) * 31 + action.to(tl.uint32) * 0x9E3779B1
    bits = mix32_device(bits + depth.to(tl.uint32) * 0x85EBCA6B)
    position = ((bits.to(tl.uint64) * width) >> 32).to(tl.int32)
    reward = tl.load(entries + (context * width + position)).to(tl.int32)
    score = score + reward
    terminated = depth == last
    # Nothing is solved before the end, so the target need not be read until then.
    solved = terminated & (score >= tl.load(target + context, mask=terminated, other=0))
    return (position, score), reward, terminated, terminated & False, solved


@triton.jit
def initial(shared, context, key, params: tl.constexpr):
    """`DeepTree.initial` for a block of roots; see `BranchEnv.initial_kernel`."""
    starts: tl.constexpr = params[0]
    position = tl.load(shared[1] + context * starts + bounded_device(fold_device(key, 0), starts))
    return position, position * 0


@triton.jit
def _over(value, scale: tl.constexpr):
    """The quotient, as float32; rounded as torch rounds it, which `/` is not."""
    return tl.div_rn(value.to(tl.float32), tl.full(value.shape, scale, tl.float32))


@triton.jit
def observation(shared, context, depth, state, params: tl.constexpr):
    """`DeepTree.observation` for a block of branches; see `BranchEnv.observation_kernel`."""
    entries, _, _ = shared
    position, score = state
    width: tl.constexpr = params[0]
    window: tl.constexpr = params[3]
    seen = (_over(depth, params[1]), _over(score, params[1] * params[2]))
    for j in tl.static_range(window):
        # As 64-bit numbers: the sum may pass the largest position that 32 bits hold.
        around = position.to(tl.int64) + (j - window // 2)
        around = tl.minimum(tl.maximum(around, 0), width - 1)
        seen = seen + (_over(tl.load(entries + (context * width + around)), params[2]),)
    return (seen,)
