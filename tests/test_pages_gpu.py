"""Paged state on a GPU: its kernels, against the same population on the CPU."""

import numpy as np
import pytest
import torch
from tape import Tape

from branchrt_gym import Beam, BranchingVectorEnv, branch_step, search
from branchrt_gym.kernels import resolve
from branchrt_gym.slots import FREE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def whole(envs):
    view = envs.frontier.branches().pages["own"]
    every = torch.arange(view.width, device=view.table.device).expand(envs.num_envs, -1)
    return view.read(every).cpu()


@pytest.mark.parametrize("capacity", [None, 400])
@pytest.mark.parametrize("based", [True, False], ids=["based", "zeros"])
@pytest.mark.parametrize("page_size", [1, 5, None])
def test_a_random_program_equals_the_cpus(page_size, based, capacity):
    slots = 60
    pair = [
        BranchingVectorEnv(
            Tape(page_size=page_size, based=based),
            slots,
            num_roots=4,
            num_contexts=2,
            output="torch",
            device=device,
            page_capacity=None if page_size == 1 else capacity,
        )
        for device in ("cpu", "cuda")
    ]
    assert resolve("auto", pair[1].frontier.status) == "triton"
    chance = np.random.default_rng(2)
    for envs in pair:
        envs.reset(seed=3)
    for _ in range(60):
        kind = chance.integers(6)
        live = pair[0].live.nonzero().squeeze(1)
        free = int((pair[0].frontier.status == FREE).sum())
        if kind < 2 and len(live) and free:
            parents = live[torch.from_numpy(chance.integers(len(live), size=min(free, 9)))]
            for envs in pair:
                envs.fork(parents.to(envs.device))
        elif kind == 2 and len(live) > 12:
            for envs in pair:
                envs.prune(live[::3].to(envs.device))
        elif kind == 3:
            for envs in pair:
                envs.compact()
        elif kind == 4 and len(live) and free > 30:
            for envs in pair:
                branch_step(envs.frontier, envs.env, policy=Beam(3))
        else:
            actions = torch.from_numpy(chance.integers(3, size=slots))
            got = [envs.step(actions.to(envs.device)) for envs in pair]
            for mine, his in zip(*(found[:4] for found in got), strict=True):
                assert torch.equal(mine, his.cpu())
        held = pair[0].frontier.status != FREE
        assert torch.equal(held, (pair[1].frontier.status != FREE).cpu())
        assert torch.equal(*(whole(envs)[held] for envs in pair))
        pair[1].frontier.pages["own"].invariants(pair[1].frontier.status != FREE)
    pool = pair[1].frontier.pages["own"]
    held = pair[1].frontier.status != FREE
    pool.reclaim(held)
    assert pool.in_use == pool.reachable(held)


def test_forks_writes_and_reclaiming_do_not_wait():
    envs = BranchingVectorEnv(
        Tape(), 512, num_roots=4, output="torch", device="cuda", page_capacity=1 << 16
    )
    envs.reset(seed=0)
    parents = torch.arange(4, device="cuda")
    actions = torch.zeros(512, dtype=torch.int64, device="cuda")
    for _ in range(3):
        envs.fork(parents, 3)
        envs.step(actions)
    pool = envs.frontier.pages["own"]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        envs.fork(parents, 3)
        envs.step(actions)
        pool.reclaim(envs.frontier.status != FREE)
        envs.step(actions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    pool.invariants(envs.frontier.status != FREE)


def test_a_search_equals_the_cpus():
    found = [search(Tape(), 5, Beam(6), 8, device=device) for device in ("cpu", "cuda")]
    ids = [result.population.branch_id.cpu() for result in found]
    assert torch.equal(*ids) and torch.equal(found[0].score, found[1].score.cpu())
    rows = (ids[0] >= 0).flatten()
    tapes = [
        result.population.pages["own"]
        .read(torch.arange(37, device=result.score.device).expand(len(rows), -1))
        .cpu()[rows]
        for result in found
    ]
    assert torch.equal(*tapes)
    assert found[1].tier == "eager" and "paged" in found[1].note
