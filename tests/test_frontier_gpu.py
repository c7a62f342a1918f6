"""The population on a CUDA device: equal to the CPU, without waiting, errors at the next look."""

import numpy as np
import pytest
import torch

from branchrt_gym import Beam, BranchingVectorEnv, DeepTree, search
from branchrt_gym.errors import FrontierFullError, SlotError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def make(device, **kwargs):
    env = DeepTree(width=997, depth=6)
    return BranchingVectorEnv(env, 64, num_roots=8, output="torch", device=device, **kwargs)


def columns(envs):
    taken = envs.snapshot()
    return {name: values.cpu() for name, values in taken.tensors.items()}


def test_a_cuda_population_equals_the_cpu():
    rng = np.random.default_rng(0)
    pair = make("cpu"), make("cuda")
    for envs in pair:
        envs.reset(seed=3)
    for round_ in range(40):
        live = pair[0].live
        parents = live.nonzero().squeeze(1)
        room = 64 - int((pair[0].frontier.status != 0).sum())
        parents = parents[: room // 2]
        actions = torch.from_numpy(rng.integers(0, 4, 64))
        cut = torch.from_numpy(rng.random(64) < 0.1)
        outs = []
        for envs in pair:
            envs.fork(parents.to(envs.device), 2)
            if round_ % 5 == 4:
                envs.prune(cut.to(envs.device))
            if round_ % 7 == 6:
                envs.compact()
            outs.append(envs.step(actions.to(envs.device)))
        for cpu, cuda in zip(outs[0][:4], outs[1][:4], strict=True):
            assert torch.equal(cpu, cuda.cpu())
        assert torch.equal(outs[0][4]["live"], outs[1][4]["live"].cpu())
    used = pair[0].frontier.status != 0
    cpu, cuda = columns(pair[0]), columns(pair[1])
    for name, values in cpu.items():
        if name.startswith(("column.", "state.")):
            assert torch.equal(values[used], cuda[name][used]), name
        elif not name.startswith("lineage."):
            assert torch.equal(values, cuda[name]), name


def test_step_fork_prune_compact_do_not_wait():
    envs = make("cuda")
    envs.reset(seed=0)
    actions = torch.zeros(64, dtype=torch.int64, device="cuda")
    parents = torch.arange(8, device="cuda")
    mask = torch.arange(64, device="cuda") % 5 == 0

    def once():
        envs.fork(parents, 2)
        envs.step(actions)
        envs.prune(mask)
        envs.compact()

    once()  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        once()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("parents", "counts", "error"),
    [([9], 1, SlotError), ([0, 1], 30, FrontierFullError), ([64], 1, SlotError)],
)
def test_a_fork_that_cannot_be_changes_nothing_and_raises_at_the_next_look(parents, counts, error):
    envs = make("cuda")
    envs.reset(seed=0)
    before = columns(envs)
    slots = envs.fork(torch.tensor(parents, device="cuda"), counts)
    assert bool((slots == -1).all())
    with pytest.raises(error):
        _ = envs.live
    after = columns(envs)
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(error):
        make_debug = make("cuda", debug=True)
        make_debug.reset(seed=0)
        make_debug.fork(torch.tensor(parents, device="cuda"), counts)


def test_search_equals_the_cpu():
    env = DeepTree(width=997, depth=9, fanout=3)
    found = [search(env, 7, Beam(5), 9, device=device) for device in ("cpu", "cuda")]
    assert torch.equal(found[0].score, found[1].score.cpu())
    assert torch.equal(found[0].population.branch_id, found[1].population.branch_id.cpu())
    paths = [result.trajectories() for result in found]
    assert torch.equal(paths[0].action, paths[1].action.cpu())
    assert torch.equal(paths[0].reward, paths[1].reward.cpu())
