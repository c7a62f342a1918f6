"""An environment that shows what happened to a branch, for tests of adapters."""

import numpy as np
import torch
from gymnasium import spaces

from branchrt_gym import BranchEnv, BranchingVectorEnv, Contract, Transition, branch
from branchrt_gym.kernels import bounded, fold

TURN = 1009


class Tally(BranchEnv):
    """Observes its first key's word, its steps, the tally of its actions, and its last luck.

    Ends with one in eight by luck; truncated after 20 steps.
    """

    reward_dtype = torch.float32

    def __init__(self) -> None:
        names = ("birth", "steps", "tally", "luck")
        self.contract = Contract({name: branch((), torch.int64) for name in names})
        self.single_observation_space = spaces.Box(0, 1 << 20, (4,), np.float32)
        self.single_action_space = spaces.Discrete(3)

    def initial_shared(self, keys):
        return {}

    def initial(self, shared, context_index, keys):
        zero = torch.zeros_like(keys)
        return {
            "birth": bounded(fold(keys, 0), 1 << 20),
            "steps": zero,
            "tally": zero,
            "luck": zero,
        }

    def transition(self, shared, branches, action):
        state = branches.state
        luck = bounded(fold(branches.key, 0), 1 << 20)
        ended = luck % 8 == 0
        steps = state["steps"] + 1
        return Transition(
            state={
                "birth": state["birth"],
                "steps": steps,
                "tally": (state["tally"] * 3 + action) % TURN,
                "luck": luck,
            },
            reward=action.to(torch.float32),
            terminated=ended,
            truncated=(steps >= 20) & ~ended,
            solved=torch.zeros_like(ended),
        )

    def observation(self, shared, branches):
        columns = [branches.state[name] for name in ("birth", "steps", "tally", "luck")]
        return torch.stack(columns, dim=1).to(torch.float32)


def tallies(rows: int, spare: int = 0, **options) -> BranchingVectorEnv:
    options = {"autoreset_mode": "Disabled", "record_lineage": False, **options}
    return BranchingVectorEnv(Tally(), rows + spare, num_roots=rows, **options)
