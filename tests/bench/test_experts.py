"""What experts write finds what the search finds."""

import pytest
import torch

from branchrt_gym import Beam, DeepTree, make_roots, search
from branchrt_gym.bench.experts import TorchExpert
from branchrt_gym.bench.experts_jax import JaxExpert, unavailable
from branchrt_gym.bench.rows_triton import take_rows

SIZES = [(3, 256, 8, 4, 9), (1, 64, 1, 1, 3), (5, 4096, 20, 2, 3), (2, 1024, 7, 3, 12)]


def start(roots, width, beam, fanout, depth):
    env = DeepTree(width=width, fanout=fanout, depth=depth)
    starts = make_roots(env, range(7, 7 + roots))
    population = search(env, starts, Beam(beam), depth, stop_solved=False).population
    tree = (starts.shared["context"], starts.state["position"], depth, beam, fanout)
    return tree, population.score, population.state["position"].view_as(population.score)


def same(leaves, score, position):
    kept = score.shape[1]
    assert torch.equal(leaves[0][:, :kept], position)
    assert torch.equal(leaves[1][:, :kept].to(torch.int64), score)
    assert bool((leaves[1][:, kept:] < score.min()).all())


@pytest.mark.parametrize("selection", ["topk", "sort"])
@pytest.mark.parametrize("sizes", [*SIZES, (2, 997, 5, 3, 6)])
def test_torch(sizes, selection):
    tree, score, position = start(*sizes)
    expert = TorchExpert(*tree, selection=selection)
    for _ in range(2):
        same(expert.run(), score, position)


def test_a_level_is_compiled_once_for_any_number_of_roots(monkeypatch):
    real, graphs = torch.compile, []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", lambda call, **how: real(call, backend=backend, **how))
    torch._dynamo.reset()
    for selection, count in (("topk", 1), ("sort", 2)):
        for roots in (3, 5, 16):
            tree, score, position = start(roots, 128, 8, 4, 5)
            same(TorchExpert(*tree, selection=selection, compiled=True).run(), score, position)
            assert len(graphs) == count
    torch._dynamo.reset()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("unroll", [1, 8])
def test_jax(sizes, unroll):
    pytest.importorskip("jax", reason="JAX is not installed")
    tree, score, position = start(*sizes)
    assert unavailable(tree[0].device, sizes[1]) is None
    same(JaxExpert(*tree, unroll=unroll).found(), score, position)


def test_jax_says_why_it_cannot_run():
    assert "powers of two" in unavailable(torch.device("cpu"), 1000)


@pytest.mark.parametrize(("rows", "words"), [(0, 5), (3, 1), (7, 2048), (5, 5000)])
def test_rows_are_taken(rows, words):
    chance = torch.Generator().manual_seed(rows)
    source = torch.randint(-(2**40), 2**40, (9, words), generator=chance)
    index = torch.randint(9, (rows,), generator=chance)
    target = torch.full((rows, words), -7)
    take_rows(source, index, target)
    assert torch.equal(target, source[index])
