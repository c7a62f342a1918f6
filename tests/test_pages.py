"""Paged state through the runtime: the same rules with a dense field are the truth."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tape import Tape

from branchrt_gym import (
    Beam,
    BestFirst,
    BranchEnv,
    BranchingVectorEnv,
    Contract,
    Snapshot,
    Transition,
    branch,
    branch_step,
    load,
    paged,
    save,
    search,
    shared,
)
from branchrt_gym.errors import ContractError, PagePoolFullError, SaveFormatError
from branchrt_gym.slots import FREE

INT = torch.int32


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


def test_a_full_pool_may_be_made_room_in_by_pruning():
    asked = []

    def worst(frontier):
        live = frontier.live.nonzero().squeeze(1)
        asked.append(len(live))
        return live[frontier.state["score"][live].argsort(stable=True)[:3]]

    options = {"rules": {"ends": False}, "page_capacity": 40, "when_full": worst}
    options["autoreset_mode"] = "Disabled"
    dense, paged_ = pair(**options)
    for envs in (dense, paged_):
        envs.reset(seed=1)
        envs.fork([0, 1, 2, 3], 5)
    for _ in range(3):
        live = paged_.live
        got = paged_.step(torch.ones(24, dtype=torch.int64))
        gone = live & ~paged_.live
        dense.prune(gone)
        want = dense.step(torch.ones(24, dtype=torch.int64))
        assert not bool(got[1][gone].any())
        rows = paged_.live
        assert torch.equal(got[0][rows], want[0][rows]) and torch.equal(rows, dense.live)
        same(dense, paged_)
    assert asked and int(paged_.live.sum()) == 24 - 3 * len(asked)

    paged_.when_full = lambda frontier: []
    with pytest.raises(PagePoolFullError):
        for _ in range(30):
            paged_.fork(paged_.live.nonzero().squeeze(1)[:1])
            paged_.step(torch.ones(24, dtype=torch.int64))


def test_a_snapshot_holds_each_page_once(tmp_path):
    _, paged_ = pair(rules={"width": 400, "page_size": 40, "ends": False})
    paged_.reset(seed=1)
    paged_.step(torch.ones(24, dtype=torch.int64))
    paged_.fork([0, 1, 2, 3], 5)  # who share what was written before
    pool = paged_.frontier.pages["own"]
    used = pool.reachable(paged_.frontier.status != FREE)
    path = tmp_path / "frontier"
    save(paged_.frontier, path)
    taken = paged_.snapshot()
    assert taken.tensors["pages.own.pool"].shape == (used, 40) and used <= 4 * 3
    again = load(path, paged_.env.contract)
    every = torch.arange(400).expand(24, -1)
    theirs = again.branches().pages["own"].read(every)
    assert torch.equal(theirs, whole(paged_))
    again.pages["own"].invariants(again.status != FREE)
    before = whole(paged_)
    paged_.step(torch.ones(24, dtype=torch.int64))
    paged_.restore(taken)
    assert torch.equal(whole(paged_), before)
    small = load(path, paged_.env.contract)
    small.pages["own"].grows = False
    broken = dict(taken.tensors)
    broken["pages.own.table"] = broken["pages.own.table"] + 1000
    with pytest.raises(SaveFormatError, match="names pages"):
        Snapshot(taken.header, broken).put(small)


class Marks(BranchEnv):
    """Each action writes an entry, and so takes a page, of its own."""

    reward_dtype = torch.int32
    uses_key = False
    single_observation_space = spaces.Box(-(10**6), 10**6, (4,), np.int32)
    single_action_space = spaces.Discrete(4)
    contract = Contract({"marks": paged((4,), INT, page_size=1), "score": branch((), INT)})

    def initial_shared(self, keys):
        return {}

    def initial(self, shared, context_index, keys):
        return {"score": torch.zeros_like(keys, dtype=INT)}

    def transition(self, shared, branches, action):
        score = branches.state["score"]
        never = torch.zeros_like(score, dtype=torch.bool)
        runs = branches.pages["marks"].write(action, (score * 10 + action + 1).to(INT))
        return Transition({"score": score + 1}, score, never, never, never, pages={"marks": runs})

    def observation(self, shared, branches):
        return branches.pages["marks"].read(torch.arange(4).expand(len(branches.depth), 4))


def test_a_refused_expansion_takes_no_page_from_its_parents():
    envs = BranchingVectorEnv(Marks(), 5, num_roots=2, num_contexts=1, page_capacity=3)
    envs.reset(seed=0)
    envs.fork([0])
    envs.step([2, 3, 2, 3, 3])  # all three pages
    with pytest.raises(PagePoolFullError):
        envs.branch_step(policy=Beam(1))
    envs.frontier.pages["marks"].invariants(envs.frontier.status != FREE)
    with pytest.raises(PagePoolFullError, match="needs 1 more pages and 0 of 3 are free"):
        envs.step([0, 3, 2, 0, 0])
    assert envs.observe()[:3].tolist() == [[0, 0, 3, 0], [0, 0, 0, 4], [0, 0, 3, 0]]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"page_capacity": "3"}, "`page_capacity` is '3'"),
        ({"page_capacity": -1}, "`page_capacity` is -1"),
        ({"when_full": 5}, "`when_full` is int"),
    ],
)
def test_arguments_that_cannot_be(wrong, text):
    with pytest.raises((TypeError, ValueError), match=text):
        BranchingVectorEnv(Tape(), 3, **wrong)


def test_what_when_full_returns_is_named():
    envs = BranchingVectorEnv(Tape(ends=False), 3, page_capacity=0, when_full=lambda frontier: None)
    envs.reset(seed=0)
    with pytest.raises(TypeError, match="`when_full` failed: "):
        envs.step([0, 0, 0])
