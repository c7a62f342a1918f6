"""An environment of your own with its transition in Triton too, and the search fused around it.

The rules are written twice: batched in torch, which runs anywhere, and as a Triton function for a
block of branches, which `search` inlines into one kernel. Both must agree bit for bit; here they
are compared, and `branchrt certify` compares both with a scalar oracle. Without a CUDA device the
kernel runs in Triton's interpreter, slowly.

    python examples/own_kernel.py [--quick]
"""

import argparse
import os

import numpy as np
import torch
from gymnasium import spaces

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import triton
import triton.language as tl

from branchrt_gym import (
    Beam,
    BranchEnv,
    Contract,
    Transition,
    TransitionKernel,
    branch,
    make_roots,
    read_shared,
    search,
    shared,
)
from branchrt_gym.kernels import bounded, fold
from branchrt_gym.kernels.keys_triton import bounded_device, fold_device

PLACES, STEPS = 1000, 20


class Foraging(BranchEnv):
    """Walks over a shared table of prizes; a slip of chance takes a step further."""

    reward_dtype = torch.int32

    def __init__(self):
        """Declares the contract."""
        self.contract = Contract(
            {
                "prizes": shared((PLACES,), torch.int32),  # one table per context
                "place": branch((), torch.int32),
                "score": branch((), torch.int32),
            }
        )
        self.single_observation_space = spaces.Box(0, PLACES - 1, (1,), np.int32)
        self.single_action_space = spaces.Discrete(3)

    def initial_shared(self, keys):
        """Fills the tables."""
        place = torch.arange(PLACES, device=keys.device)
        return {"prizes": bounded(fold(keys[:, None], place), 10).int()}

    def initial(self, shared, context_index, keys):
        """Starts anywhere."""
        place = bounded(fold(keys, 0), PLACES).int()
        return {"place": place, "score": torch.zeros_like(place)}

    def transition(self, shared, branches, action):
        """Steps to the next place, or slips beyond it."""
        slip = bounded(fold(branches.key, 0), 4) == 0
        place = (branches.state["place"] + action.int() * 7 + 1 + slip.int()) % PLACES
        prize = read_shared(shared["prizes"], branches.context_index, place)
        score = branches.state["score"] + prize
        ended = branches.depth >= STEPS - 1
        return Transition(
            state={"place": place, "score": score},
            reward=prize,
            terminated=ended,
            truncated=torch.zeros_like(ended),
            solved=ended & (score > 150),
        )

    def transition_kernel(self, device):
        """The same in Triton."""
        return TransitionKernel(foraging_transition, (PLACES, STEPS))

    def observation(self, shared, branches):
        """Shows the place."""
        return branches.state["place"][:, None]


@triton.jit
def foraging_transition(shared, context, depth, key, state, action, params: tl.constexpr):
    """`Foraging.transition`: arguments and results as `TransitionKernel` says."""
    (prizes,) = shared
    place, score = state
    places: tl.constexpr = params[0]
    steps: tl.constexpr = params[1]
    slip = bounded_device(fold_device(key, 0), 4) == 0
    place = (place + action * 7 + 1 + slip.to(tl.int32)) % places
    prize = tl.load(prizes + (context * places + place))
    score = score + prize
    ended = depth >= steps - 1
    return (place, score), prize, ended, ended & False, ended & (score > 150)


def main() -> None:
    """Searches in both forms and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within seconds")
    quick = parser.parse_args().quick
    device = "cuda" if torch.cuda.is_available() else "cpu"
    env = Foraging()
    roots = make_roots(env, 2 if quick else 16, device=device)
    depth = 6 if quick else STEPS
    plain = search(env, roots, Beam(8), depth, tier="eager")
    fused = search(env, roots, Beam(8), depth, tier="fused")
    for result in (plain, fused):
        print(f"{result.tier:>6}: best {result.score.tolist()}, {int(result.solved.sum())} solved")
    assert torch.equal(plain.branch_id, fused.branch_id) and torch.equal(plain.score, fused.score)


if __name__ == "__main__":
    main()
