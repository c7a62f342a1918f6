"""`search`: edges, results, trajectories; equality with the oracle is `certify`'s."""

import pytest
import torch

from branchrt_gym import Beam, DeepTree, make_roots, search
from branchrt_gym.contract import BranchEnv, Contract, branch


def test_what_a_result_holds():
    env = DeepTree(width=4096, depth=12)
    result = search(env, [5, 9], Beam(8), 12)
    assert result.tier == "eager" and result.levels == 12
    assert result.score.shape == result.branch_id.shape == result.solved.shape == (2,)
    assert result.population.score.shape == (2, 8)
    assert bool((result.population.score[:, :-1] >= result.population.score[:, 1:]).all())
    # 1, 4 and then 8 branches of each root are expanded by 4 actions.
    assert result.transitions == 2 * 4 * (1 + 4 + 10 * 8)
    assert bool(result.population.terminated.all())


def test_trajectories_of_the_best_and_of_every_kept_branch():
    env = DeepTree(width=997, depth=7, fanout=3)
    result = search(env, 4, Beam(5), 7)
    best = result.trajectories()
    assert torch.equal(best.reward.sum(1), result.score)
    assert torch.equal(best.length, torch.full((4,), 7)) and bool(best.mask.all())
    everyone = result.trajectories(result.population.branch_id.flatten())
    assert torch.equal(everyone.reward.sum(1), result.population.score.flatten())
    root = result.trajectories([0 * 5, 2 * 5])
    assert root.length.tolist() == [0, 0] and root.root.tolist() == [0, 2]
    level = 3
    ids = (level * 4 + 1) * 5 + torch.arange(5)
    middle = result.trajectories(ids)
    assert middle.length.tolist() == [3] * 5 and middle.root.tolist() == [1] * 5
    assert len({tuple(row) for row in middle.action.tolist()}) == 5


@pytest.mark.parametrize("ids", [[-1], [1], [8 * 4 * 5], [10**9]])
def test_an_id_that_was_not_given(ids):
    result = search(DeepTree(width=97, depth=7), 4, Beam(5), 7)
    with pytest.raises(ValueError, match="no branch has id"):
        result.trajectories(ids)


def test_wider_beams_find_what_hides_behind_poor_steps():
    env = DeepTree(width=65_536, depth=16)
    roots = make_roots(env, 48)
    solved = [int(search(env, roots, Beam(w), 16).solved.sum()) for w in (4, 16, 64, 256)]
    assert solved == sorted(solved) and solved[-1] > solved[0]


def test_a_search_ends_when_no_branch_is_open():
    result = search(DeepTree(width=97, depth=3), 2, Beam(4), 50)
    assert result.levels == 3 and bool(result.population.terminated.all())
    still = search(DeepTree(width=97, depth=3), 2, Beam(4), 0)
    assert still.levels == 0 and still.score.tolist() == [0, 0]
    assert still.trajectories().length.tolist() == [0, 0]


def test_roots_are_made_once_and_shared():
    env = DeepTree(width=997, depth=5)
    roots = make_roots(env, range(6), num_contexts=2)
    assert roots.shared["context"].shape == (2, 997)
    assert roots.context_index.tolist() == [0, 1, 0, 1, 0, 1]
    first, again = search(env, roots, Beam(3), 5), search(env, roots, Beam(3), 5)
    assert torch.equal(first.population.branch_id, again.population.branch_id)
    for name in ("score", "terminated", "solved"):
        assert torch.equal(getattr(first.population, name), getattr(again.population, name))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0, Beam(2), 3), ValueError, "`roots`"),
        ((2, 5, 3), TypeError, "Beam"),
        ((2, Beam(2), -1), ValueError, "`depth`"),
        (([-4], Beam(2), 3), ValueError, "`seed`"),
        (([0.5], Beam(2), 3), TypeError, "`seed`"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        search(DeepTree(width=97), *arguments)
    with pytest.raises(ValueError, match="`width`"):
        Beam(0)


def test_an_environment_without_the_ranked_field():
    class Unranked(BranchEnv):
        def __init__(self):
            rules = DeepTree(width=97)
            self.contract = Contract({"place": branch((), torch.int32)})
            self.single_observation_space = rules.single_observation_space
            self.single_action_space = rules.single_action_space

    with pytest.raises(ValueError, match="`score`"):
        search(Unranked(), 2, Beam(2), 3)


def test_a_missing_device_is_named():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ValueError, match="`device`"):
        search(DeepTree(width=97), 2, Beam(2), 3, device="cuda")


@pytest.mark.parametrize("ids", [[0.5], [[0]], 0, [True]])
def test_ids_that_are_no_list_of_integers(ids):
    result = search(DeepTree(width=97, depth=3), 2, Beam(2), 3)
    with pytest.raises(TypeError, match="`branch_ids`"):
        result.trajectories(ids)


def test_a_narrow_score_is_refused():
    class Narrow(DeepTree):
        def __init__(self):
            super().__init__(width=97)
            fields = {**self.contract.fields, "score": branch((), torch.int16)}
            self.contract = Contract(fields)

    with pytest.raises(ValueError, match=r"ranks by torch\.int32 or torch\.int64"):
        search(Narrow(), 2, Beam(2), 3)
