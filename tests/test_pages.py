"""Paged state through the runtime: the same rules with a dense field are the truth."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from branchrt_gym import (
    Beam,
    BestFirst,
    BranchEnv,
    BranchingVectorEnv,
    Contract,
    Transition,
    branch,
    branch_step,
    paged,
    read_shared,
    search,
    shared,
)
from branchrt_gym.errors import ContractError, PagePoolFullError
from branchrt_gym.kernels import bounded, fold
from branchrt_gym.slots import FREE


class Tape(BranchEnv):
    """A tape of which each step overwrites a run and a mark; the score is what was there before.

    `dense` keeps the tape in a `branch` field, the other in pages.
    """

    reward_dtype = torch.int32

    def __init__(self, width=37, page_size=5, based=True, dense=False, ends=True):
        self.width, self.based, self.dense, self.ends = width, based, dense, ends
        own = branch((width,), torch.int16)
        if not dense:
            initial = "tape" if based else None
            own = paged((width,), torch.int16, initial=initial, page_size=page_size)
        self.contract = Contract(
            {
                "tape": shared((width,), torch.int16),
                "own": own,
                "score": branch((), torch.int32),
                "head": branch((), torch.int32),
            }
        )
        self.single_observation_space = spaces.Box(-(2**31), 2**31 - 1, (4,), np.int32)
        self.single_action_space = spaces.Discrete(3)

    def initial_shared(self, keys):
        at = torch.arange(self.width, device=keys.device)
        return {"tape": bounded(fold(keys[:, None], at), 100).to(torch.int16)}

    def initial(self, shared, context_index, keys):
        zero = torch.zeros_like(keys, dtype=torch.int32)
        state = {"score": zero, "head": bounded(fold(keys, 3), self.width).to(torch.int32)}
        if self.dense:
            own = shared["tape"][context_index]
            state["own"] = own if self.based else torch.zeros_like(own)
        return state

    def read(self, branches, index):
        if not self.dense:
            return branches.pages["own"].read(index)
        own = branches.state["own"]
        return own.gather(1, index if index.ndim == 2 else index[:, None]).view(index.shape)

    def transition(self, shared, branches, action):
        head = branches.state["head"].long()
        around = (head[:, None] + torch.arange(4, device=head.device)) % self.width
        seen = self.read(branches, around).to(torch.int32).sum(1, dtype=torch.int32)
        base = read_shared(shared["tape"], branches.context_index, head).to(torch.int32)
        reward = (seen + base + action.to(torch.int32)) % 17 - 6
        key = fold(branches.key, action)
        length = bounded(fold(key, 1), 9)
        start = bounded(fold(key, 2), self.width - 8)
        value = bounded(fold(key[:, None], torch.arange(8, device=key.device)), 90).to(torch.int16)
        # A run of 0 to 8 entries, and a mark at the end, which the run may not reach.
        mark = torch.where(start + 8 < self.width, self.width - 1, -1)
        starts = torch.stack([start, mark], 1)
        values = torch.stack([value, value.flip(1)], 1)
        lengths = torch.stack([length, torch.ones_like(length)], 1)
        head = (head + 7 * action + 1) % self.width
        state = {"score": branches.state["score"] + reward, "head": head.to(torch.int32)}
        pages = {}
        if self.dense:
            at = torch.arange(self.width, device=head.device)
            own = branches.state["own"]
            inside = (at >= start[:, None]) & (at < (start + length)[:, None])
            own = torch.where(inside, value.gather(1, (at - start[:, None]).clamp(0, 7)), own)
            marked = at == mark[:, None]
            state["own"] = torch.where(marked, values[:, 1, :1], own)
        else:
            pages["own"] = branches.pages["own"].write(starts, values, lengths)
        roll = bounded(fold(key, 5), 40)
        done = (roll == 0) & self.ends
        solved = (roll == 1) & self.ends
        return Transition(state, reward, done, torch.zeros_like(done), solved, pages=pages)

    def observation(self, shared, branches):
        head = branches.state["head"].long()
        last = torch.full_like(head, self.width - 1)
        at = torch.stack([head, last, (head * 5) % self.width], 1)
        seen = self.read(branches, at).to(torch.int32)
        return torch.cat([seen, branches.state["score"][:, None]], 1)


def whole(envs):
    """Every branch's tape."""
    frontier = envs.frontier
    if envs.env.rules.dense:
        return frontier.state["own"]
    width = envs.env.rules.width
    every = torch.arange(width).expand(envs.num_envs, -1)
    return frontier.branches().pages["own"].read(every)


def pair(**more):
    options = {"num_roots": 4, "num_contexts": 2, "output": "torch", "debug": True, **more}
    rules = options.pop("rules", {})
    capacity = options.pop("page_capacity", None)
    dense = BranchingVectorEnv(Tape(dense=True, **rules), 24, **options)
    return dense, BranchingVectorEnv(Tape(**rules), 24, page_capacity=capacity, **options)


def same(dense, paged_):
    live = dense.frontier.status != FREE
    assert torch.equal(dense.frontier.status, paged_.frontier.status)
    assert torch.equal(dense.frontier.branch_id[live], paged_.frontier.branch_id[live])
    assert torch.equal(whole(dense)[live], whole(paged_)[live])
    for pool in paged_.frontier.pages.values():
        pool.invariants(live)


@pytest.mark.parametrize("based", [True, False], ids=["based", "zeros"])
@pytest.mark.parametrize("page_size", [1, 5, None])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_random_programs_equal_a_dense_field(mode, page_size, based):
    rules = {"page_size": page_size, "based": based}
    dense, paged_ = pair(rules=rules, autoreset_mode=mode)
    chance = np.random.default_rng(5)
    for envs in (dense, paged_):
        envs.reset(seed=3)
    for number in range(60):
        kind = chance.integers(9)
        live = dense.live.nonzero().squeeze(1)
        free = int((dense.frontier.status == FREE).sum())
        done = [envs.frontier.status == 2 for envs in (dense, paged_)]
        if kind < 3 and len(live) and free:
            parents = live[torch.from_numpy(chance.integers(len(live), size=min(free, 5)))]
            for envs in (dense, paged_):
                envs.fork(parents, rng=("split", "shared")[number % 2])
        elif kind == 3 and len(live) > 6:
            for envs in (dense, paged_):
                envs.prune(live[::3])
        elif kind == 4:
            for envs in (dense, paged_):
                envs.compact()
        elif kind == 5 and len(live) and free > 12:
            for envs in (dense, paged_):
                branch_step(envs.frontier, envs.env, policy=Beam(2))
        elif kind == 6:
            for envs in (dense, paged_):
                before = envs.snapshot()
                envs.step(torch.zeros(24, dtype=torch.int64))
                envs.restore(before)
        elif kind == 7 and mode == "Disabled" and bool(done[0].any()):
            for envs, mask in zip((dense, paged_), done, strict=True):
                envs.prune(mask)
        elif not len(live) and mode == "Disabled":
            for envs in (dense, paged_):
                envs.reset()
        else:
            actions = torch.from_numpy(chance.integers(3, size=24))
            got, want = (envs.step(actions) for envs in (paged_, dense))
            for mine, his in zip(got[:4], want[:4], strict=True):
                assert torch.equal(mine, his)
        same(dense, paged_)
    pool = paged_.frontier.pages["own"]
    held = paged_.frontier.status != FREE
    pool.reclaim(held)
    assert pool.in_use == pool.reachable(held)


@pytest.mark.parametrize("policy", [Beam(5), BestFirst(12, 4)], ids=["beam", "best first"])
@pytest.mark.parametrize("stop_solved", [True, False])
def test_searches_equal_those_of_a_dense_field(policy, stop_solved):
    ours, theirs = (
        search(Tape(dense=dense), 6, policy, 9, num_contexts=3, stop_solved=stop_solved)
        for dense in (False, True)
    )
    held = theirs.population.branch_id >= 0
    assert torch.equal(ours.population.branch_id, theirs.population.branch_id)
    assert torch.equal(ours.score, theirs.score)
    tapes = ours.population.pages["own"].read(torch.arange(37).expand(held.numel(), -1))
    rows = held.flatten()
    assert torch.equal(tapes[rows], theirs.population.state["own"][rows])
    ids = theirs.population.branch_id[held]
    mine, his = ours.trajectories(ids), theirs.trajectories(ids)
    assert torch.equal(mine.action, his.action) and torch.equal(mine.reward, his.reward)


def test_a_full_pool_is_an_error_that_changes_nothing():
    dense, paged_ = pair(page_capacity=10, rules={"ends": False})
    del dense
    paged_.reset(seed=1)
    paged_.fork([0, 1, 2, 3], 5)
    before = paged_.snapshot()
    with pytest.raises(PagePoolFullError, match=r"`own` needs \d+ more pages and 10 of 10 are"):
        paged_.step(torch.ones(24, dtype=torch.int64))
    after = paged_.snapshot()
    assert all(torch.equal(after.tensors[name], x) for name, x in before.tensors.items())
    with pytest.raises(PagePoolFullError):
        branch_step(paged_.frontier, paged_.env, policy=Beam(4))
    after = paged_.snapshot()
    assert all(torch.equal(after.tensors[name], x) for name, x in before.tensors.items())
    paged_.prune(list(range(1, 24)))
    paged_.step(torch.ones(24, dtype=torch.int64))


def test_exhaustion_reclaims_first():
    dense, paged_ = pair(page_capacity=90, rules={"ends": False})
    for envs in (dense, paged_):
        envs.reset(seed=1)
    for _ in range(30):
        for envs in (dense, paged_):
            envs.fork([0, 1, 2, 3])
            envs.step(torch.ones(24, dtype=torch.int64))
            envs.prune([4, 5, 6, 7])
        same(dense, paged_)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"own": paged((3, 4), torch.int8)}, "flatten it"),
        ({"own": paged((0,), torch.int8)}, "at least 1"),
        ({"own": paged((4,), torch.int8, page_size=0)}, "page_size 0"),
        ({"own": paged((4,), torch.int8, initial="base")}, "'base', which is no field"),
        (
            {"base": shared((4,), torch.int16), "own": paged((4,), torch.int8, initial="base")},
            "a shared field of torch.int16",
        ),
    ],
)
def test_declarations_that_cannot_be(fields, text):
    with pytest.raises(ContractError, match=text):
        Contract(fields)


@pytest.mark.parametrize(
    ("start", "value", "length", "text"),
    [
        ([33], [[1, 2, 3, 4, 5]], None, "writes entries 33 … 37"),
        ([[3, 4]], [[[1, 2], [3, 4]]], None, "twice in one step"),
        ([[3, 4]], [[[1, 2], [3, 4]]], [[1, 3]], "at most 2, the values"),
    ],
)
def test_writes_that_cannot_be(start, value, length, text):
    class Wrong(Tape):
        def transition(self, shared, branches, action):
            step = super().transition(shared, branches, action)
            count = len(action)

            def all_rows(given, dtype):
                given = torch.tensor(given, dtype=dtype)
                return given.expand(count, *given.shape[1:]).contiguous()

            runs = branches.pages["own"].write(
                all_rows(start, torch.int64),
                all_rows(value, torch.int16),
                None if length is None else all_rows(length, torch.int64),
            )
            return step._replace(pages={"own": runs})

    envs = BranchingVectorEnv(Wrong(), 3, output="torch")
    envs.reset(seed=0)
    with pytest.raises(ContractError, match=text):
        envs.step(torch.zeros(3, dtype=torch.int64))
