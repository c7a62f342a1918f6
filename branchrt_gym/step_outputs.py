"""What a fused step writes, as the tensors that `BranchingVectorEnv.step` returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from branchrt_gym.structure import map_leaves

if TYPE_CHECKING:
    from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["StepOutputs", "leaves"]

ALIGNED = 16  # bytes, so that a kernel may write as many at once


def leaves(tree: Any) -> list[Tensor]:
    """Returns the leaves of a tree in its order."""
    found: list[Tensor] = []
    map_leaves(found.append, tree)
    return found


class StepOutputs:
    """The outputs of every slot, allocated once.

    Attributes:
        leaves: An observation's, each `[N, …]`.
        reward: `[N]`.
        flags: The six `[N] bool` of every step: `terminated`, `truncated`, and of the infos
            `live`, `_live`, `solved`, `_solved`.
        ends: In SAME_STEP mode, `_final_obs` and `final_info`'s `solved`; else empty.
        final_leaves: In SAME_STEP mode, those of `final_obs`; else empty.
    """

    def __init__(self, envs: BranchingVectorEnv, rest: Any) -> None:
        """Allocates them for observations like `rest`, each a slot's."""
        count = (envs.num_envs,)
        seen = [((*count, *leaf.shape), leaf.dtype) for leaf in leaves(rest)]
        flag = (count, torch.bool)
        wanted = [*seen, (count, envs.env.reward_dtype), *[flag] * 6]
        if envs.autoreset_mode == AutoresetMode.SAME_STEP:
            wanted += [*[flag] * 2, *seen]
        self._rest, self._seen = rest, len(seen)
        self._buffers = _Buffers(wanted, envs.device)
        self.leaves, self.reward, self.flags, self.ends, self.final_leaves = self._parts(
            self._buffers.tensors
        )

    def result(self, copied: bool) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Returns what `step` does, in these tensors or in copies of all of them."""
        tensors = self._buffers.copies() if copied else self._buffers.tensors
        seen, reward, flags, ends, final = self._parts(tensors)
        terminated, truncated, live, every, solved, stepped = flags
        info: dict[str, Any] = {
            "live": live,
            "_live": every,
            "solved": solved,
            "_solved": stepped,
        }
        if ends:
            ended, final_solved = ends
            info["final_obs"] = self._tree(final)
            info["_final_obs"] = ended
            info["final_info"] = {"solved": final_solved, "_solved": ended}
            info["_final_info"] = ended
        return self._tree(seen), reward, terminated, truncated, info

    def _parts(
        self, tensors: list[Tensor]
    ) -> tuple[list[Tensor], Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        first = self._seen
        return (
            tensors[:first],
            tensors[first],
            tensors[first + 1 : first + 7],
            tensors[first + 7 : first + 9],
            tensors[first + 9 :],
        )

    def _tree(self, parts: Sequence[Tensor]) -> Any:
        if isinstance(self._rest, Tensor):
            return parts[0]
        given = iter(parts)
        return map_leaves(lambda rest: next(given), self._rest)


class _Buffers:
    """Tensors in one allocation, dtype by dtype, so that copying them is a few calls."""

    def __init__(
        self, wanted: Sequence[tuple[tuple[int, ...], torch.dtype]], device: torch.device
    ) -> None:
        self._shapes = [shape for shape, _ in wanted]
        self._kinds: list[tuple[torch.dtype, list[int], list[int]]] = []
        self._sizes = []
        for dtype in dict.fromkeys(dtype for _, dtype in wanted):
            places = [i for i, (_, kind) in enumerate(wanted) if kind == dtype]
            step = ALIGNED // dtype.itemsize
            sizes = [-(-math.prod(self._shapes[i]) // step) * step for i in places]
            self._kinds.append((dtype, places, sizes))
            self._sizes.append(sum(sizes) * dtype.itemsize)
        self._bytes = torch.zeros(sum(self._sizes), dtype=torch.uint8, device=device)
        self.tensors = self._views(self._bytes)

    def copies(self) -> list[Tensor]:
        """Returns copies of all tensors."""
        return self._views(self._bytes.clone())

    def _views(self, held: Tensor) -> list[Tensor]:
        tensors = [held] * len(self._shapes)
        for part, (dtype, places, sizes) in zip(
            _split(held, self._sizes), self._kinds, strict=True
        ):
            for place, values in zip(places, _split(part.view(dtype), sizes), strict=True):
                shape = self._shapes[place]
                size = math.prod(shape)
                if values.shape[0] != size:
                    values = values[:size]
                tensors[place] = values if len(shape) == 1 else values.view(shape)
        return tensors


def _split(values: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    return tuple(torch.split_with_sizes(values, sizes))
