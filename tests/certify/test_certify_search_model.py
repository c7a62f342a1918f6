"""The scalar beam search, on trees worked by hand."""

import pytest
from fuse import CUT, END, ON, Flat, Fuse
from gymnasium.spaces import Box

from branchrt_gym.certify import beam_search
from branchrt_gym.certify.search_model import all_actions
from branchrt_gym.oracle import child_key, episode_key


def kept(result, root=0):
    return [
        (branch.branch_id, branch.parent_id, branch.trajectory()[0])
        for branch in result.survivors[root]
    ]


def test_an_ended_branch_competes_with_its_final_score_and_keeps_its_id():
    # Level 1: END 10, ON 1, CUT 0. Level 2, from END (not expanded) and ON: 10, 2, 11, 1.
    assert kept(beam_search(Fuse, [5], width=2, depth=1, stop_solved=False)) == [
        (2, 0, [END]),
        (3, 0, [ON]),
    ]
    result = beam_search(Fuse, [5], width=2, depth=2, stop_solved=False)
    assert kept(result) == [(4, 3, [ON, END]), (2, 0, [END])]
    assert result.scores == [[11, 10]]
    assert [branch.solved for branch in result.survivors[0]] == [True, True]


def test_a_solved_root_keeps_only_the_children_that_solve_it():
    result = beam_search(Fuse, [5], width=2, depth=9)
    assert kept(result) == [(2, 0, [END])] and not result.survivors[0][0].live


def test_a_budget_expands_the_first_open_branch_alone():
    # END 10 leads, ended; then ON 1 is expanded: END 10, ON END 11, ON ON 2 hold the places.
    result = beam_search(Fuse, [5], width=3, depth=9, budget=2, stop_solved=False)
    assert [path for _, _, path in kept(result)] == [[ON, END], [END], [ON, ON]]
    # All of Flat's children are equal; those of the first place go before the others.
    result = beam_search(Flat, [5], width=4, depth=9, budget=2)
    paths = [path for _, _, path in kept(result)]
    assert paths == [[ON, ON], [ON, END], [ON, CUT], [END]]


def test_ties_go_to_the_lowest_parent_then_the_lowest_action():
    result = beam_search(Flat, [5], width=3, depth=2)
    assert kept(result) == [(6, 3, [ON, ON]), (7, 3, [ON, END]), (8, 3, [ON, CUT])]
    # Level 3: ON ON's three children come first, then the ended ones in their old order.
    result = beam_search(Flat, [5], width=5, depth=3)
    assert [path for _, _, path in kept(result)] == [
        [ON, ON, ON],
        [ON, ON, END],
        [ON, ON, CUT],
        [ON, END],
        [ON, CUT],
    ]


def test_ids_count_by_level_then_root_then_rank():
    result = beam_search(Fuse, [5, 9, 7], width=2, depth=1, stop_solved=False)
    assert [[branch.branch_id for branch in root] for root in result.survivors] == [
        [6, 7],
        [8, 9],
        [10, 11],
    ]
    assert [root[0].parent_id for root in result.survivors] == [0, 2, 4]


def test_children_have_futures_of_their_own():
    result = beam_search(Fuse, [5], width=3, depth=1, stop_solved=False)
    keys = {branch.trajectory()[0][0]: branch.oracle.key for branch in result.survivors[0]}
    assert keys == {action: child_key(episode_key(5, 0), 0, action) for action in (ON, END, CUT)}


def test_more_levels_than_the_episode_has_change_nothing_further():
    assert kept(beam_search(Fuse, [5], width=1, depth=1, stop_solved=False)) == [(1, 0, [END])]
    assert kept(beam_search(Fuse, [5], width=1, depth=9, stop_solved=False)) == [(1, 0, [END])]


def test_expansion_needs_discrete_actions():
    with pytest.raises(TypeError, match="Box"):
        all_actions(Box(0, 1))
