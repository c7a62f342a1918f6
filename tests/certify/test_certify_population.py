"""The model itself, on cases worked by hand."""

import numpy as np
import pytest
from fuse import CUT, END, ON, Flat, Fuse
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from branchrt_gym.certify import ScalarPopulation
from branchrt_gym.certify.branch import constant_observation
from branchrt_gym.certify.expansion import branch_step
from branchrt_gym.oracle import CONTEXT, bounded, child_key, context_key, episode_key, fold


def population(num_envs, num_roots, mode=AutoresetMode.NEXT_STEP, make=Fuse, **more):
    model = ScalarPopulation(make, num_envs, num_roots=num_roots, autoreset_mode=mode, **more)
    model.reset(100)
    return model


def ids(model):
    """The branch id in each slot: negative - 1 where it has ended, None where free."""
    return [
        None if branch is None else branch.branch_id if branch.live else -branch.branch_id - 1
        for branch in model.slots
    ]


def roots(model):
    return [None if branch is None else branch.root for branch in model.slots]


def test_reset_starts_one_branch_per_root_in_the_first_slots():
    model = population(5, 3, num_contexts=2)
    assert ids(model) == [0, 1, 2, None, None]
    assert roots(model) == [0, 1, 2, None, None]
    assert [branch.context_index for branch in model.slots[:3]] == [0, 1, 0]
    assert model.contexts == [("context of", context_key(100)), ("context of", context_key(101))]
    assert [branch.oracle.key for branch in model.slots[:3]] == [
        episode_key(seed, 0) for seed in (100, 101, 102)
    ]


def test_fork_fills_the_lowest_free_slots_in_the_order_of_the_parents():
    model = population(6, 2)
    assert model.fork([1, 0, 1], [1, 2, 1]) == [2, 3, 4, 5]
    assert ids(model) == [0, 1, 2, 3, 4, 5]
    assert roots(model) == [0, 1, 1, 0, 0, 1]
    assert [branch.parent_id for branch in model.slots] == [-1, -1, 1, 0, 0, 1]
    one, other = episode_key(100, 0), episode_key(101, 0)
    assert [branch.oracle.key for branch in model.slots[2:]] == [
        child_key(other, 0, 0),
        child_key(one, 0, 0),
        child_key(one, 0, 1),
        child_key(other, 0, 1),
    ]
    assert [branch.oracle.forks for branch in model.slots] == [1, 1, 0, 0, 0, 0]


def test_a_shared_child_has_its_parents_future():
    model = population(3, 1)
    model.fork([0], 2, rng="shared")
    assert [branch.oracle.key for branch in model.slots] == [episode_key(100, 0)] * 3
    assert [branch.oracle.forks for branch in model.slots] == [1, 1, 1]


def test_next_step_restarts_the_root_in_the_lowest_of_its_last_ended_slots():
    model = population(4, 1)
    model.fork([0], 3)
    outcome = model.step([END, ON, ON, ON])
    assert ids(model) == [None, 1, 2, 3]  # the root lives on: its slot is free at once
    assert outcome.rewards == [10, 1, 1, 1]
    assert outcome.observations[0].tolist() == [1, 2]  # the last one, not the constant
    outcome = model.step([ON, ON, END, CUT])
    assert ids(model) == [None, 1, None, None]
    assert outcome.solved == [False, False, True, False]
    model.fork([1])
    outcome = model.step([CUT, CUT, ON, ON])
    assert outcome.truncated == [True, True, False, False]
    assert ids(model) == [-5, None, None, None]
    assert model.reserved == {0: 0}
    assert outcome.live == [False] * 4
    outcome = model.step([END, END, END, END])
    assert ids(model) == [5, None, None, None]
    assert outcome.observations[0].tolist() == [2, 1]
    assert outcome.rewards == [0.0] * 4
    assert not any(outcome.terminated)
    assert model.slots[0].parent_id == -1
    key = episode_key(100, 1)
    assert model.slots[0].oracle.key == key
    assert model.slots[0].context_index == bounded(fold(key, CONTEXT), 1)


def test_same_step_restarts_at_once_and_keeps_the_last_observation():
    model = population(3, 1, AutoresetMode.SAME_STEP)
    model.fork([0], 2)
    outcome = model.step([ON, END, ON])
    assert ids(model) == [0, None, 2]
    assert outcome.final == {}
    outcome = model.step([END, ON, END])
    assert ids(model) == [3, None, None]
    assert outcome.observations[0].tolist() == [2, 1]
    assert outcome.observations[2].tolist() == [1, 3]
    assert {slot: (last.tolist(), solved) for slot, (last, solved) in outcome.final.items()} == {
        0: ([1, 3], True)
    }
    assert outcome.live == [True, False, False]
    assert outcome.solved == [False, False, True]


def test_restarts_in_one_step_are_numbered_by_slot():
    model = population(3, 3, AutoresetMode.SAME_STEP)
    model.prune([2])
    assert ids(model) == [0, 1, -3]
    model.step([END, ON, ON])  # root 2 was pruned: it restarts now, beside root 0
    assert ids(model) == [3, 1, 4]


def test_disabled_keeps_what_ended_until_it_is_told():
    model = population(4, 2, AutoresetMode.DISABLED)
    model.fork([0, 1])
    model.step([END, ON, ON, CUT])
    assert ids(model) == [-1, 1, 2, -4]
    outcome = model.step([END, ON, ON, ON])
    assert outcome.observations[0].tolist() == [0, 0]
    assert outcome.rewards == [0, 1, 1, 0]
    model.prune([0])
    assert ids(model) == [None, 1, 2, -4]
    assert model.compact() == [1, 2, -1, -1]
    assert ids(model) == [1, 2, None, None]


def test_a_prune_that_ends_a_root_restarts_it_at_the_next_step():
    model = population(4, 2)
    model.fork([1, 1])
    model.prune([3, 1, 2])
    assert ids(model) == [0, -2, None, None]
    branch = model.history[1][1][3]
    assert (branch.pruned, branch.truncated, branch.terminated) == (True, True, False)
    assert model.observe()[1].tolist() == [1, 1]  # readable until the step
    model.step([ON] * 4)
    assert ids(model) == [0, 4, None, None]


def test_compaction_keeps_order_and_reservations():
    model = population(5, 3)
    model.fork([2, 2])
    model.prune([0, 1, 3])
    assert ids(model) == [-1, -2, 2, None, 4]
    assert model.compact() == [0, 1, 2, 4, -1]
    assert ids(model) == [-1, -2, 2, 4, None]
    assert model.reserved == {0: 0, 1: 1}


def test_a_masked_reset_restarts_its_roots_in_their_lowest_masked_slots():
    model = population(6, 3)
    model.fork([0, 1])
    untouched = model.slots[1], model.slots[4]
    outcome = model.reset_masked([True, False, True, True, False, True])
    assert ids(model) == [5, 1, 6, None, 4, None]
    assert roots(model) == [0, 1, 2, None, 1, None]
    assert (model.slots[1], model.slots[4]) == untouched
    assert outcome.live == [True, True, True, False, True, False]
    assert model.history[0][0][3].pruned


def test_a_masked_reset_frees_the_roots_done_slots_outside_the_mask():
    model = population(4, 1, AutoresetMode.DISABLED)
    model.fork([0, 0])
    model.step([END, ON, CUT, ON])
    assert ids(model) == [-1, 1, -3, None]
    model.reset_masked([False, True, True, False])
    assert ids(model) == [None, 3, None, None]
    assert model.slots[1].oracle.episode == 1


def test_a_masked_reset_with_a_seed_starts_that_seeds_episode_0():
    model = population(2, 2)
    model.step([ON, ON])
    model.reset_masked([False, True], seed=7)
    assert model.slots[1].oracle.key == episode_key(8, 0)
    assert (model.slots[0].oracle.depth, model.slots[1].oracle.depth) == (1, 0)
    model.step([ON, END])
    model.step([ON, ON])
    assert model.slots[1].oracle.key == episode_key(8, 1)


def test_a_reset_without_a_seed_starts_the_next_episodes_and_goes_on_counting():
    model = population(3, 2)
    model.fork([0])
    model.reset()
    assert ids(model) == [3, 4, None]
    assert model.slots[0].oracle.key == episode_key(100, 1)
    assert set(model.history[0][0]) == {0, 2}
    assert all(branch.pruned for branch in model.history[0][0].values())
    model.reset(5)
    assert ids(model) == [0, 1, None]


def test_a_trajectory_includes_the_path_before_the_fork():
    model = population(3, 1)
    model.step([ON, ON, ON])
    model.fork([0])
    model.step([ON, END, ON])
    first, second = (model.history[0][1][branch_id] for branch_id in (0, 1))
    assert first.trajectory() == ([ON, ON], [1, 1])
    assert second.trajectory() == ([ON, END], [1, 10])
    assert (second.terminated, second.solved, first.live) == (True, True, True)


def test_a_time_limit_truncates():
    model = population(1, 1, max_episode_steps=2)
    model.step([ON])
    outcome = model.step([ON])
    assert outcome.truncated == [True]
    model.step([ON])
    assert ids(model) == [1]


def test_branch_step_replaces_parents_by_their_kept_children():
    model = population(7, 2, make=Flat)
    model.fork([0])
    rewards, done = branch_step(model, width=2)
    # Slots 0, 1, 2 hold roots 0, 1, 0; the best of root 0 are slot 0's ON and END. END frees its
    # slot, since ON lives on.
    assert rewards == [0.0] * 9
    assert done == [False, True, True] * 3
    assert ids(model) == [3, None, 5, None, None, None, None]
    assert [model.slots[slot].parent_id for slot in (0, 2)] == [0, 1]
    parent, ended = model.history[0][1][0], model.history[0][1][4]
    assert not (parent.live or parent.pruned or parent.truncated)
    assert (ended.terminated, ended.trajectory()[0]) == (True, [END])
    assert model.slots[0].oracle.key == child_key(episode_key(100, 0), 1, 0)


def test_branch_step_keeps_all_children_without_a_width():
    model = population(6, 2, AutoresetMode.DISABLED, make=Flat)
    branch_step(model)
    assert ids(model) == [2, -4, -5, 5, -7, -8]
    assert roots(model) == [0, 0, 0, 1, 1, 1]


def test_ended_branches_that_wait_compete_for_the_width():
    model = population(5, 1, AutoresetMode.DISABLED, make=Flat)
    model.fork([0, 0])
    model.step([END, ON, CUT, ON, ON])
    assert ids(model) == [-1, 1, -3, None, None]
    branch_step(model, width=3)  # all score 0: slot 0, slot 1's ON and END, then CUT and slot 2
    assert ids(model) == [-1, 3, -5, None, None]
    branch_step(model)
    assert ids(model) == [-1, 5, -5, -7, -8]


def test_branch_step_keeps_only_what_solves_a_solved_root():
    model = population(3, 1, AutoresetMode.SAME_STEP)
    branch_step(model)
    assert set(model.history[0][0]) == {0, 1}
    assert model.history[0][0][1].solved
    assert ids(model) == [2, None, None]  # the root ended with it, and restarted
    assert model.slots[0].oracle.episode == 1


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), [0, 0]),
        (spaces.Box(np.array([1, -3]), np.array([5, -2]), dtype=np.int64), [1, -3]),
        (spaces.Discrete(3), 0),
        (spaces.Discrete(3, start=2), 2),
        (spaces.Discrete(5, start=-2), 0),
        (spaces.MultiDiscrete([3, 4], start=[0, 2]), [0, 2]),
        (spaces.MultiBinary(2), [0, 0]),
    ],
)
def test_the_constant_observation_lies_inside_the_space(space, expected):
    constant = constant_observation(space)
    assert np.asarray(constant).tolist() == expected
    assert space.contains(constant)


def test_the_constant_observation_of_nested_spaces():
    space = spaces.Dict(a=spaces.Tuple([spaces.Discrete(2, start=4)]), b=spaces.MultiBinary(1))
    assert space.contains(constant_observation(space))
    with pytest.raises(TypeError, match="Text"):
        constant_observation(spaces.Text(3))
