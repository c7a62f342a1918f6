"""`settle` against its definition, on populations of every kind, and with nothing ever forked."""

import numpy as np
import pytest
import torch

from branchrt_gym import DONE, FREE, LIVE, Contract, Frontier, branch
from branchrt_gym.autoreset import _each_root_in_its_slot, settle
from branchrt_gym.oracle import root_key


def population(slots, roots, root, status):
    frontier = Frontier(slots, roots, Contract({"x": branch((), torch.int32)}))
    frontier.start(0, state={"x": torch.arange(roots, dtype=torch.int32)})
    frontier.root.copy_(torch.as_tensor(root))
    frontier.status.copy_(torch.as_tensor(status))
    return frontier


def expected(root, status, ended):
    """The status of each slot after, and which are reserved, in plain Python."""
    after, reserved = list(status), [False] * len(status)
    for r in set(root):
        mine = [slot for slot in range(len(root)) if root[slot] == r]
        over = [slot for slot in mine if ended[slot]]
        if over and not any(status[slot] == LIVE and not ended[slot] for slot in mine):
            reserved[over[0]] = True
        for slot in over:
            after[slot] = DONE if reserved[slot] else FREE
    return after, reserved


@pytest.mark.parametrize("slots", [1, 2, 7, 40])
@pytest.mark.parametrize("kind", ["in place", "shuffled", "forked", "fewer roots"])
def test_settle(slots, kind):
    chance = np.random.default_rng(slots)
    for _ in range(30):
        roots = max(1, slots // 3) if kind == "fewer roots" else slots
        root = np.arange(slots)
        if kind == "shuffled":
            root = chance.permutation(slots)
        elif kind != "in place":
            root = chance.integers(roots, size=slots)
        status = chance.choice([FREE, LIVE, LIVE, DONE], size=slots)
        ended = (status == LIVE) & (chance.random(slots) < 0.5)
        frontier = population(slots, roots, root, status)
        reserved = settle(frontier, torch.from_numpy(ended))
        after, wanted = expected(root.tolist(), status.tolist(), ended.tolist())
        assert frontier.status.tolist() == after and reserved.tolist() == wanted


def test_a_population_is_known_to_be_unforked():
    """Free slots count: one that a fork filled and a prune emptied still tells of its root."""
    unforked = population(4, 4, range(4), [LIVE, DONE, FREE, LIVE])
    assert _each_root_in_its_slot(unforked)
    assert not _each_root_in_its_slot(population(4, 4, [0, 1, 1, 3], [LIVE, LIVE, LIVE, LIVE]))
    assert not _each_root_in_its_slot(population(4, 3, [0, 1, 2, 2], [LIVE, LIVE, LIVE, LIVE]))
    unforked.prune([1])
    unforked.fork([0])
    assert unforked.root.tolist() == [0, 0, 2, 3] and not _each_root_in_its_slot(unforked)


def test_the_roots_keys_follow_the_seeds():
    frontier = population(4, 3, [0, 1, 2, 0], [LIVE, LIVE, LIVE, FREE])
    for seeds in ([0, 1, 2], [0, 1, 2], [0, 9, 2], [0, 1, 2]):
        frontier.seed.copy_(torch.tensor(seeds))
        keys = [key % 2**64 for key in frontier.root_keys().tolist()]
        assert keys == [root_key(seed) for seed in seeds]
