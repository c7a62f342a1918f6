"""DeepTree with a Triton form that is wrong in one action: it earns one too much."""

import triton
import triton.language as tl

from branchrt_gym import DeepTree
from branchrt_gym.contract import TransitionKernel
from branchrt_gym.envs.deep_tree_triton import transition


@triton.jit
def wrong_transition(shared, context, depth, key, state, action, params: tl.constexpr):
    state, reward, terminated, truncated, solved = transition(
        shared, context, depth, key, state, action, params
    )
    position, score = state
    score = score + (action == 1).to(tl.int32)
    return (position, score), reward, terminated, truncated, solved


class WrongKernel(DeepTree):
    def transition_kernel(self, device):
        return TransitionKernel(wrong_transition, (self.width, self.depth))
