"""The batcher on rules with chance, early ends and fields of odd shapes; and its limits."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from branchrt_gym import Beam, BranchEnv, Contract, Transition, branch, make_roots, search, shared
from branchrt_gym.bench.batcher import GeneralBatcher
from branchrt_gym.bench.deep_tree import Sizes, compare_deep_tree
from branchrt_gym.bench.mismatches import compare
from branchrt_gym.bench.report import deep_tree_table, notes
from branchrt_gym.kernels import bounded, fold


class Dice(BranchEnv):
    """Throws a die of the context's faces; a throw of the context's last face ends the branch."""

    reward_dtype = torch.int32

    def __init__(self):
        self.contract = Contract(
            {
                "faces": shared((5,), torch.int8),
                "last": shared((), torch.int32),
                "bonus": shared((2,), torch.int64, per_context=False),
                "thrown": branch((2,), torch.int16),
                "score": branch((), torch.int64),
            }
        )
        self.single_observation_space = spaces.Box(-1000, 1000, (2,), np.int16)
        self.single_action_space = spaces.Discrete(3, start=-1)

    def initial_shared(self, keys):
        faces = torch.stack([bounded(fold(keys, i), 9) - 4 for i in range(5)], dim=1)
        last = bounded(fold(keys, 5), 5).to(torch.int32)
        return {"faces": faces.to(torch.int8), "last": last, "bonus": torch.tensor([3, -2])}

    def initial(self, shared, context_index, keys):
        thrown = torch.zeros(len(keys), 2, dtype=torch.int16)
        return {"thrown": thrown, "score": torch.zeros(len(keys), dtype=torch.int64)}

    def transition(self, shared, branches, action):
        index = branches.context_index
        side = bounded(fold(branches.key, 0), 5)
        reward = shared["faces"][index, side].to(torch.int32) * (action.to(torch.int32) + 2)
        reward = reward + shared["bonus"][side % 2].to(torch.int32)
        ended = side == shared["last"][index]
        thrown = torch.stack([side.to(torch.int16), branches.state["thrown"][:, 0]], dim=1)
        state = {"thrown": thrown, "score": branches.state["score"] + reward}
        truncated = ~ended & (branches.depth >= 6)
        return Transition(state, reward, ended, truncated, ended & (reward > 0))

    def observation(self, shared, branches):
        return branches.state["thrown"]


@pytest.mark.parametrize("rng", ["split", "shared"])
@pytest.mark.parametrize("contexts", [1, 4, 7])
@pytest.mark.parametrize(("beam", "levels"), [(1, 5), (5, 9), (11, 4), (40, 3)])
def test_chance_and_early_ends(rng, contexts, beam, levels):
    env = Dice()
    starts = make_roots(env, list(range(10, 17)), num_contexts=contexts)
    batcher = GeneralBatcher(env, starts, beam, levels, rng=rng)
    result = search(env, starts, Beam(beam), levels, rng=rng, stop_solved=False)
    found = batcher.run()
    same = compare(found, result)
    assert (same.count, same.first, found.levels) == (0, None, result.levels)
    assert levels < 9 or bool(found.terminated.any())


@pytest.mark.parametrize("method", ["torch index_select", "numpy take, threads"])
def test_both_copies_give_the_same(method):
    env = Dice()
    starts = make_roots(env, 5)
    batcher = GeneralBatcher(env, starts, 7, 6)
    batcher.copy_method = method
    assert compare(batcher.run(), search(env, starts, Beam(7), 6, stop_solved=False)).count == 0


def test_without_time_it_runs_one_level_and_says_so():
    env = Dice()
    batcher = GeneralBatcher(env, make_roots(env, 3), 6, 9, seconds=0.0)
    assert batcher.levels == 1 and "of 9 levels" in batcher.shortened
    assert batcher.run().levels == 1


def test_without_memory_the_search_is_timed_alone():
    comparison = compare_deep_tree(Sizes(3, 101, 4, 3, 5), repetitions=1, free_bytes=10)
    assert comparison.mismatches is None and comparison.ratio is None
    assert comparison.whole_seconds is not None
    assert "0 of 5 levels" in notes(comparison)[0]
    assert deep_tree_table(comparison).row_count


@pytest.mark.parametrize("free_bytes", [None, 2600])
def test_the_comparison_at_any_size(free_bytes):
    comparison = compare_deep_tree(Sizes(3, 101, 4, 3, 5), repetitions=2, free_bytes=free_bytes)
    assert comparison.equal and comparison.ratio is not None
    row = comparison.row()
    assert row["mismatches"] == 0 and row["compared"] > 0
    assert (row["shortened"] is None) == (comparison.levels == 5) == (free_bytes is None)
    assert (row["whole_search_seconds"] is None) == (free_bytes is None)


def test_no_time_is_given_where_results_differ(monkeypatch):
    from branchrt_gym.bench import deep_tree
    from branchrt_gym.bench.mismatches import Mismatches

    wrong = Mismatches(10, 2, "`score` of root 0, rank 0: the search has 1, the batcher 2")
    monkeypatch.setattr(deep_tree, "compare", lambda found, result: wrong)
    comparison = compare_deep_tree(Sizes(2, 50, 3, 2, 4), repetitions=1)
    row = comparison.row()
    times = ("search_seconds", "batcher_seconds", "ratio", "whole_search_seconds")
    assert not comparison.equal and all(row[name] is None for name in times)
    assert "rank 0" in notes(comparison)[0]
