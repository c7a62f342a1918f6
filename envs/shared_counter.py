"""`branchrt/SharedCounter-v0`: a counter per branch over a wide table per context.

The rules are stated in full by `SharedCounterOracle`, the scalar form; this is the batched one,
and a first environment to read: one shared field, two branch fields, no chance. With `mutation`,
each branch writes to a table of its own, in pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from branchrt_gym.contract import (
    BranchEnv,
    Branches,
    Contract,
    InitialKernel,
    ObservationKernel,
    Transition,
    TransitionKernel,
    branch,
    paged,
    read_shared,
)
from branchrt_gym.contract import shared as shared_field
from branchrt_gym.envs.shared_counter_render import draw, text
from branchrt_gym.kernels import bounded, fold, mix32
from branchrt_gym.pages import PageWrites

__all__ = ["SharedCounter"]

LOW32 = 0xFFFFFFFF
INT31 = 2**31 - 1
PACE = 0x9E3779B1 - 2**32  # the same bits, signed
GOALS = 8
CHUNK = 1 << 14  # entries mixed at a time, so that the intermediates stay in cache


class SharedCounter(BranchEnv):
    """The batched rules of SharedCounter; see `SharedCounterOracle` for the rules themselves.

    State: `table [C, width] int32` and `goal [C] int32` are shared; a branch has its `counter`
    (int32, unsigned bits) and `score` (int32). With `mutation` it also has `own`, `width` int32 in
    pages: the table as this branch has written over it.

    Args:
        width: Entries of a table.
        actions: The action space is `Discrete(actions)`.
        depth: Steps of an episode.
        target: Score that solves a root: the difficulty.
        mutation: Percent of the table that a transition writes over for its branch, in `0 … 100`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}
    reward_dtype = torch.int32
    uses_key = False

    def __init__(
        self,
        width: int = 65_536,
        actions: int = 4,
        depth: int = 32,
        target: int = 20,
        mutation: int = 0,
    ) -> None:
        """Declares the contract and the spaces; see the class for the arguments."""
        given = {"width": width, "actions": actions, "depth": depth, "target": target}
        for name, value in given.items():
            if not 1 <= value <= INT31:
                raise ValueError(f"`{name}` is {value}; expected 1 … {INT31}")
        if not 0 <= mutation <= 100:
            raise ValueError(f"`mutation` is {mutation}; expected a percentage in 0 … 100")
        self.width = width
        self.actions = actions
        self.depth = depth
        self.target = target
        self.run = -(-width * mutation // 100)  # entries that a transition writes
        fields = {
            "table": shared_field((width,), torch.int32),
            "goal": shared_field((), torch.int32),
            "counter": branch((), torch.int32),
            "score": branch((), torch.int32),
        }
        if self.run:
            fields["own"] = paged((width,), torch.int32, initial="table")
        self.contract = Contract(fields)
        low = np.array([0, -(2**31), -(2**31), 0, 0], np.int32)
        high = np.array([GOALS - 1, INT31, INT31, target, depth], np.int32)
        self.single_observation_space = spaces.Box(low, high, dtype=np.int32)
        self.single_action_space = spaces.Discrete(actions)

    def initial_shared(self, keys: Tensor) -> dict[str, Tensor]:
        """Hashes a table and draws a goal for each context."""
        low, high = keys.to(torch.int32), (keys >> 32).to(torch.int32)
        table = torch.empty((keys.shape[0], self.width), dtype=torch.int32, device=keys.device)
        for row in range(keys.shape[0]):
            for begin in range(0, self.width, CHUNK):
                end = min(begin + CHUNK, self.width)
                place = torch.arange(begin, end, dtype=torch.int32, device=keys.device)
                table[row, begin:end] = mix32(mix32(place.add_(low[row])).add_(high[row]))
        return {"table": table, "goal": bounded(fold(keys, 0), GOALS).to(torch.int32)}

    def initial(
        self, shared: Mapping[str, Tensor], context_index: Tensor, keys: Tensor
    ) -> dict[str, Tensor]:
        """Starts with a counter drawn by the episode's key, and score 0."""
        counter = fold(keys, 0).to(torch.int32)
        return {"counter": counter, "score": torch.zeros_like(counter)}

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        """Advances the counters by the actions and by the entries that they point to."""
        counter = branches.state["counter"]
        entry = self._entry(shared, branches)
        counter = (counter + action.to(torch.int32)).mul_(PACE).add_(entry)
        goal = shared["goal"].index_select(0, branches.context_index)
        reward = (((counter >> 29) & (GOALS - 1)) == goal).to(torch.int32)
        score = branches.state["score"] + reward
        solved = score >= self.target
        return Transition(
            state={"counter": counter, "score": score},
            reward=reward,
            terminated=solved,
            truncated=(branches.depth >= self.depth - 1).logical_and_(~solved),
            solved=solved,
            pages={"own": self._mutation(branches, counter)} if self.run else {},
        )

    def transition_kernel(self, device: torch.device) -> TransitionKernel | None:
        """The same in Triton, without mutation."""
        if self.run:
            return None
        from branchrt_gym.envs.shared_counter_triton import transition

        return TransitionKernel(transition, (self.width, self.depth, self.target))

    def initial_kernel(self, device: torch.device) -> InitialKernel | None:
        """The start in Triton, without mutation."""
        if self.run:
            return None
        from branchrt_gym.envs.shared_counter_triton import initial

        return InitialKernel(initial)

    def observation_kernel(self, device: torch.device) -> ObservationKernel | None:
        """The observation in Triton, without mutation."""
        if self.run:
            return None
        from branchrt_gym.envs.shared_counter_triton import observation

        return ObservationKernel(observation, (self.width,))

    def observation(self, shared: Mapping[str, Tensor], branches: Branches) -> Tensor:
        """Returns `[M, 5] int32`: goal, counter, the entry it points to, score and depth."""
        return torch.stack(
            (
                shared["goal"].index_select(0, branches.context_index),
                branches.state["counter"],
                self._entry(shared, branches),
                branches.state["score"],
                branches.depth,
            ),
            dim=1,
        )

    def render(
        self, shared: Mapping[str, np.ndarray], branch: Mapping[str, np.ndarray], mode: str
    ) -> np.ndarray | str:
        """Draws a branch as the oracle does."""
        paint = draw if mode == "rgb_array" else text
        return paint(
            int(branch["counter"]) & LOW32,
            int(branch["score"]),
            int(branch["depth"]),
            goal=int(shared["goal"]),
            target=self.target,
            depth_limit=self.depth,
        )

    def _entry(self, shared: Mapping[str, Tensor], branches: Branches) -> Tensor:
        """Reads the entries that the counters point to: number `(counter * width) >> 32`."""
        place = self._below(branches.state["counter"], self.width)
        if self.run:
            return branches.pages["own"].read(place)
        return read_shared(shared["table"], branches.context_index, place)

    def _mutation(self, branches: Branches, counter: Tensor) -> PageWrites:
        """Writes one run of hashed entries, where and what by the new counters."""
        start = self._below(mix32(counter), self.width - self.run + 1)
        offset = torch.arange(self.run, dtype=torch.int32, device=start.device)
        place = start.to(torch.int32)[:, None] + offset
        value = mix32(place.mul_(PACE).add_(counter[:, None]))
        return branches.pages["own"].write(start, value)

    @staticmethod
    def _below(bits: Tensor, most: int) -> Tensor:
        """Scales 32 bits, `int32`: `(bits * most) >> 32`."""
        wide = bits.to(torch.int64).bitwise_and_(LOW32)
        return wide.mul_(most).bitwise_right_shift_(32)
