"""Random forks, writes and prunes of paged branches against an oracle that copies deeply."""

import os

import numpy as np
import torch

from branchrt_gym import Contract, Frontier, branch, paged, shared
from branchrt_gym.slots import FREE

OPERATIONS = int(os.environ.get("BRANCHRT_PAGE_OPERATIONS", "20000"))  # of single branches
SLOTS, ROOTS, WIDTH, PAGE = 256, 8, 101, 8
MILLION, INT = 1 << 20, torch.int32


def test_no_page_is_lost_and_none_is_wrong():
    contract = Contract(
        {
            "base": shared((WIDTH,), torch.int16),
            "own": paged((WIDTH,), torch.int16, initial="base", page_size=PAGE),
            "score": branch((), torch.int32),
        }
    )
    chance = np.random.default_rng(8)
    frontier = Frontier(SLOTS, ROOTS, contract, page_capacity=SLOTS * 13)
    base = chance.integers(-(2**15), 2**15, (2, WIDTH)).astype(np.int16)
    context = torch.arange(ROOTS) % 2
    score = torch.zeros(ROOTS, dtype=torch.int32)
    frontier.start(0, context, None, {"score": score}, {"base": torch.from_numpy(base)})
    held = {slot: base[slot % 2].copy() for slot in range(ROOTS)}  # the oracle: deep copies
    pool, every = frontier.pages["own"], torch.arange(WIDTH)
    done = 0
    while done < OPERATIONS:
        live = np.array(sorted(held))
        free = SLOTS - len(live)
        number = int(chance.integers(1, 65))
        kind = chance.integers(5)
        if kind == 0 and free:
            parents = chance.choice(live, min(number, free))
            slots = frontier.fork(parents.tolist()).tolist()
            for parent, slot in zip(parents, slots, strict=True):
                held[slot] = held[parent].copy()
            done += len(slots)
        elif kind == 1 and len(live) > ROOTS:
            gone = chance.choice(live, min(number, len(live) - ROOTS), replace=False)
            frontier.prune(gone.tolist())
            for slot in gone:
                del held[slot]
            done += len(gone)
        else:
            rows = chance.choice(live, min(number, len(live)), replace=False)
            longest = int(chance.choice([1, 1, 5, 40, WIDTH]))
            start = chance.integers(0, WIDTH - longest + 1, len(rows))
            length = chance.integers(0, longest + 1, len(rows))
            value = chance.integers(-(2**15), 2**15, (len(rows), longest)).astype(np.int16)
            view = frontier.branches(torch.from_numpy(rows)).pages["own"]
            given = (torch.from_numpy(x) for x in (start, value[:, None], length))
            first, runs, lengths = given
            writes = view.write(first[:, None], runs, lengths[:, None])
            slots = torch.from_numpy(rows)
            pool.make_room(writes, slots, frontier.status != FREE)
            pool.write(writes, slots, frontier.shared["base"], frontier.context_index)
            for row, begin, count, values in zip(rows, start, length, value, strict=True):
                held[row][begin : begin + count] = values[:count]
            done += len(rows)
        live = torch.tensor(sorted(held))
        found = frontier.branches(live).pages["own"].read(every.expand(len(live), -1)).numpy()
        assert np.array_equal(found, np.stack([held[int(slot)] for slot in live]))
        pool.invariants(frontier.status != FREE)
    pool.reclaim(frontier.status != FREE)
    assert pool.in_use == pool.reachable(frontier.status != FREE) <= pool.capacity
    frontier.prune(list(held))
    pool.reclaim(frontier.status != FREE)
    assert pool.in_use == 0


def test_a_page_that_a_million_branches_share():
    contract = Contract({"own": paged((8,), torch.int16, page_size=8), "score": branch((), INT)})
    frontier = Frontier(MILLION, 1, contract, page_capacity=4)
    frontier.start(0, state={"score": torch.zeros(1, dtype=INT)})
    pool = frontier.pages["own"]

    def write(slot, place, value):
        slots = torch.tensor([slot])
        view = frontier.branches(slots).pages["own"]
        writes = view.write(torch.tensor([place]), torch.tensor([value], dtype=torch.int16))
        pool.make_room(writes, slots, frontier.status != FREE)
        pool.write(writes, slots, None, frontier.context_index)

    write(0, 3, 7)
    frontier.fork([0], MILLION - 1)
    assert pool.in_use == 1
    write(MILLION // 2, 4, 9)
    write(MILLION // 2, 3, 8)  # in place, for it has the page for itself now
    write(0, 5, 1)
    assert pool.in_use == 3
    every = frontier.branches().pages["own"]
    found = torch.stack([every.read(torch.full((MILLION,), place)) for place in (3, 4, 5)], 1)
    assert found[MILLION // 2].tolist() == [8, 9, 0] and found[0].tolist() == [7, 0, 1]
    others = torch.ones(MILLION, dtype=torch.bool)
    others[[0, MILLION // 2]] = False
    assert found[others].unique(dim=0).tolist() == [[7, 0, 0]]
    frontier.prune([0, MILLION // 2])
    pool.reclaim(frontier.status != FREE)
    assert pool.in_use == 1
