"""`branchrt/DeepTree-v0`: a deep tree whose rewards are read from a large shared context.

The rules are stated in full by `DeepTreeOracle`, the scalar form; this is the batched one.
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
    read_shared,
)
from branchrt_gym.contract import shared as shared_field
from branchrt_gym.envs.deep_tree_render import draw, text
from branchrt_gym.kernels import bounded, fold, mix32

__all__ = ["DeepTree"]

LOW32 = 0xFFFFFFFF
ROWS = 2048  # branches observed at a time, likewise, and so that one core does not wait for another
CHUNK = 1 << 14  # context entries mixed at a time, so that the intermediates stay in cache


class DeepTree(BranchEnv):
    """The batched rules of DeepTree; see `DeepTreeOracle` for the rules themselves.

    State: `context [C, width] int16`, `start [C, starts] int32` and `target [C] int32` are
    shared; a branch has its `position` (int32, `0 … width - 1`) and `score` (int32).

    Args:
        width: Entries of a context.
        fanout: Actions at each position.
        depth: Steps of an episode.
        value_range: Rewards lie in `-value_range … value_range`; at most 16383.
        starts: Starting positions of a context; an episode's key picks one.
        window: Entries of the context in an observation, odd.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}
    reward_dtype = torch.int32
    uses_key = False

    def __init__(
        self,
        width: int = 262_144,
        fanout: int = 4,
        depth: int = 64,
        value_range: int = 1000,
        starts: int = 8,
        window: int = 9,
    ) -> None:
        """Declares the contract and the spaces; see the class for the arguments."""
        ranges = {
            "width": (width, 2**31 - 1),
            "fanout": (fanout, 2**31 - 1),
            "depth": (depth, 2**31 - 1),
            "value_range": (value_range, 16_383),
            "starts": (starts, 2**31 - 1),
            "window": (window, 2**31 - 1),
        }
        for name, (value, most) in ranges.items():
            if not 1 <= value <= most:
                raise ValueError(f"`{name}` is {value}; expected 1 … {most}")
        if depth * value_range >= 2**31:
            raise ValueError(
                f"`depth` is {depth} and `value_range` {value_range}; expected a product below "
                "2**31, so that scores fit in int32"
            )
        if window % 2 == 0:
            raise ValueError(f"`window` is {window}; expected an odd number, centred")
        self.width = width
        self.fanout = fanout
        self.depth = depth
        self.value_range = value_range
        self.starts = starts
        self.window = window
        self.contract = Contract(
            {
                "context": shared_field((width,), torch.int16),
                "start": shared_field((starts,), torch.int32),
                "target": shared_field((), torch.int32),
                "position": branch((), torch.int32),
                "score": branch((), torch.int32),
            }
        )
        self._scales: dict[torch.device, Tensor] = {}
        self.single_observation_space = spaces.Box(-1.0, 1.0, (2 + window,), np.float32)
        self.single_action_space = spaces.Discrete(fanout)

    def initial_shared(self, keys: Tensor) -> dict[str, Tensor]:
        """Makes contexts: hashed entries, then the planted paths, then the target."""
        count, device = keys.shape[0], keys.device
        low = keys.to(torch.int32)[:, None]
        high = (keys >> 32).to(torch.int32)[:, None]
        context = torch.empty((count, self.width), dtype=torch.int16, device=device)
        for row in range(count):
            for begin in range(0, self.width, CHUNK):
                end = min(begin + CHUNK, self.width)
                entry = torch.arange(begin, end, dtype=torch.int32, device=device)
                bits = mix32(mix32(entry.add_(low[row])).add_(high[row]))
                bits.bitwise_right_shift_(16).bitwise_and_(0xFFFF)
                value = bits.mul_(2 * self.value_range + 1).bitwise_right_shift_(16)
                context[row, begin:end] = value.sub_(self.value_range)

        word = torch.arange(self.starts, device=device)
        start = self._scale((fold(keys[:, None], word)).to(torch.int32))
        poor = 1 + bounded(fold(keys, self.starts), min(6, self.depth))
        path = fold(keys[:, None], word + (self.starts + 1))
        position, steps = start, []
        for step in range(self.depth):
            action = bounded(fold(path, step), self.fanout)
            depth = torch.full_like(position, step)
            position = self._child(position, action.to(torch.int32), depth)
            steps.append(position.to(torch.int64))
        planted = torch.stack(steps, dim=2)
        first = torch.arange(self.depth, device=device) < poor[:, None, None]
        rows = torch.arange(count, device=device)[:, None, None].expand_as(planted)
        first = first.expand_as(planted)
        # Rich entries first, then poor ones: where paths meet, poor wins.
        context[rows[~first], planted[~first]] = self.value_range
        context[rows[first], planted[first]] = -self.value_range
        reached = context[rows, planted].to(torch.int32).sum(2, dtype=torch.int32)
        return {"context": context, "start": start, "target": reached.amin(1)}

    def initial(
        self, shared: Mapping[str, Tensor], context_index: Tensor, keys: Tensor
    ) -> dict[str, Tensor]:
        """Starts at one of the context's starting positions, with score 0."""
        position = read_shared(shared["start"], context_index, bounded(fold(keys, 0), self.starts))
        return {"position": position, "score": torch.zeros_like(position)}

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        """Moves to the child's position and earns the context's entry there."""
        state, index = branches.state, branches.context_index
        position = self._child(state["position"], action.to(torch.int32), branches.depth)
        reward = read_shared(shared["context"], index, position).to(torch.int32)
        score = state["score"] + reward
        terminated = branches.depth == self.depth - 1
        return Transition(
            state={"position": position, "score": score},
            reward=reward,
            terminated=terminated,
            truncated=torch.zeros_like(terminated),
            solved=(score >= shared["target"].index_select(0, index)).logical_and_(terminated),
        )

    def transition_kernel(self, device: torch.device) -> TransitionKernel:
        """The same in Triton."""
        from branchrt_gym.envs.deep_tree_triton import transition

        return TransitionKernel(transition, (self.width, self.depth))

    def initial_kernel(self, device: torch.device) -> InitialKernel:
        """The start in Triton."""
        from branchrt_gym.envs.deep_tree_triton import initial

        return InitialKernel(initial, (self.starts,))

    def observation_kernel(self, device: torch.device) -> ObservationKernel:
        """The observation in Triton."""
        from branchrt_gym.envs.deep_tree_triton import observation

        return ObservationKernel(
            observation, (self.width, self.depth, self.value_range, self.window)
        )

    def observation(self, shared: Mapping[str, Tensor], branches: Branches) -> Tensor:
        """Returns `[M, 2 + window] float32`: depth, score, and the context around, scaled."""
        position, score = branches.state["position"], branches.state["score"]
        count, device = position.shape[0], position.device
        context, scales = shared["context"].view(-1), self._scales_on(device)
        half = self.window // 2
        offsets = torch.arange(-half, half + 1, device=device)
        first = branches.context_index * self.width
        here, last = position + first, first + (self.width - 1)
        seen = torch.empty((count, 2 + self.window), dtype=torch.float32, device=device)
        block = ROWS if device.type == "cpu" else max(count, 1)
        for begin in range(0, count, block):
            rows = slice(begin, begin + block)
            around = here[rows, None] + offsets
            around.clamp_(first[rows, None], last[rows, None])
            part = seen[rows]
            part[:, 0] = branches.depth[rows]
            part[:, 1] = score[rows]
            part[:, 2:] = context.index_select(0, around.view(-1)).view(around.shape)
            part.div_(scales)
        return seen

    def render(
        self, shared: Mapping[str, np.ndarray], branch: Mapping[str, np.ndarray], mode: str
    ) -> np.ndarray | str:
        """Draws a branch as the oracle does."""
        paint = draw if mode == "rgb_array" else text
        return paint(
            shared["context"],
            int(branch["position"]),
            int(branch["score"]),
            int(branch["depth"]),
            depth_limit=self.depth,
            value_range=self.value_range,
            target=int(shared["target"]),
        )

    def _scales_on(self, device: torch.device) -> Tensor:
        """What an observation's entries are divided by; made once for a device."""
        if device not in self._scales:
            scales = [self.depth, self.value_range * self.depth, *[self.value_range] * self.window]
            self._scales[device] = torch.tensor(scales, dtype=torch.float32, device=device)
        return self._scales[device]

    def _scale(self, bits: Tensor) -> Tensor:
        """Scales 32 hashed bits, `int32`, to a position: `(bits * width) >> 32`."""
        wide = bits.to(torch.int64).bitwise_and_(LOW32)
        return wide.mul_(self.width).bitwise_right_shift_(32).to(torch.int32)

    def _child(self, position: Tensor, action: Tensor, depth: Tensor) -> Tensor:
        bits = position * 31
        bits.add_(action, alpha=0x9E3779B1 - 2**32).add_(depth, alpha=0x85EBCA6B - 2**32)
        return self._scale(mix32(bits))
