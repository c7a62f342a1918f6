"""The general batcher finds what the search finds, and a difference is seen."""

from dataclasses import replace

import pytest
import torch

from branchrt_gym import Beam, DeepTree, make_roots, search
from branchrt_gym.bench.batcher import GeneralBatcher
from branchrt_gym.bench.mismatches import compare


@pytest.mark.parametrize(
    ("roots", "width", "beam", "fanout", "depth", "levels"),
    [
        (1, 97, 1, 1, 4, 4),
        (1, 1, 3, 2, 5, 5),
        (3, 997, 5, 3, 7, 7),
        (4, 256, 8, 4, 6, 9),  # past the episodes' end
        (2, 4096, 7, 1, 9, 3),
        (5, 101, 64, 2, 4, 4),
    ],
)
def test_the_batcher_finds_the_same_leaves(roots, width, beam, fanout, depth, levels):
    env = DeepTree(width=width, fanout=fanout, depth=depth)
    starts = make_roots(env, roots)
    batcher = GeneralBatcher(env, starts, beam, levels)
    found = batcher.run()
    result = search(env, starts, Beam(beam), levels, stop_solved=False)
    same = compare(found, result)
    assert same.count == 0 and same.first is None
    assert same.compared >= 5 * roots
    again = compare(batcher.run(), result)
    assert again == same  # its buffers are used again


def test_a_difference_is_counted_and_named():
    env = DeepTree(width=97, depth=4)
    starts = make_roots(env, 2)
    found = GeneralBatcher(env, starts, 4, 4).run()
    result = search(env, starts, Beam(4), 4, stop_solved=False)
    score = found.score.clone()
    score[1, 2] += 1
    found = replace(found, score=score)
    wrong = compare(found, result)
    assert wrong.count == 1 and "`score` of root 1, rank 2" in wrong.first


def test_a_batcher_without_room_takes_fewer_levels_and_says_so():
    env = DeepTree(width=4096, depth=8)
    starts = make_roots(env, 4)
    full = GeneralBatcher(env, starts, 16, 8)
    small = GeneralBatcher(env, starts, 16, 8, free_bytes=full.buffer_bytes // 3)
    assert small.levels < 8 and small.shortened
    found = small.run()
    assert found.levels == small.levels
    assert compare(found, search(env, starts, Beam(16), small.levels, stop_solved=False)).count == 0


def test_every_branch_owns_its_context():
    env = DeepTree(width=512, depth=6)
    batcher = GeneralBatcher(env, make_roots(env, 3), 4, 6)
    batcher.run()
    rows = batcher.buffers[0]["context"]
    assert rows.shape == (3 * 4, 512)
    contexts = torch.unique(rows, dim=0)
    assert contexts.shape[0] == 3
