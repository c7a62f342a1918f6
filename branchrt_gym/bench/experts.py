"""What an expert writes for DeepTree without us, for speed: plain torch, one search in one graph.

The context is not carried from level to level: one row for each root is read where it is. All
levels have the same shape, since a root starts with places that no branch holds, far below every
score. Hashes are 64-bit words that stay below 2**32, so that no sign is in the way, and what action
and depth add to them is computed beforehand. A child is one integer of score, order and position;
the greatest of them are the survivors, whose position and score are read off again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Leaves", "Selection", "TorchExpert", "offsets"]

Leaves = tuple[Tensor, Tensor]
"""Positions and scores, `[R, K]`, best first; an empty place has a score far below the others."""

Selection = Literal["topk", "sort"]

LOW32 = 0xFFFFFFFF
NOWHERE = -(2**19)  # the score of an empty place
ORDER, SCORE = 31, 43  # where a child's order and score begin: 31 bits of position, 12 of order
POSITION = 2**ORDER - 1


def offsets(depth: int, fanout: int, device: torch.device) -> Tensor:
    """Returns what each action adds to a child's bits at each depth, `[D, F] int64`."""
    action = torch.arange(fanout, device=device) * 0x9E3779B1
    return (torch.arange(depth, device=device)[:, None] * 0x85EBCA6B + action) & LOW32


class TorchExpert:
    """Beam search over DeepTree; scores must stay below 2**18, `kept * fanout` at most 4,096.

    Args:
        context: `[R, W] int16`, one for each root.
        start: `[R] int32`, the roots' positions.
        depth: Levels.
        kept: Width of the beam.
        fanout: Actions.
        selection: Torch's `topk`, or the whole `sort`, which the compiler can fuse.
        compiled: Whether a level is compiled. The compiler fuses nothing across a selection that
            it does not within a level, so that more levels at a time would gain nothing.
    """

    def __init__(
        self,
        context: Tensor,
        start: Tensor,
        depth: int,
        kept: int,
        fanout: int,
        *,
        selection: Selection = "topk",
        compiled: bool = False,
    ) -> None:
        """Computes what does not change from search to search."""
        device = start.device
        self.context, self.start, self.kept, self.selection = context, start, kept, selection
        self.offsets = offsets(depth, fanout, device)
        order = (kept * fanout - 1 - torch.arange(kept * fanout, device=device)) << ORDER
        self.order = order.view(kept, fanout)
        # As wide as what a sort gives, so that the first level is compiled as the others are.
        self.place = torch.zeros(
            kept * (fanout if selection == "sort" else 1), device=device
        ).long()
        self.place[1:] = NOWHERE << SCORE
        self.level: Callable[..., Tensor] = level
        if compiled:
            # Compiled once for any number of roots, which are rows and change no index.
            torch._dynamo.maybe_mark_dynamic(context, 0)
            torch._dynamo.mark_static(context, 1)
            self.level = torch.compile(level, fullgraph=True)

    def run(self) -> Leaves:
        """Searches; no host synchronisation."""
        packed = (self.start[:, None] + self.place)[:, : self.kept]
        torch._dynamo.maybe_mark_dynamic(packed, 0)
        for offset in self.offsets.unbind():
            packed = self.level(self.context, packed, offset, self.order, self.selection)
        return (packed & POSITION).to(torch.int32), packed >> SCORE


def level(
    context: Tensor, packed: Tensor, offset: Tensor, order: Tensor, selection: Selection
) -> Tensor:
    """Takes `[R, K]` packed branches a level on."""
    width = context.shape[1]
    power = width & (width - 1) == 0
    position = packed & POSITION
    bits = torch.add(offset, position[:, :, None], alpha=31) & LOW32
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D & LOW32
    bits = (bits ^ (bits >> 15)) * 0x846CA68B & LOW32
    bits = bits ^ (bits >> 16)
    child = bits >> (33 - width.bit_length()) if power else bits * width >> 32
    reward = context.gather(1, child.flatten(1)).view_as(child)
    score = (packed >> SCORE)[:, :, None] + reward
    key = (torch.add(order, score, alpha=1 << SCORE) + child).flatten(1)
    if selection == "topk":
        return key.topk(packed.shape[1]).values
    return key.sort(1, descending=True).values[:, : packed.shape[1]]
