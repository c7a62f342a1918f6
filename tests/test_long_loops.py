"""Long autoreset loops: memory holds steady, and no finished trajectory is lost too early."""

import gc
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from branchrt_gym import Blackjack, BranchingVectorEnv

SLOTS, ROOTS = 4096, 3072
STEPS, WARM_UP = 2500, 300
CAPACITY = 2**18  # full every 70 steps or so
STATM = Path("/proc/self/statm")


def resident():
    """Bytes of the process in memory; 0 where the system does not say so."""
    return int(STATM.read_text().split()[1]) * 4096 if STATM.exists() else 0


def stored():
    """Bytes of all tensors there are."""
    gc.collect()
    storages = [each.untyped_storage() for each in gc.get_objects() if type(each) is torch.Tensor]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.slow
def test_ten_million_steps_take_no_memory():
    envs = BranchingVectorEnv(
        Blackjack(), SLOTS, num_roots=ROOTS, output="torch", lineage_capacity=CAPACITY
    )
    envs.reset(seed=0)
    lineage, chance = envs.frontier.lineage, torch.Generator().manual_seed(0)
    reclaimed = last = 0
    for step in range(STEPS):
        if step == WARM_UP:
            assert reclaimed > 1, "not warm"
            before = resident(), stored()
        if step % 8 == 0:
            free = int((envs.roots < 0).sum())
            envs.fork(envs.live.nonzero().squeeze(1)[: free // 2])
        if step % 8 == 4:
            envs.prune(torch.rand(SLOTS, generator=chance) < 0.1)
        envs.step(torch.randint(2, (SLOTS,), generator=chance))
        reclaimed += lineage.used < last
        last = lineage.used
    assert (STEPS - WARM_UP) * SLOTS > 8e6 and STEPS * SLOTS > 1e7
    assert int(envs.frontier.episode.min()) > 100
    assert reclaimed > 20
    # A leak of 4 bytes a step would be 34 MiB. The tensors are those there were, to the byte.
    assert resident() - before[0] < 2**25
    assert stored() == before[1]


class Diary:
    """What each branch of a vector env did, in plain lists."""

    def __init__(self, envs):
        self.envs = envs
        self.path = {}
        self.ended = {}
        self.root, self.episode, self.now = {}, {}, defaultdict(int)
        self.parents = self.ids()

    def ids(self):
        """Slot and id of each live branch; those that are new are entered."""
        frontier = self.envs.frontier
        columns = (frontier.branch_id, frontier.parent_id, frontier.root)
        columns = [column.tolist() for column in columns]
        live = {
            slot: [column[slot] for column in columns] for slot in np.flatnonzero(frontier.live)
        }
        for branch, parent, root in sorted(live.values()):
            if branch not in self.path:
                self.path[branch] = [*self.path[parent]] if parent >= 0 else []
                self.now[root] += parent < 0
                self.root[branch], self.episode[branch] = root, self.now[root]
        return {slot: branch for slot, (branch, _, _) in live.items()}

    def step(self, actions):
        before = self.ids()
        _, reward, terminated, *_ = self.envs.step(actions)
        for slot, branch in before.items():
            self.path[branch].append((actions[slot], reward[slot]))
            if terminated[slot]:
                self.ended[branch] = "terminated"
        self.ids()

    def prune(self, slots):
        for slot, branch in self.ids().items():
            if slot in slots:
                self.ended[branch] = "pruned"
        self.envs.prune(slots)

    def kept(self, branch):
        return self.episode[branch] >= self.now[self.root[branch]] - 1

    def compare(self):
        ids = [branch for branch in self.ended if self.kept(branch)]
        paths = self.envs.trajectories(ids)
        length, action, reward = paths.length.tolist(), paths.action, paths.reward
        for row, branch in enumerate(ids):
            steps = zip(action[row].tolist(), reward[row].tolist(), strict=True)
            assert [*steps][: length[row]] == self.path[branch], branch
            assert bool(paths.pruned[row]) == (self.ended[branch] == "pruned")
            assert bool(paths.terminated[row]) == (self.ended[branch] == "terminated")
        assert paths.root.tolist() == [self.root[branch] for branch in ids]
        gone = [branch for branch in self.path if not self.kept(branch)]
        for branch in gone[:2] + gone[-2:]:
            with pytest.raises(ValueError, match=rf"branch id \[{branch}\]"):
                self.envs.trajectories([*ids, branch])
        return len(ids), len(gone)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_last_two_episodes_of_each_root_can_be_asked_for(mode):
    envs = BranchingVectorEnv(
        Blackjack(), 60, num_roots=37, autoreset_mode=mode, lineage_capacity=700
    )
    envs.reset(seed=1)
    chance = np.random.default_rng(0)
    diary, compared = Diary(envs), []
    for step in range(300):
        live = np.flatnonzero(envs.live)
        free = int((envs.roots < 0).sum())
        if step % 3 == 0 and free:
            envs.fork(chance.choice(live, chance.integers(1, free + 1)))
        if step % 5 == 0:
            diary.prune(np.flatnonzero(envs.live & (chance.random(60) < 0.2)))
        if step % 7 == 0:
            envs.compact()
        diary.step(chance.integers(2, size=60))
        if step % 6 == 0:
            compared.append(diary.compare())
    assert min(kept for kept, _ in compared[5:]) >= 37
    assert compared[-1][1] > 1000
    assert envs.frontier.lineage.capacity == 700
