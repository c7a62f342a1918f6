"""`branch_step` with environments and with plain callables, against hand-worked expectations."""

import numpy as np
import pytest
import torch

from branchrt_gym import (
    DONE,
    FREE,
    LIVE,
    Batch,
    Beam,
    BranchingVectorEnv,
    DeepTree,
    Expansion,
    Frontier,
    Verdicts,
    branch_step,
    search,
)
from branchrt_gym.errors import FrontierFullError
from branchrt_gym.saving import Snapshot


def texts(roots, slots=16, capacity=1000):
    """A frontier whose branches are strings."""
    frontier = Frontier(slots, len(roots), lineage_capacity=capacity)
    frontier.start(seed=0, payloads=roots)
    return frontier


def spell(letters="ab"):
    def env_fn(batch: Batch) -> Expansion:
        pairs = [(i, text + c) for i, text in enumerate(batch.payloads) for c in letters]
        return Expansion(
            parents=[i for i, _ in pairs],
            payloads=[text for _, text in pairs],
            rewards=[float(text.endswith("b")) for _, text in pairs],
            done=[len(text) >= 4 for _, text in pairs],
        )

    return env_fn


def wants(word=None, score=len):
    def verifier_fn(batch: Batch) -> Verdicts:
        return Verdicts(
            passed=[text == word for text in batch.payloads],
            score=[score(text) for text in batch.payloads],
        )

    return verifier_fn


def held(frontier):
    status = frontier.status.tolist()
    return {s: frontier.payloads[s] for s in range(frontier.num_slots) if status[s] != FREE}


def test_children_stand_in_the_order_of_parent_and_action():
    frontier = texts(["", "x"])
    after, rewards, done = branch_step(frontier, spell(), wants())
    assert after is frontier
    assert held(frontier) == {0: "a", 1: "b", 2: "xa", 3: "xb"}
    assert frontier.branch_id[:4].tolist() == [2, 3, 4, 5]
    assert frontier.parent_id[:4].tolist() == [0, 0, 1, 1]
    assert frontier.depth[:4].tolist() == [1] * 4
    assert rewards.tolist() == [0, 1, 0, 1] and done.tolist() == [False] * 4
    assert frontier.payloads[4:] == [None] * 12


def test_a_policy_keeps_the_best_of_each_root_with_ties_to_the_lowest():
    frontier = texts(["", "x"])
    branch_step(frontier, spell("abc"), wants(score=lambda text: text.count("b")), Beam(2))
    assert held(frontier) == {0: "b", 1: "a", 2: "xb", 3: "xa"}
    assert frontier.branch_id[:4].tolist() == [2, 3, 4, 5]
    assert frontier.verdict_score[:4].tolist() == [1, 0, 1, 0]


def test_a_root_that_is_solved_keeps_the_branch_that_passed_and_no_sibling():
    frontier = texts(["", "x"])
    branch_step(frontier, spell(), wants("b"))
    assert frontier.solved.tolist() == [True, False]
    assert held(frontier) == {0: "b", 1: "xa", 2: "xb"}
    assert frontier.status[:3].tolist() == [DONE, LIVE, LIVE]
    _, rewards, _ = branch_step(frontier, spell(), wants("never"))
    assert rewards.shape == (4,)  # the solved root costs nothing more
    paths = frontier.trajectories(frontier.branch_id[:1])
    assert paths.solved.tolist() == [True] and paths.action.tolist() == [[1]]


def test_ended_branches_compete_with_their_score_and_are_not_expanded():
    frontier = texts(["aaa"])
    branch_step(frontier, spell("b"), wants(score=lambda _: 7), Beam(2))
    assert held(frontier) == {0: "aaab"} and frontier.status[0] == DONE
    frontier.prune([0])
    frontier = texts(["bbb", ""])
    branch_step(frontier, spell("ab"), wants(score=lambda text: text.count("b")), Beam(2))
    kept = held(frontier)
    assert kept == {0: "bbbb", 1: "bbba", 2: "b", 3: "a"}
    branch_step(frontier, spell("ab"), wants(score=lambda text: text.count("b")), Beam(2))
    assert {kept[0], kept[1]} <= set(held(frontier).values())
    assert frontier.branch_id[0] == 2  # kept in its slot, with its id


def test_a_branch_without_children_is_pruned():
    def env_fn(batch):
        return Expansion(parents=[1], payloads=["xy"], rewards=[0.0], done=[False])

    frontier = texts(["", "x"])
    branch_step(frontier, env_fn, wants())
    assert held(frontier) == {0: "xy"}
    paths = frontier.trajectories([0, 1, 2])
    assert paths.pruned.tolist() == [True, False, False]
    assert paths.length.tolist() == [0, 0, 1]


def test_trajectories_share_their_prefix():
    frontier = texts([""], slots=32)
    for _ in range(3):
        branch_step(frontier, spell(), wants())
    assert int(frontier.lineage.count) == 1 + 2 + 4 + 8
    live = frontier.live.nonzero().squeeze(1)
    paths = frontier.trajectories(frontier.branch_id[live])
    spelled = ["".join("ab"[action] for action in row) for row in paths.action.tolist()]
    assert spelled == [frontier.payloads[slot] for slot in live.tolist()]
    assert paths.reward.tolist() == [[float(c == "b") for c in word] for word in spelled]


def test_too_many_children_change_nothing():
    frontier = texts(["", "x", "y"], slots=5)
    before = held(frontier), frontier.branch_id.clone(), int(frontier.lineage.count)
    with pytest.raises(FrontierFullError, match="keeps 6 children and 5 of 5 slots"):
        branch_step(frontier, spell(), wants())
    assert held(frontier) == before[0] and torch.equal(frontier.branch_id, before[1])
    assert int(frontier.lineage.count) == before[2]
    assert not frontier.solved.any()


@pytest.mark.parametrize(
    ("expansion", "error"),
    [
        (Expansion([2], ["a"], [0.0], [False]), "places in the batch"),
        (Expansion([1, 0], ["a", "b"], [0.0, 0.0], [False, False]), "ascending order"),
        (Expansion([0], ["a"], [0.0, 1.0], [False]), "`rewards`"),
        (Expansion([0], ["a"], [0.0], [0]), "`done`"),
    ],
)
def test_an_expansion_that_does_not_fit_its_batch(expansion, error):
    frontier = texts(["", "x"])
    with pytest.raises(ValueError, match=error):
        branch_step(frontier, lambda batch: expansion, wants())
    assert held(frontier) == {0: "", 1: "x"}


def test_verdicts_are_checked():
    frontier = texts([""])
    with pytest.raises(ValueError, match="needs a verifier"):
        branch_step(frontier, spell())
    with pytest.raises(ValueError, match="`passed`"):
        branch_step(frontier, spell(), lambda batch: Verdicts([True], [0]))
    with pytest.raises(TypeError, match="Verdicts"):
        branch_step(frontier, spell(), lambda batch: [True, False])
    assert held(frontier) == {0: ""}


def test_opaque_payloads_are_not_saved():
    with pytest.raises(ValueError, match="opaque payloads"):
        Snapshot.take(texts([""]))


def test_steps_with_a_policy_are_the_search():
    env = DeepTree(width=4096, depth=9)
    envs = BranchingVectorEnv(env, 64, num_roots=5, num_contexts=5, autoreset_mode="Disabled")
    envs.reset(seed=11)
    for _ in range(9):
        envs.branch_step(policy=Beam(6))
    found = search(env, range(11, 16), Beam(6), 9)
    frontier = envs.frontier
    best = [
        int(frontier.state["score"][(frontier.root == root) & (frontier.status == DONE)].max())
        for root in range(5)
    ]
    assert best == found.score.tolist()


def test_a_verifier_of_its_own_on_an_environment():
    env = DeepTree(width=97, depth=4)
    envs = BranchingVectorEnv(env, 32, num_roots=2, autoreset_mode="Disabled")
    envs.reset(seed=0)

    def verifier_fn(batch: Batch) -> Verdicts:
        assert batch.reward is not None and len(batch) == batch.reward.shape[0]
        value = batch.shared["context"][batch.context_index, batch.state["position"].long()]
        assert torch.equal(value.int(), batch.reward)
        return Verdicts(batch.reward > 10**6, -batch.state["score"])

    _, rewards, _ = envs.branch_step(verifier_fn, Beam(1))
    worst = rewards.view(2, 4).min(1).values
    assert torch.equal(envs.frontier.state["score"][envs.frontier.live], worst)


def test_autoreset_restarts_roots_that_a_branch_step_ends():
    for mode in ("NextStep", "SameStep"):
        envs = BranchingVectorEnv(DeepTree(width=97, depth=2), 32, num_roots=3, autoreset_mode=mode)
        envs.reset(seed=0)
        envs.branch_step(policy=Beam(3))
        envs.branch_step(policy=Beam(3))
        if mode == "NextStep":
            assert not envs.live.any()
            envs.step(np.zeros(32, dtype=np.int64))
        assert envs.live.sum() == 3
        assert envs.frontier.episode.tolist() == [1, 1, 1]
        assert envs.frontier.depth[envs.frontier.live].tolist() == [0, 0, 0]
