"""What an expert writes for DeepTree in plain JAX: `jit`, `lax.scan`, the context hoisted."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

from branchrt_gym.bench.experts import Leaves, offsets

__all__ = ["UNROLL", "JaxExpert", "unavailable"]

NOWHERE = -(2**29)  # the score of an empty place
UNROLL = 8  # levels of the scan's body; on an H200 faster than 1 and than 32


@cache
def _jax() -> Any:
    # JAX would take most of the device's memory for itself when it starts.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return import_module("jax")


def unavailable(device: torch.device, width: int) -> str | None:
    """Says why it cannot run, or returns None."""
    if width & (width - 1):
        return f"it is written for widths that are powers of two, which {width} is not"
    platform = "cpu" if device.type == "cpu" else "gpu"
    try:
        if not _jax().devices(platform):
            return f"JAX sees no {platform}"
    except ImportError:
        return "JAX is not installed"
    except RuntimeError as error:
        return f"JAX sees no {platform} ({str(error).splitlines()[0]})"
    return None


class JaxExpert:
    """Beam search over DeepTree; the arguments are those of `TorchExpert`."""

    def __init__(
        self,
        context: Tensor,
        start: Tensor,
        depth: int,
        kept: int,
        fanout: int,
        *,
        unroll: int = UNROLL,
    ) -> None:
        """Lends the tensors to JAX, without a copy."""
        if start.is_cuda:
            torch.cuda.synchronize(start.device)
        numpy = offsets(depth, fanout, torch.device("cpu")).numpy().astype(np.uint32)
        lend = _jax().dlpack.from_dlpack
        self.context, self.start = lend(context), lend(start)
        self.offsets = _jax().device_put(numpy, self.start.device)
        self._search = _search(kept, unroll)

    def run(self) -> Any:
        """Searches; returns JAX's arrays, not waited for."""
        return self._search(self.context, self.start, self.offsets)

    @staticmethod
    def wait(leaves: Any) -> None:
        """Waits for what `run` returned."""
        _jax().block_until_ready(leaves)

    def found(self) -> Leaves:
        """Searches, and returns the leaves as torch's."""
        leaves = self.run()
        self.wait(leaves)
        position, score = (torch.utils.dlpack.from_dlpack(array).clone() for array in leaves)
        return position, score

    def peak(self) -> int | None:
        """The most bytes that JAX has held so far; what it was lent is not counted."""
        statistics = self.start.device.memory_stats() or {}
        return statistics.get("peak_bytes_in_use")


@cache
def _search(kept: int, unroll: int) -> Callable[..., Any]:
    jax = _jax()
    jnp, lax = jax.numpy, jax.lax

    def search(context: Any, start: Any, offsets: Any) -> Any:
        shift = 33 - context.shape[1].bit_length()

        def level(carry: Any, offset: Any) -> Any:
            position, score = carry
            bits = position[:, :, None] * np.uint32(31) + offset
            bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
            bits = (bits ^ (bits >> 15)) * np.uint32(0x846CA68B)
            bits = bits ^ (bits >> 16)
            child = (bits >> shift).reshape(len(start), -1)
            reward = jnp.take_along_axis(
                context, child.astype(jnp.int32), 1, mode="promise_in_bounds"
            )
            score = jnp.repeat(score, offset.shape[0], 1) + reward
            best, place = lax.top_k(score, kept)  # of equals the first comes first
            position = jnp.take_along_axis(child, place, 1, mode="promise_in_bounds")
            return (position, best), None

        position = jnp.broadcast_to(start[:, None].astype(jnp.uint32), (len(start), kept))
        score = jnp.full((len(start), kept), NOWHERE, jnp.int32).at[:, 0].set(0)
        (position, score), _ = lax.scan(level, (position, score), offsets, unroll=unroll)
        return position.astype(jnp.int32), score

    return jax.jit(search)  # type: ignore[no-any-return]
