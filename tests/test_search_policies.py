"""`search` under each policy and rule, compared with scalar oracles searched branch by branch."""

import itertools

import pytest
import torch

from branchrt_gym import Beam, BestFirst, DeepTree, SharedCounter, search
from branchrt_gym.certify.compare_search import compare_search
from branchrt_gym.envs.blackjack import Blackjack
from branchrt_gym.envs.blackjack_oracle import BlackjackOracle
from branchrt_gym.envs.deep_tree_oracle import DeepTreeOracle
from branchrt_gym.envs.shared_counter_oracle import SharedCounterOracle
from branchrt_gym.search_result import NO_CHOICE, read_choice

RULES = {
    "deep": (DeepTree, DeepTreeOracle, {"width": 64, "depth": 6, "fanout": 3}),
    "counter": (SharedCounter, SharedCounterOracle, {"width": 16, "depth": 5, "target": 4}),
    "blackjack": (Blackjack, BlackjackOracle, {}),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("stop_solved", [True, False])
def test_best_first_equals_the_scalar_search(rules, stop_solved):
    env_class, oracle_class, parameters = RULES[rules]
    for number, (width, budget, depth, rng) in enumerate(
        itertools.product([1, 2, 5, 64], [1, 3, 17], [2, 6], ["split", "shared"])
    ):
        found = compare_search(
            env_class(**parameters),
            lambda: oracle_class(**parameters),
            [5 + 11 * number + root for root in range(4)],
            width=width,
            depth=depth,
            num_contexts=2,
            rng=rng,
            device=torch.device("cpu"),
            tier="eager",
            budget=budget,
            stop_solved=stop_solved,
        )
        assert found.difference is None, (width, budget, depth, rng, found.difference)
        assert found.compared > 0


def test_best_first_expands_one_branch_of_each_root_at_a_time():
    result = search(DeepTree(width=997, depth=30), 3, BestFirst(budget=12, width=8), 30)
    assert (result.levels, result.transitions) == (12, 12 * 3 * 4)
    for choice in result.choices:
        place, child = read_choice(choice, 4)
        for row in range(3):  # the children of a root have one parent, those carried are others
            parents = set(place[row][child[row] >= 0].tolist())
            kept = place[row][(child[row] < 0) & (choice[row] != NO_CHOICE)].tolist()
            assert len(parents) <= 1 and not parents & set(kept)
            assert kept == sorted(kept)
    everyone = result.trajectories(result.population.branch_id.flatten())
    assert torch.equal(everyone.reward.sum(1), result.population.score.flatten())
    assert torch.equal(everyone.length, result.population.depth.flatten().long())


def test_best_first_of_width_one_is_greedy_and_ends_at_the_depth():
    env = DeepTree(width=997, depth=30)
    greedy = search(env, 5, BestFirst(budget=1000, width=1), 7)
    assert greedy.levels == 7 and greedy.population.depth.tolist() == [[7]] * 5
    assert torch.equal(
        greedy.trajectories().action, search(env, 5, Beam(1), 7).trajectories().action
    )


def test_a_carried_branch_has_one_id_only():
    result = search(DeepTree(width=97, depth=9), 1, BestFirst(budget=5, width=8), 9)
    stays = [
        (level, place)
        for level, choice in enumerate(result.choices)
        for place in (choice[0] < NO_CHOICE).nonzero()
    ]
    assert stays
    for level, place in stays:
        with pytest.raises(ValueError, match="no branch has id"):
            result.trajectories((level + 1) * 8 + place)


@pytest.mark.parametrize("policy", [Beam(8), BestFirst(40, 8)])
def test_a_solved_root_keeps_what_solves_it_and_costs_no_more(policy):
    env = SharedCounter(width=16, depth=12, target=9)
    stopped = search(env, 40, policy, 12)
    on = search(env, 40, policy, 12, stop_solved=False)
    assert 0 < int(stopped.solved.sum())
    assert stopped.transitions < on.transitions
    there = stopped.population.branch_id != NO_CHOICE
    solved = stopped.solved[:, None] & there
    assert torch.equal(solved, stopped.population.solved)
    unsolved = ~stopped.solved
    assert torch.equal(stopped.score[unsolved], on.score[unsolved])


@pytest.mark.parametrize("value", [0, -1, 2.5, True, None])
def test_wrong_numbers(value):
    with pytest.raises(ValueError, match="`budget`"):
        BestFirst(value)
    with pytest.raises(ValueError, match="`width`"):
        BestFirst(5, value)
    with pytest.raises(ValueError, match="`width`"):
        Beam(value)
