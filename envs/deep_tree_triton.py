"""DeepTree's transition as a Triton device function, for the fused tier of `search`."""
# Triton ships no types; what runs on the device is not typed.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from branchrt_gym.kernels.keys_triton import mix32_device

__all__ = ["transition"]


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
