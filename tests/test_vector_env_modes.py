"""Forks, prunes, compactions and the ends of branches and roots, worked by hand in each mode."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from branchrt_gym import DONE, FREE, LIVE, BranchEnv, BranchingVectorEnv, Contract, Transition
from branchrt_gym import branch as branch_field
from branchrt_gym.oracle import episode_key

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
MODES = [NEXT, SAME, DISABLED]
ON, END, CUT = 0, 1, 2
REST = [1, 1]  # the constant observation: zero lies outside the space


class Fuse(BranchEnv):
    """ON burns on for 1, END terminates for 10 and solves, CUT truncates for 0."""

    reward_dtype = torch.int32
    uses_key = False

    def __init__(self):
        self.contract = Contract(
            {"score": branch_field((), torch.int32), "mark": branch_field((2,), torch.int64)}
        )
        self.single_observation_space = spaces.Box(1, 10**6, (2,), np.int64)
        self.single_action_space = spaces.Discrete(3)

    def initial_shared(self, keys):
        return {}

    def initial(self, shared, context_index, keys):
        mark = torch.stack([keys, torch.zeros_like(keys)], dim=1)
        return {"score": torch.zeros_like(keys, dtype=torch.int32), "mark": mark}

    def transition(self, shared, branches, action):
        reward = torch.tensor([1, 10, 0], dtype=torch.int32)[action]
        mark = branches.state["mark"] * 3 + action[:, None]
        state = {"score": branches.state["score"] + reward, "mark": mark}
        return Transition(state, reward, action == END, action == CUT, action == END)

    def observation(self, shared, branches):
        return torch.stack([branches.state["score"] + 5, branches.depth + 5], 1).to(torch.int64)


def make(num_envs, num_roots, mode=NEXT, seed=100, **more):
    envs = BranchingVectorEnv(Fuse(), num_envs, num_roots=num_roots, autoreset_mode=mode, **more)
    envs.reset(seed=seed)
    return envs


def ids(envs):
    """Each slot's branch id: `~id` where it has ended, None where the slot is free."""
    rows = zip(envs.frontier.status.tolist(), envs.frontier.branch_id.tolist(), strict=True)
    ids = [{FREE: None, LIVE: value, DONE: ~value}[status] for status, value in rows]
    assert envs.live.tolist() == [value is not None and value >= 0 for value in ids]
    assert [root != -1 for root in envs.roots.tolist()] == [value is not None for value in ids]
    return ids


def column(envs, name):
    return getattr(envs.frontier, name).tolist()


def key(value):
    return value - 2**64 if value >= 2**63 else value


def bits(envs):
    """Every per-slot tensor, copied."""
    tensors = envs.snapshot().tensors
    return {n: t for n, t in tensors.items() if n.startswith(("column.", "state.", "status"))}


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_starts_one_branch_per_root_in_the_first_slots(mode):
    envs = make(5, 3, mode)
    seen, info = envs.reset(seed=4)
    assert seen.tolist() == [[5, 5]] * 3 + [REST] * 2
    assert info["live"].tolist() == [True] * 3 + [False] * 2
    assert ids(envs) == [0, 1, 2, None, None]
    assert envs.roots.tolist() == [0, 1, 2, -1, -1]
    assert envs.observation_space.contains(seen)
    assert column(envs, "key")[:3] == [key(episode_key(4 + root, 0)) for root in range(3)]
    assert column(envs, "parent_id")[:3] == [-1] * 3


@pytest.mark.parametrize("mode", MODES)
def test_children_take_the_lowest_free_slots_in_the_order_of_their_parents(mode):
    envs = make(9, 2, mode)
    assert envs.fork([1, 0, 1], [1, 2, 1]).tolist() == [2, 3, 4, 5]
    assert ids(envs) == [0, 1, 2, 3, 4, 5, None, None, None]
    assert envs.roots.tolist() == [0, 1, 1, 0, 0, 1, -1, -1, -1]
    assert column(envs, "parent_id")[:6] == [-1, -1, 1, 0, 0, 1]
    envs.prune([3, 0])
    assert envs.fork(np.array([4, 4]), 2).tolist() == [0, 3, 6, 7]
    assert ids(envs) == [6, 1, 2, 7, 4, 5, 8, 9, None]
    assert envs.fork([], 3).tolist() == envs.fork([1, 2], 0).tolist() == []
    assert envs.fork([1, 2], [0, 1]).tolist() == [8]
    assert column(envs, "parent_id") == [4, 1 - 2, 1, 4, 0, 1, 4, 4, 2]
    assert ids(envs)[8] == 10


@pytest.mark.parametrize("mode", MODES)
def test_a_slot_that_is_not_live_stands_still_whatever_its_action(mode):
    envs = make(6, 2, mode)
    envs.fork([0, 1, 0])
    envs.prune([2, 3])
    if mode == DISABLED:
        envs.step([ON, END, ON, ON, ON, ON])
    live = envs.live
    before = bits(envs)
    nonsense = np.where(live, ON, [7, -1, 2**62, -(2**63), 3, -9])
    seen, reward, terminated, truncated, info = envs.step(nonsense)
    assert seen[~live].tolist() == [REST] * int((~live).sum())
    assert not (reward[~live].any() or terminated[~live].any() or truncated[~live].any())
    assert not info["solved"][~live].any()
    assert not info["_solved"][~live].any()
    assert info["live"].tolist() == live.tolist() == envs.live.tolist()
    for name, values in bits(envs).items():
        assert torch.equal(values[~live], before[name][~live]), name
    assert reward[live].tolist() == [1] * int(live.sum())


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_a_branch_that_ends_while_its_root_lives_on_frees_its_slot(mode):
    envs = make(5, 1, mode)
    envs.fork([0], 3)
    seen, reward, terminated, truncated, info = envs.step([ON, END, CUT, ON, 99])
    assert seen.tolist() == [[6, 6], [15, 6], [5, 6], [6, 6], REST]
    assert reward.tolist() == [1, 10, 0, 1, 0]
    assert np.flatnonzero(terminated).tolist() == [1]
    assert np.flatnonzero(truncated).tolist() == [2]
    assert info["solved"].tolist() == terminated.tolist()
    assert info["_solved"].tolist() == [True] * 4 + [False]
    assert info["live"].tolist() == [True, False, False, True, False]
    assert "final_obs" not in info
    assert ids(envs) == [0, None, None, 3, None]
    assert envs.step([ON] * 5)[0].tolist() == [[7, 7], REST, REST, [7, 7], REST]
    assert envs.fork([3], 2).tolist() == [1, 2]


def test_ended_roots_wait_in_their_lowest_last_slot_until_the_next_step():
    envs = make(6, 3)
    envs.fork([2, 0, 1])  # roots 0 1 2 2 0 1
    envs.step([ON, CUT, ON, ON, END, ON])  # roots 0 and 1 each lose one branch
    assert ids(envs) == [0, None, 2, 3, None, 5]
    info = envs.step([ON, 9, END, CUT, 9, END])[4]  # roots 1 and 2 end
    assert ids(envs) == [0, None, ~2, None, None, ~5]
    assert info["live"].tolist() == [True] + [False] * 5
    assert envs.roots.tolist() == [0, -1, 2, -1, -1, 1]
    assert envs.observe()[[2, 5]].tolist() == [[16, 7], [16, 7]]
    assert envs.fork([0]).tolist() == [1]  # what is reserved stays so
    seen, reward, terminated, truncated, info = envs.step([ON, ON, 9, 9, 9, 9])
    assert seen.tolist() == [[8, 8], [8, 8], [5, 5], REST, REST, [5, 5]]
    assert reward.tolist() == [1, 1, 0, 0, 0, 0]
    assert not (terminated.any() or truncated.any() or info["solved"].any())
    assert ids(envs) == [0, 6, 7, None, None, 8]  # ascending slot order
    for slot, seed in ((2, 102), (5, 101)):
        assert column(envs, "key")[slot] == key(episode_key(seed, 1))
        assert column(envs, "parent_id")[slot] == -1
    assert column(envs, "episode") == [0, 1, 1]


def test_same_step_restarts_at_once_and_keeps_the_last_observation_in_the_info():
    envs = make(6, 3, SAME)
    envs.fork([2, 0, 1])
    envs.step([ON, CUT, ON, ON, END, ON])
    seen, reward, terminated, truncated, info = envs.step([ON, 9, END, CUT, 9, END])
    assert seen.tolist() == [[7, 7], REST, [5, 5], [6, 7], REST, [5, 5]]
    assert reward.tolist() == [1, 0, 10, 0, 0, 10]
    assert np.flatnonzero(terminated).tolist() == [2, 5]
    assert np.flatnonzero(truncated).tolist() == [3]
    assert ids(envs) == [0, None, 6, None, None, 7]
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == terminated.tolist()
    assert [row if row is None else row.tolist() for row in info["final_obs"]] == (
        [None, None, [16, 7]] * 2
    )
    assert info["final_info"]["solved"].tolist() == terminated.tolist()
    assert info["live"].tolist() == [True, False, True, False, False, True]


@pytest.mark.parametrize("mode", [NEXT, SAME])
@pytest.mark.parametrize("by", ["slots", "mask"])
def test_a_prune_that_ends_a_root_restarts_it_at_the_next_step(mode, by):
    envs = make(6, 2, mode)
    envs.fork([1, 0, 1])  # roots 0 1 1 0 1
    envs.step([ON] * 6)

    def prune(slots):
        envs.prune(slots if by == "slots" else np.isin(np.arange(6), [*slots, 5]))

    prune([1])
    assert ids(envs) == [0, None, 2, 3, 4, None]
    prune([4, 2])
    assert ids(envs) == [0, None, ~2, 3, None, None]
    if by == "mask":
        prune([2])  # a mask may cover what waits
    seen, reward, terminated, truncated, info = envs.step([ON] * 6)
    assert seen.tolist() == [[7, 7], REST, [5, 5], [7, 7], REST, REST]
    assert reward.tolist() == [1, 0, 0, 1, 0, 0]
    assert not (terminated.any() or truncated.any())
    assert "final_obs" not in info
    assert ids(envs) == [0, None, 5, 3, None, None]
    pruned = envs.trajectories([1, 2, 4])
    assert pruned.pruned.tolist() == pruned.truncated.tolist() == [True] * 3
    assert pruned.length.tolist() == [1, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_compact_moves_the_branches_and_what_is_reserved(mode):
    envs = make(7, 2, mode)
    envs.fork([0, 0, 1])  # roots 0 1 0 0 1
    envs.step([END, ON, ON, CUT, ON, 9, 9])
    envs.prune([1, 4])  # root 1 is over
    before, seen = bits(envs), envs.observe()
    source = envs.compact()
    assert source.dtype == np.int32
    kept = {NEXT: [1, 2], SAME: [1, 2], DISABLED: [2]}[mode]
    assert source.tolist() == kept + [-1] * (7 - len(kept))
    assert ids(envs) == {DISABLED: [2]}.get(mode, [~1, 2]) + [None] * (7 - len(kept))
    for name, values in bits(envs).items():
        assert torch.equal(values[: len(kept)], before[name][kept]), name
    assert envs.observe()[: len(kept)].tolist() == seen[kept].tolist()
    assert envs.compact().tolist()[: len(kept)] == list(range(len(kept)))
    envs.step([ON] * 7)
    assert ids(envs)[: len(kept)] == {DISABLED: [2]}.get(mode, [5, 2])
    assert envs.trajectories([0, 2]).length.tolist() == [1, 2]


def test_disabled_keeps_ended_branches_until_a_prune_or_a_mask():
    envs = make(6, 2, DISABLED)
    envs.fork([0, 1, 0])  # roots 0 1 0 1 0
    info = envs.step([END, ON, CUT, END, ON, 9])[4]
    assert ids(envs) == [~0, 1, ~2, ~3, 4, None]
    assert info["live"].tolist() == [False, True, False, False, True, False]
    seen = envs.step([9, END, 9, 9, END, 9])[0]
    assert seen.tolist() == [REST, [16, 7], REST, REST, [16, 7], REST]
    assert envs.observe()[[0, 2, 3]].tolist() == [[15, 6], [5, 6], [15, 6]]
    envs.step([9] * 6)
    assert ids(envs) == [~0, ~1, ~2, ~3, ~4, None]
    envs.prune([3])
    assert ids(envs) == [~0, ~1, ~2, None, ~4, None]
    mask = np.array([False, False, True, True, True, True])
    seen, info = envs.reset(options={"reset_mask": mask})
    assert ids(envs) == [None, ~1, 5, None, None, None]  # root 0, in its lowest masked slot
    assert seen.tolist() == [REST, [16, 7], [5, 5], REST, REST, REST]
    assert info["live"].tolist() == [False, False, True, False, False, False]
    envs.reset(options={"reset_mask": ~mask})
    assert ids(envs) == [None, 6, 5, None, None, None]
    assert column(envs, "episode") == [1, 1]
    assert envs.trajectories([1, 3]).pruned.tolist() == [False, False]


@pytest.mark.parametrize("mode", MODES)
def test_one_slot(mode):
    envs = make(1, 1, mode)
    assert envs.step([ON])[0].tolist() == [[6, 6]]
    assert envs.compact().tolist() == [0]
    envs.prune([0])
    assert ids(envs) == [None if mode == DISABLED else ~0]
    envs.step([ON])
    assert ids(envs) == [None if mode == DISABLED else 1]
    envs.reset()
    assert ids(envs) == [1 if mode == DISABLED else 2]
    assert envs.step([END])[2].tolist() == [True]


@pytest.mark.parametrize("mode", MODES)
def test_a_full_frontier_of_one_root_ends_and_starts_over(mode):
    envs = make(97, 1, mode)
    envs.fork([0], 96)
    assert envs.step([ON] * 97)[1].tolist() == [1] * 97
    terminated, _, info = envs.step([END] * 97)[2:]
    assert terminated.all()
    assert info["live"].tolist() == [mode == SAME] + [False] * 96
    paths = envs.trajectories(np.arange(97))
    assert paths.reward.tolist() == [[1, 10]] * 97
    assert paths.terminated.all()
    envs.reset(options={"reset_mask": np.ones(97, bool)})
    assert ids(envs) == [98 if mode == SAME else 97] + [None] * 96
