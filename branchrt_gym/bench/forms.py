"""The forms of one and the same search of DeepTree that `branchrt bench deep-tree` compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from branchrt_gym.bench.batcher import GeneralBatcher
from branchrt_gym.bench.experts import Selection, TorchExpert
from branchrt_gym.bench.form import (
    Form,
    NotRunError,
    Setting,
    batched,
    captured,
    leaves,
    places,
)
from branchrt_gym.kernels.dispatch import has_triton
from branchrt_gym.search_eager import Found, beam
from branchrt_gym.seeding import Rng

__all__ = ["EXPERTS", "FORMS", "LABELS", "RNG", "STOP_SOLVED"]

RNG: Rng = "split"
STOP_SOLVED = False
DENSE_SECONDS = 0.15  # what one run of the dense path may take

Make = Callable[[Setting, Mapping[str, Form]], Form]


def _make_batcher(at: Setting, made: Mapping[str, Form]) -> Form:
    """The general batcher, called from Python."""
    depth = at.sizes.depth
    batcher = GeneralBatcher(at.env, at.roots, at.sizes.beam, depth, surely_open=depth)
    if batcher.shortened:
        raise NotRunError(batcher.shortened)
    last = batcher.run()

    def run() -> None:
        nonlocal last
        last = batcher.run()

    return Form(run, lambda: batched(last, len(at.roots)), batcher=batcher, copied=last.copied)


def _make_batcher_graph(at: Setting, made: Mapping[str, Form]) -> Form:
    """The same in a CUDA graph, over the same buffers."""
    if "batcher" not in made or made["batcher"].batcher is None:
        raise NotRunError("the batcher is not run")
    batcher = made["batcher"].batcher
    replay, last = captured(batcher.run, at.device)
    return Form(
        replay,
        lambda: batched(last, len(at.roots)),
        graph=True,
        held=batcher.buffer_bytes,
        batcher=batcher,
        copied=last.copied,
    )


def _make_dense(at: Setting, made: Mapping[str, Form]) -> Form:
    """The batcher whose children own rows too, in a CUDA graph."""
    depth = at.sizes.depth
    batcher = GeneralBatcher(
        at.env,
        at.roots,
        at.sizes.beam,
        depth,
        surely_open=depth,
        children=True,
        seconds=DENSE_SECONDS,
    )
    if batcher.shortened:
        raise NotRunError(batcher.shortened)
    replay, last = captured(batcher.run, at.device)
    return Form(
        replay,
        lambda: batched(last, len(at.roots)),
        graph=True,
        batcher=batcher,
        copied=last.copied,
    )


def _make_eager(at: Setting, made: Mapping[str, Form]) -> Form:
    """Our eager tier."""
    last: Found | None = None

    def run() -> None:
        nonlocal last
        with torch.inference_mode():
            last = beam(at.env, at.roots, at.sizes.beam, at.sizes.depth, RNG, STOP_SOLVED)

    run()

    def found() -> dict[str, Tensor]:
        assert last is not None
        return places(last, len(at.roots))

    return Form(run, found)


def _make_captured(at: Setting, made: Mapping[str, Form]) -> Form:
    """Our captured tier, which replays a graph itself."""
    _expect_triton()
    from branchrt_gym.search_captured import CapturedBeam

    sizes = at.sizes
    plan = CapturedBeam(at.env, at.roots, sizes.beam, sizes.depth, RNG, STOP_SOLVED)
    plan.run()
    return Form(plan.run, lambda: places(plan.found(), len(at.roots)), graph=True, note=plan.note)


def _make_fused(at: Setting, made: Mapping[str, Form]) -> Form:
    """Our fused tier, in a CUDA graph."""
    _expect_triton()
    from branchrt_gym.search_fused import FusedBeam

    sizes = at.sizes
    plan = FusedBeam(at.env, at.roots, sizes.beam, sizes.depth, RNG, STOP_SOLVED)
    replay, _ = captured(plan.run, at.device)
    return Form(replay, lambda: places(plan.found(), len(at.roots)), graph=True)


def _make_floor(at: Setting, made: Mapping[str, Form]) -> Form:
    """The kernel written by hand."""
    _expect_triton()
    from branchrt_gym.bench.deep_tree_triton import floor

    context, start, depth, kept, fanout = at.tree
    if kept * fanout != 32:
        raise NotRunError(f"it is written for 32 children of a root, not {kept * fanout}")
    index = at.roots.context_index
    replay, last = captured(lambda: floor(context, index, start, depth, kept, fanout), at.device)
    return Form(replay, lambda: leaves(last, at.sizes), graph=True)


def _make_chase(at: Setting, made: Mapping[str, Form]) -> Form:
    """As many dependent reads as there are levels; it finds nothing."""
    _expect_triton()
    from branchrt_gym.bench.deep_tree_triton import chase

    context, start, depth, *_ = at.tree
    index = at.roots.context_index
    replay, _ = captured(lambda: chase(context, index, start, depth), at.device)
    return Form(replay, dict, graph=True)


def _make_torch(at: Setting, selection: Selection = "topk", compiled: bool = False) -> Form:
    expert = TorchExpert(*at.tree, selection=selection, compiled=compiled)
    replay, last = captured(expert.run, at.device)
    return Form(replay, lambda: leaves(last, at.sizes), graph=True)


def _make_jax(at: Setting, made: Mapping[str, Form]) -> Form:
    """JAX; it is called, not replayed, and its own streams are waited for."""
    from branchrt_gym.bench.experts_jax import JaxExpert, unavailable

    reason = unavailable(at.device, at.sizes.width)
    if reason is not None:
        raise NotRunError(reason)
    expert = JaxExpert(*at.tree)
    expert.found()
    return Form(
        expert.run,
        lambda: leaves(expert.found(), at.sizes),
        wait=expert.wait,
        peak=expert.peak,
    )


def _expect_triton() -> None:
    if not has_triton():
        raise NotRunError("Triton is not installed")


FORMS: dict[str, Make] = {
    "batcher": _make_batcher,
    "batcher_graph": _make_batcher_graph,
    "dense": _make_dense,
    "eager": _make_eager,
    "captured": _make_captured,
    "fused": _make_fused,
    "floor": _make_floor,
    "chase": _make_chase,
    "torch": lambda at, made: _make_torch(at),
    "torch_compiled": lambda at, made: _make_torch(at, compiled=True),
    "torch_sorting": lambda at, made: _make_torch(at, "sort", compiled=True),
    "jax": _make_jax,
}
"""How each is made, in the order in which they are; later ones may use earlier ones."""

LABELS = {
    "batcher": "general batcher",
    "batcher_graph": "general batcher, graph",
    "dense": "batcher of children too, graph",
    "eager": "search, eager",
    "captured": "search, captured",
    "fused": "search, fused, graph",
    "floor": "kernel written by hand, graph",
    "chase": "dependent reads alone, graph",
    "torch": "expert's torch, graph",
    "torch_compiled": "expert's torch, compiled, graph",
    "torch_sorting": "expert's torch, sorting, compiled, graph",
    "jax": "expert's JAX",
}

EXPERTS = ("torch", "torch_compiled", "torch_sorting", "jax")
