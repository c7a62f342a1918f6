"""What the demo draws is what the search recorded."""

import builtins

import numpy as np
import pytest

from branchrt_gym import Beam, DeepTree, search
from branchrt_gym.demo import best_ranks, choose_root, draw, read_tree
from branchrt_gym.errors import MissingExtraError


def found(roots=5, width=997, beam=6, fanout=3, depth=9):
    env = DeepTree(width=width, fanout=fanout, depth=depth)
    return search(env, roots, Beam(beam), depth)


def test_the_tree_is_the_searchs():
    result = found()
    trajectories = result.trajectories()
    for root in range(5):
        tree = read_tree(result, root)
        assert [len(parent) for parent in tree.parent] == [3, 6, 6, 6, 6, 6, 6, 6, 6]
        assert np.array_equal(tree.score[-1], result.population.score[root].numpy())
        path = [tree.score[level][rank] for level, rank in enumerate(tree.best)]
        assert np.array_equal(np.diff(path), trajectories.reward[root].numpy())
        for level, parent in enumerate(tree.parent, start=1):
            assert parent[tree.best[level]] == tree.best[level - 1]
            assert np.all(np.diff(tree.score[level]) <= 0)  # by rank
            ancestors = set(parent[tree.survives[level]])
            assert ancestors == set(np.flatnonzero(tree.survives[level - 1]))


def test_the_root_drawn_is_solved_where_one_is():
    result = found(roots=40, width=4096, beam=8, fanout=4, depth=20)
    assert result.solved.any() and not result.solved.all()
    root = choose_root(result)
    assert result.solved[root]
    behind = best_ranks(result)[:, :7].sum(1)
    assert behind[root] == behind[result.solved].max()


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 50, 20, 2, 3), (3, 200, 5, 4, 30)])
def test_any_size_is_drawn(sizes, tmp_path):
    pytest.importorskip("matplotlib", reason="a picture needs the extra `plot`")
    path = tmp_path / "new" / "tree.png"
    root = draw(found(*sizes), path)
    assert 0 <= root < sizes[0]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    imported = builtins.__import__

    def refuse(name, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"branchrt-gym\[plot\]"):
        draw(found(), tmp_path / "tree.png")
    assert not list(tmp_path.iterdir())
