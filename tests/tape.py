"""An environment whose large state is paged or, by the same rules, dense."""

import numpy as np
import torch
from gymnasium import spaces

from branchrt_gym import BranchEnv, Contract, Transition, branch, paged, read_shared, shared
from branchrt_gym.kernels import bounded, fold


class Tape(BranchEnv):
    """A tape of which each step overwrites a run and a mark; the score is what was there before.

    `dense` keeps the tape in a `branch` field, the other in pages.
    """

    reward_dtype = torch.int32

    def __init__(self, width=37, page_size=5, based=True, dense=False, ends=True):
        self.width, self.based, self.dense, self.ends = width, based, dense, ends
        own = branch((width,), torch.int16)
        if not dense:
            initial = "tape" if based else None
            own = paged((width,), torch.int16, initial=initial, page_size=page_size)
        self.contract = Contract(
            {
                "tape": shared((width,), torch.int16),
                "own": own,
                "score": branch((), torch.int32),
                "head": branch((), torch.int32),
            }
        )
        self.single_observation_space = spaces.Box(-(2**31), 2**31 - 1, (4,), np.int32)
        self.single_action_space = spaces.Discrete(3)

    def initial_shared(self, keys):
        at = torch.arange(self.width, device=keys.device)
        return {"tape": bounded(fold(keys[:, None], at), 100).to(torch.int16)}

    def initial(self, shared, context_index, keys):
        zero = torch.zeros_like(keys, dtype=torch.int32)
        state = {"score": zero, "head": bounded(fold(keys, 3), self.width).to(torch.int32)}
        if self.dense:
            own = shared["tape"][context_index]
            state["own"] = own if self.based else torch.zeros_like(own)
        return state

    def read(self, branches, index):
        if not self.dense:
            return branches.pages["own"].read(index)
        own = branches.state["own"]
        return own.gather(1, index if index.ndim == 2 else index[:, None]).view(index.shape)

    def transition(self, shared, branches, action):
        head = branches.state["head"].long()
        around = (head[:, None] + torch.arange(4, device=head.device)) % self.width
        seen = self.read(branches, around).to(torch.int32).sum(1, dtype=torch.int32)
        base = read_shared(shared["tape"], branches.context_index, head).to(torch.int32)
        reward = (seen + base + action.to(torch.int32)) % 17 - 6
        key = fold(branches.key, action)
        length = bounded(fold(key, 1), 9)
        start = bounded(fold(key, 2), self.width - 8)
        value = bounded(fold(key[:, None], torch.arange(8, device=key.device)), 90).to(torch.int16)
        # A run of 0 to 8 entries, and a mark at the end, which the run may not reach.
        mark = torch.where(start + 8 < self.width, self.width - 1, -1)
        starts = torch.stack([start, mark], 1)
        values = torch.stack([value, value.flip(1)], 1)
        lengths = torch.stack([length, torch.ones_like(length)], 1)
        head = (head + 7 * action + 1) % self.width
        state = {"score": branches.state["score"] + reward, "head": head.to(torch.int32)}
        pages = {}
        if self.dense:
            at = torch.arange(self.width, device=head.device)
            own = branches.state["own"]
            inside = (at >= start[:, None]) & (at < (start + length)[:, None])
            own = torch.where(inside, value.gather(1, (at - start[:, None]).clamp(0, 7)), own)
            marked = at == mark[:, None]
            state["own"] = torch.where(marked, values[:, 1, :1], own)
        else:
            pages["own"] = branches.pages["own"].write(starts, values, lengths)
        roll = bounded(fold(key, 5), 40)
        done = (roll == 0) & self.ends
        solved = (roll == 1) & self.ends
        return Transition(state, reward, done, torch.zeros_like(done), solved, pages=pages)

    def observation(self, shared, branches):
        head = branches.state["head"].long()
        last = torch.full_like(head, self.width - 1)
        at = torch.stack([head, last, (head * 5) % self.width], 1)
        seen = self.read(branches, at).to(torch.int32)
        return torch.cat([seen, branches.state["score"][:, None]], 1)
