"""`branchrt/Edit-v0`: large documents of which each branch edits a few spans.

The rules are stated in full by `EditOracle`, the scalar form; this is the batched one, and the
first to read about `paged` state: a branch's text is read through its pages, and an edit is one run
of bytes written to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

from branchrt_gym.contract import (
    BranchEnv,
    Branches,
    Contract,
    Transition,
    branch,
    paged,
    read_shared,
)
from branchrt_gym.contract import shared as shared_field
from branchrt_gym.envs.edit_render import diff, draw
from branchrt_gym.kernels import bounded, fold, mix32

__all__ = ["Edit"]

LOW32, LOW16 = 0xFFFFFFFF, 0xFFFF
INT31 = 2**31 - 1
FIRST, LETTERS = 32, 95  # the printable ASCII bytes
CHUNK = 1 << 14  # bytes hashed at a time, so that the intermediates stay in cache


class Edit(BranchEnv):
    """The batched rules of Edit; see `EditOracle` for the rules themselves.

    State: of each context, `document` and `target [C, width] uint8`, `position` and
    `length [C, spans] int32` and `proposals [C, spans, choices, span] uint8` are shared. A branch
    has its `cursor`, `distance` and `score` (int32), and its `text`, `width` bytes in pages that it
    shares with its relatives and, where none of them wrote, with the document.

    Args:
        width: Bytes of a document.
        spans: Spans in which a target differs.
        span: Most bytes of a span; `spans` of them must fit.
        choices: Proposals for each span.
        depth: Steps of an episode.
        window: Bytes that an observation shows, of the text and of the target.
        page_size: Bytes of a page; None for the runtime's choice.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}
    reward_dtype = torch.int32
    uses_key = False

    def __init__(
        self,
        width: int = 262_144,
        spans: int = 16,
        span: int = 64,
        choices: int = 4,
        depth: int = 32,
        window: int = 64,
        page_size: int | None = None,
    ) -> None:
        """Declares the contract and the spaces; see the class for the arguments."""
        ranges = {
            "width": (width, INT31),
            "spans": (spans, width),
            "span": (span, width // max(spans, 1)),
            "choices": (choices, INT31 // max(spans, 1)),
            "depth": (depth, INT31),
            "window": (window, width),
            "page_size": (1 if page_size is None else page_size, INT31),
        }
        for name, (value, most) in ranges.items():
            if not 1 <= value <= most:
                raise ValueError(f"`{name}` is {value}; expected 1 … {most}")
        self.width = width
        self.spans = spans
        self.span = span
        self.choices = choices
        self.depth = depth
        self.window = window
        self.contract = Contract(
            {
                "document": shared_field((width,), torch.uint8),
                "target": shared_field((width,), torch.uint8),
                "position": shared_field((spans,), torch.int32),
                "length": shared_field((spans,), torch.int32),
                "proposals": shared_field((spans, choices, span), torch.uint8),
                "cursor": branch((), torch.int32),
                "distance": branch((), torch.int32),
                "score": branch((), torch.int32),
                "text": paged((width,), torch.uint8, initial="document", page_size=page_size),
            }
        )
        self.single_observation_space = gym_spaces.Dict(
            cursor=gym_spaces.Box(0, width - 1, (1,), np.int32),
            depth=gym_spaces.Box(0, depth, (1,), np.int32),
            distance=gym_spaces.Box(0, width, (1,), np.int32),
            target=gym_spaces.Box(0, 255, (window,), np.uint8),
            text=gym_spaces.Box(0, 255, (window,), np.uint8),
        )
        self.single_action_space = gym_spaces.Discrete(spans * choices)

    def initial_shared(self, keys: Tensor) -> dict[str, Tensor]:
        """Hashes the documents, places the spans, and makes targets and proposals."""
        count, device = keys.shape[0], keys.device
        document = torch.empty((count, self.width), dtype=torch.uint8, device=device)
        for row in range(count):
            for begin in range(0, self.width, CHUNK):
                end = min(begin + CHUNK, self.width)
                place = torch.arange(begin, end, dtype=torch.int32, device=device)
                letter = _upper(_hash(keys[row], place)).mul_(LETTERS).bitwise_right_shift_(16)
                document[row, begin:end] = letter.add_(FIRST)

        number = torch.arange(self.spans, device=device)
        word, stride = number * 4, self.width // self.spans
        spans = keys[:, None]
        length = 1 + bounded(fold(spans, word), self.span)
        position = number * stride + _below(fold(spans, word + 1), stride + 1 - length)
        right = bounded(fold(spans, word + 2), self.choices)
        own = fold(spans, word + 3)

        offset = torch.arange(self.span, dtype=torch.int32, device=device)
        inside = offset < length[..., None]
        place = (position[..., None] + offset).clamp_(max=self.width - 1)
        here = document.gather(1, place.view(count, -1)).view(place.shape)
        goal = _shifted(here, _upper(_hash(fold(own, self.choices)[..., None], offset)))
        target = document.clone()
        rows = torch.arange(count, device=device)[:, None, None].expand_as(place)
        target[rows[inside], place[inside]] = goal[inside]

        choice = torch.arange(self.choices, device=device)
        key = fold(own[..., None], choice)
        error = (choice - right[..., None]).remainder(self.choices)[..., None]
        bits = _hash(key[..., None], offset)
        wrong = (bits.bitwise_and(LOW16).to(torch.int64) * self.choices >> 16) < error
        never = _below(fold(key, 0), length[..., None])[..., None]  # a place that is never right
        wrong |= (offset == never) & (error > 0)
        goal = goal[:, :, None].expand(wrong.shape)
        proposals = torch.where(wrong, _shifted(goal, _upper(bits)), goal)
        return {
            "document": document,
            "target": target,
            "position": position.to(torch.int32),
            "length": length.to(torch.int32),
            "proposals": proposals.mul_(inside[:, :, None]),
        }

    def initial(
        self, shared: Mapping[str, Tensor], context_index: Tensor, keys: Tensor
    ) -> dict[str, Tensor]:
        """Starts far from the target, with a cursor drawn by the episode's key."""
        # A target differs from its document in every byte of its spans.
        distance = shared["length"].sum(1, dtype=torch.int32).index_select(0, context_index)
        return {
            "cursor": bounded(fold(keys, 0), self.width).to(torch.int32),
            "distance": distance,
            "score": torch.zeros_like(distance),
        }

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        """Puts a proposal into its span, and counts what that mends and spoils."""
        index, text, action = branches.context_index, branches.pages["text"], action.to(torch.int64)
        span = action.div(self.choices, rounding_mode="floor")
        cursor = read_shared(shared["position"], index, span)
        length = read_shared(shared["length"], index, span)
        offset = torch.arange(self.span, device=action.device)
        place = (cursor[:, None] + offset).clamp_(max=self.width - 1)
        target = read_shared(shared["target"], index, place)
        proposals = shared["proposals"].view(shared["proposals"].shape[0], -1)
        new = read_shared(proposals, index, action[:, None] * self.span + offset)
        mended = (new == target).to(torch.int32) - (text.read(place) == target).to(torch.int32)
        reward = mended.mul_(offset < length[:, None]).sum(1, dtype=torch.int32)
        distance = branches.state["distance"] - reward
        solved = distance == 0
        return Transition(
            state={
                "cursor": cursor,
                "distance": distance,
                "score": branches.state["score"] + reward,
            },
            reward=reward,
            terminated=solved,
            truncated=(branches.depth >= self.depth - 1).logical_and_(~solved),
            solved=solved,
            pages={"text": text.write(cursor, new, length)},
        )

    def observation(self, shared: Mapping[str, Tensor], branches: Branches) -> dict[str, Tensor]:
        """Returns cursor, depth and distance, `[M, 1]`, and both windows, `[M, window]`."""
        cursor = branches.state["cursor"][:, None]
        first = (cursor - self.window // 2).clamp_(0, self.width - self.window)
        place = first + torch.arange(self.window, device=cursor.device)
        return {
            "cursor": cursor,
            "depth": branches.depth[:, None],
            "distance": branches.state["distance"][:, None],
            "target": read_shared(shared["target"], branches.context_index, place),
            "text": branches.pages["text"].read(place),
        }

    def render(
        self, shared: Mapping[str, np.ndarray], branch: Mapping[str, np.ndarray], mode: str
    ) -> np.ndarray | str:
        """Draws a branch as the oracle does."""
        paint = draw if mode == "rgb_array" else diff
        return paint(
            branch["text"],
            shared["target"],
            shared["position"].tolist(),
            shared["length"].tolist(),
            cursor=int(branch["cursor"]),
            score=int(branch["score"]),
            distance=int(branch["distance"]),
            depth=int(branch["depth"]),
            depth_limit=self.depth,
        )


def _hash(key: Tensor, place: Tensor) -> Tensor:
    """Returns 32 bits, `int32`, for each place and 64-bit key."""
    low, high = key.to(torch.int32), (key >> 32).to(torch.int32)
    return mix32(mix32(place + low).add_(high))


def _upper(bits: Tensor) -> Tensor:
    """Returns the upper half of 32 bits, in `0 … 65535`."""
    return bits.bitwise_right_shift(16).bitwise_and_(LOW16)


def _below(bits: Tensor, most: Tensor) -> Tensor:
    """Is `bounded` with a bound for each."""
    return ((bits >> 32) & LOW32).mul(most).bitwise_right_shift_(32)


def _shifted(letters: Tensor, by: Tensor) -> Tensor:
    """Returns other printable bytes, by sixteen random bits each."""
    shift = (by * (LETTERS - 1)).bitwise_right_shift_(16).add_(1 - FIRST)
    return shift.add_(letters).remainder_(LETTERS).add_(FIRST).to(torch.uint8)
