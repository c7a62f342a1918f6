"""Every planted fault is caught by the quick matrix, by rows that pass when nothing is planted."""

import numpy as np
import pytest
from planted_faults import FAULTS

from branchrt_gym import DeepTreeOracle, registrations
from branchrt_gym.certify import certify, rows
from branchrt_gym.oracle import child_key, episode_key

DEEP_TREE, BLACKJACK = "branchrt/DeepTree-v0", "branchrt/Blackjack-v0"
RESTARTS = ("NEXT_STEP", "SAME_STEP")

FORKS = {"program": ["crowd"], "rng": ["split"]}
EXPANSIONS = {"program": ["expansions"], "fanout": [2, 3, 4, 7], "rng": ["split"]}
STEPS = {"program": ["plain"], "max_episode_steps": [None]}
MASKS = {"program": ["masked_resets"], "max_episode_steps": [5]}
BEAMS = {"levels": [3], "budget": [None]}
LUCKY_SEARCHES = {"levels": [3, 64], "budget": [1], "stop_solved": [False]}

# For each fault the rows that are to catch it, by the values of their dimensions, and the field
# of the first difference.
CAUGHT = [
    ("children_reversed", DEEP_TREE, EXPANSIONS, "child reward["),
    ("search_children_reversed", DEEP_TREE, BEAMS, "lineage.action["),
    ("last_of_equals_selected", DEEP_TREE, BEAMS, "lineage.action["),
    ("last_of_equals_selected", DEEP_TREE, {"levels": [1], "budget": [20]}, "lineage.action["),
    ("last_of_equals_selected", DEEP_TREE, EXPANSIONS, "observation["),
    ("compaction_leaves_a_column", DEEP_TREE, {"program": ["compaction"]}, "observation["),
    ("step_touches_neighbours", DEEP_TREE, MASKS | {"autoreset_mode": ["DISABLED"]}, "depth"),
    ("masked_reset_touches_neighbours", DEEP_TREE, MASKS, "observation["),
    ("shared_luck", DEEP_TREE, FORKS, "key"),
    ("shared_luck", DEEP_TREE, EXPANSIONS, "key"),
    ("shared_luck", BLACKJACK, LUCKY_SEARCHES, "score"),
    ("key_of_the_next_child", DEEP_TREE, FORKS, "key"),
    ("key_of_the_next_child", BLACKJACK, LUCKY_SEARCHES, "score"),
    ("restart_a_step_early", DEEP_TREE, STEPS, "observation[0]"),
    ("restart_a_step_late", DEEP_TREE, STEPS, "observation[0]"),
    ("lineage_link_off_by_one", DEEP_TREE, STEPS, "lineage.length"),
    ("observation_outside_its_space", DEEP_TREE, STEPS, "observation[0]"),
    ("reward_off_in_one_branch", DEEP_TREE, STEPS, "reward"),
    ("ids_in_reverse", DEEP_TREE, FORKS, "branch_id"),
]


def quick(env_id, where):
    """The rows of the quick matrix with these values."""
    return [
        row
        for row in rows(registrations()[env_id])
        if all(
            name in (values := {**row.settings, **row.parameters}) and values[name] in allowed
            for name, allowed in where.items()
        )
    ]


def first_difference(monkeypatch, name, env_id, where):
    """The first row that catches a fault, and what it found."""
    FAULTS[name](monkeypatch)
    certificate = certify(env_id, rows=quick(env_id, where))
    assert not certificate.ok
    found = next(result for result in certificate.rows if result.difference)
    return found.row, found.difference


def test_each_fault_has_rows_that_catch_it():
    assert {name for name, *_ in CAUGHT} == set(FAULTS)


@pytest.mark.parametrize(
    ("name", "env_id", "where", "field"), CAUGHT, ids=lambda value: value if value else None
)
def test_a_fault_is_caught_and_placed(monkeypatch, name, env_id, where, field):
    row, found = first_difference(monkeypatch, name, env_id, where)
    assert found.field.startswith(field), found.message
    assert None not in (found.root, found.branch_id, found.step), found.message
    assert found.expected != found.got
    monkeypatch.undo()
    assert certify(env_id, rows=[row]).ok


def signed(key):
    return key - (key >> 63 << 64)


def place(found):
    return found.root, found.branch_id, found.slot, found.operation_name, found.step


@pytest.mark.parametrize("fault", ["shared_luck", "key_of_the_next_child"])
def test_the_keys_of_a_difference_are_those_of_the_documented_rule(monkeypatch, fault):
    row, found = first_difference(monkeypatch, fault, DEEP_TREE, FORKS)
    # The program forks right after the reset: the first child of root 0 is in the first free slot.
    parent = episode_key(row.settings["seed"], 0)
    wrong = parent if fault == "shared_luck" else child_key(parent, 0, 1)
    roots = row.num_roots
    assert place(found) == (0, roots, roots, "Fork", 0)
    assert int(found.expected) == signed(child_key(parent, 0, 0))
    assert int(found.got) == signed(wrong)


def test_the_rewards_of_a_difference_are_those_of_the_actions_in_both_orders(monkeypatch):
    row, found = first_difference(monkeypatch, "children_reversed", DEEP_TREE, EXPANSIONS)
    rewards = []
    for action in range(row.parameters["fanout"]):
        oracle = DeepTreeOracle(**row.parameters)
        oracle.reset(seed=row.settings["seed"])
        rewards.append(oracle.step(action)[1])
    child = next(i for i, reward in enumerate(rewards) if reward != rewards[-1 - i])
    assert found.field == f"child reward[{child}]"
    assert place(found) == (0, 0, 0, "BranchStep", 0)
    assert (float(found.expected), float(found.got)) == (rewards[child], rewards[-1 - child])


@pytest.mark.parametrize("search", [BEAMS, {"levels": [1], "budget": [20]}])
def test_among_equals_the_first_action_is_expected(monkeypatch, search):
    # A table of one entry pays the same for every action.
    search = search | {"width": [1], "fanout": [2, 3, 4, 7]}
    row, found = first_difference(monkeypatch, "last_of_equals_selected", DEEP_TREE, search)
    assert (found.field, found.root, found.expected) == ("lineage.action[0]", 0, "0")
    assert int(found.got) == row.parameters["fanout"] - 1


@pytest.mark.parametrize(
    ("fault", "expected", "got", "late"),
    [("restart_a_step_early", 1.0, 0.0, 0), ("restart_a_step_late", 0.0, 1.0, 1)],
)
def test_a_restart_is_expected_in_the_step_after_the_end(monkeypatch, fault, expected, got, late):
    where = STEPS | {"autoreset_mode": ["NEXT_STEP"]}
    row, found = first_difference(monkeypatch, fault, DEEP_TREE, where)
    # The first entry is the depth, over that of the tree; operation 0 is the reset.
    depth = row.parameters["depth"]
    assert place(found) == (0, 0, 0, "Step", depth)
    assert found.operation == depth + late
    assert (float(found.expected), float(found.got)) == (expected, got)


def test_an_observation_outside_its_space_is_a_difference_though_both_sides_agree(monkeypatch):
    row, found = first_difference(monkeypatch, "observation_outside_its_space", DEEP_TREE, STEPS)
    depth = row.parameters["depth"]
    step = depth // 2 + 1  # the first with a depth above the half
    assert place(found) == (0, 0, 0, "Step", step)
    assert found.expected == "-1.0 … 0.5, as its space says"
    assert float(found.got) == np.float32(step) / np.float32(depth)


def test_a_reward_of_one_branch_is_placed(monkeypatch):
    row, found = first_difference(monkeypatch, "reward_off_in_one_branch", DEEP_TREE, STEPS)
    assert row.parameters["depth"] >= 3
    assert place(found) == (0, 0, 0, "Step", 3)
    assert float(found.got) == float(found.expected) + 1


def test_ids_count_from_the_first_slot(monkeypatch):
    row, found = first_difference(monkeypatch, "ids_in_reverse", DEEP_TREE, FORKS)
    assert place(found) == (0, 0, 0, "Reset", 0)
    assert (found.expected, found.got) == ("0", str(row.num_roots - 1))


def test_a_neighbour_that_a_step_touched_is_named(monkeypatch):
    where = MASKS | {"autoreset_mode": ["DISABLED"]}
    _, found = first_difference(monkeypatch, "step_touches_neighbours", DEEP_TREE, where)
    assert (int(found.expected), int(found.got)) == (found.step, found.step + 1)


def test_a_neighbour_that_a_masked_reset_touched_is_named(monkeypatch):
    row, found = first_difference(monkeypatch, "masked_reset_touches_neighbours", DEEP_TREE, MASKS)
    depth = np.float32(found.step) / np.float32(row.parameters["depth"])
    assert (np.float32(found.expected), float(found.got)) == (depth, 0.0)


def test_the_length_of_a_path_is_the_number_of_steps(monkeypatch):
    _, found = first_difference(monkeypatch, "lineage_link_off_by_one", DEEP_TREE, STEPS)
    assert int(found.expected) == found.step
