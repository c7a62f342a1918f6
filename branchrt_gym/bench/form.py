"""What a form of a search is, and what its results are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from branchrt_gym.bench.batcher import GeneralBatcher
from branchrt_gym.bench.batcher_run import BatcherResult
from branchrt_gym.bench.deep_tree import Sizes
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.roots import Roots
from branchrt_gym.search_eager import Found

__all__ = ["Form", "NotRunError", "Setting", "batched", "captured", "leaves", "places"]


class NotRunError(Exception):
    """Why a form is not run here."""


class Setting(NamedTuple):
    """What is searched."""

    sizes: Sizes
    env: CheckedEnv
    roots: Roots

    @property
    def device(self) -> torch.device:
        """Where."""
        return self.roots.seed.device

    @property
    def tree(self) -> tuple[Tensor, Tensor, int, int, int]:
        """What code written for DeepTree takes: contexts, starts, depth, kept, fan-out."""
        shared, state, sizes = self.roots.shared, self.roots.state, self.sizes
        return shared["context"], state["position"], sizes.depth, sizes.beam, sizes.fanout


@dataclass(frozen=True)
class Form:
    """A search that is ready to run, as often as one likes.

    Attributes:
        run: Searches; what it returns is for `wait`.
        found: What the last run found, `[R, K, …]` by name.
        graph: Whether `run` only hands a CUDA graph to the device, whose time is then its own.
        wait: Waits for what the form's own streams do; None where torch's synchronisation will do.
        held: Bytes that it uses and that were there before.
        batcher: The batcher behind it. copied: Bytes of context that a run copies.
        peak: Bytes that it holds at most where torch does not know of them.
        note: What it had to do without, or None.
    """

    run: Callable[[], Any]
    found: Callable[[], Mapping[str, Tensor]]
    graph: bool = False
    wait: Callable[[Any], None] | None = None
    held: int = 0
    batcher: GeneralBatcher | None = None
    copied: int = 0
    peak: Callable[[], int | None] | None = None
    note: str | None = None


def places(found: Found, count: int) -> dict[str, Tensor]:
    """Names what a search holds and how each of its levels was chosen, `[R, K, …]`."""
    population, choices, _ = found
    sides = {
        "score": population.score,
        "branch_id": population.branch_id,
        "depth": population.depth,
        "terminated": population.terminated,
        "truncated": population.truncated,
        "solved": population.solved,
    }
    sides |= {
        name: rows.view(count, -1, *rows.shape[1:]) for name, rows in population.state.items()
    }
    return sides | {f"choice of level {level}": rows for level, rows in enumerate(choices)}


def leaves(found: tuple[Tensor, Tensor], sizes: Sizes) -> dict[str, Tensor]:
    """The same of code written for DeepTree: positions and scores, places without a branch cut."""
    kept = 1
    for _ in range(sizes.depth):
        kept = min(sizes.beam, kept * sizes.fanout)
    position, score = (rows[:, :kept] for rows in found)
    return {"position": position, "score": score.to(torch.int64)}


def batched(found: BatcherResult, count: int) -> dict[str, Tensor]:
    """The same of a batcher."""
    state = {name: rows.view(count, -1) for name, rows in found.state.items()}
    flags = {"terminated": found.terminated, "truncated": found.truncated, "solved": found.solved}
    return {"score": found.score, **flags, **state}


def captured(call: Callable[[], Any], device: torch.device) -> tuple[Callable[[], Any], Any]:
    """Captures a call in a graph; returns what replays it and what it gave.

    On the CPU, where tests compare results, the call runs as it is.
    """
    if device.type == "cpu":
        return call, call()
    with torch.cuda.device(device), torch.inference_mode():
        call()  # compiles what is compiled late
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, capture_error_mode="thread_local"
        ):  # JAX has threads of its own
            result = call()
        graph.replay()
    return graph.replay, result
