"""The expansion as one kernel against `branch_step` in torch: every column of every branch."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from branchrt_gym import (
    DONE,
    FREE,
    Beam,
    BranchEnv,
    BranchingVectorEnv,
    Contract,
    DeepTree,
    SharedCounter,
    Transition,
    Verdicts,
    branch,
    branch_step,
    expand_fused,
    log,
    read_shared,
    shared,
)
from branchrt_gym.contract import TransitionKernel
from branchrt_gym.errors import FrontierFullError, LineageFullError
from branchrt_gym.kernels import bounded, fold

triton = pytest.importorskip("triton")
tl = triton.language

from branchrt_gym.kernels import expand_triton  # noqa: E402
from branchrt_gym.kernels.keys_triton import bounded_device, fold_device  # noqa: E402

DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            torch.cuda.is_available(), reason="Triton interprets only where there is no GPU"
        ),
    ),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


@triton.jit
def throw(shared, context, depth, key, state, action, params: tl.constexpr):
    weights, limit = shared
    wide, odd, score = state
    face = bounded_device(fold_device(key, 0), 6)
    reward = tl.load(weights + context * 6 + face) * action
    wide = fold_device(wide, action)
    odd = (odd != 0) ^ (face % 2 == 1)
    score = score + reward.to(tl.int64)
    terminated = face == 5
    truncated = (depth + 1 >= tl.load(limit)) & (face != 5)
    return (wide, odd, score), reward, terminated, truncated, score > params[0]


class Dice(BranchEnv):
    """Chance, actions that do not begin at 0, fields of three dtypes, a shared field for all."""

    reward_dtype = torch.float32

    def __init__(self, actions=3, solved_above=1 << 40, limit=4):
        self.solved_above, self.limit = solved_above, limit
        self.contract = Contract(
            {
                "weights": shared((6,), torch.float32),
                "limit": shared((1,), torch.int32, per_context=False),
                "wide": branch((), torch.int64),
                "odd": branch((), torch.bool),
                "score": branch((), torch.int64),
            }
        )
        self.single_observation_space = spaces.Box(-100, 100, (1,), np.float32)
        self.single_action_space = spaces.Discrete(actions, start=2)

    def initial_shared(self, keys):
        weights = bounded(fold(keys[:, None], torch.arange(6, device=keys.device)), 9)
        limit = torch.tensor([self.limit], dtype=torch.int32, device=keys.device)
        return {"weights": weights.to(torch.float32), "limit": limit}

    def initial(self, shared, context_index, keys):
        return {"wide": keys, "odd": keys > 0, "score": torch.zeros_like(keys)}

    def transition(self, shared, branches, action):
        state = branches.state
        face = bounded(fold(branches.key, 0), 6)
        reward = read_shared(shared["weights"], branches.context_index, face) * action
        score = state["score"] + reward.to(torch.int64)
        terminated = face == 5
        return Transition(
            state={
                "wide": fold(state["wide"], action),
                "odd": state["odd"] ^ (face % 2 == 1),
                "score": score,
            },
            reward=reward,
            terminated=terminated,
            truncated=(branches.depth + 1 >= shared["limit"]) & ~terminated,
            solved=score > self.solved_above,
        )

    def transition_kernel(self, device):
        return TransitionKernel(throw, (self.solved_above,))

    def observation(self, shared, branches):
        return branches.state["score"][:, None].to(torch.float32)


ENVS = {
    "tree": lambda: DeepTree(width=300, fanout=3, depth=9),
    "counter": lambda: SharedCounter(width=50, actions=5, depth=7, target=9),
    "dice": Dice,
    "one action": lambda: Dice(actions=1),
}


def population(env, slots, device, *, packed, live=None, capacity=1 << 12):
    """A frontier after forks, steps and, unless packed, prunes that leave gaps."""
    envs = BranchingVectorEnv(
        env,
        slots,
        num_roots=3,
        num_contexts=2,
        device=device,
        output="torch",
        autoreset_mode="Disabled",
        lineage_capacity=capacity,
    )
    envs.reset(seed=4)
    envs.fork([0, 1, 2], [2, 1, 3])
    envs.fork([1, 4], 1, rng="shared")
    chance = np.random.default_rng(0)
    space = env.single_action_space
    envs.step(torch.from_numpy(space.start + chance.integers(space.n, size=slots)))
    envs.fork(envs.live.nonzero().squeeze(1)[:5])
    if not packed:
        envs.prune(envs.live.nonzero().squeeze(1)[[0, 3]])
    if live is not None:
        envs.prune(envs.live.nonzero().squeeze(1)[live:])
    if packed:
        envs.compact()
    frontier = envs.frontier
    frontier.solved.zero_()
    return frontier


def everything(frontier):
    taken = frontier.status != FREE
    lineage = frontier.lineage
    count = int(lineage.count)
    return {
        "status": frontier.status,
        **{name: getattr(frontier, name)[taken] for name in frontier.COLUMNS},
        **{name: values[taken] for name, values in frontier.state.items()},
        **{f"entry {name}": values[:count] for name, values in lineage.columns.items()},
        "next_id": frontier.next_id,
        # On a GPU an upper bound, which depends on what was made room for.
        "used": torch.tensor(count if frontier.device.type == "cuda" else lineage.used),
        "solved": frontier.solved,
    }


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype, name
        assert torch.equal(found[name].cpu(), values.cpu()), name


class Torch:
    """The same environment without its kernel."""

    def __new__(cls, env):
        made = type(f"Torch{type(env).__name__}", (type(env),), {"transition_kernel": no_kernel})
        plain = made.__new__(made)
        plain.__dict__.update(vars(env))
        return plain


def no_kernel(self, device):
    return None


@pytest.fixture
def ran(monkeypatch):
    """Names the launches of the expansion's kernels; Triton interprets on the CPU."""
    names = []

    def spy(name):
        launcher = getattr(expand_triton, name)

        def listed(*arguments, **more):
            names.append(name)
            return launcher(*arguments, **more)

        monkeypatch.setattr(expand_triton, name, listed)

    for name in ("children", "solves", "replace"):
        spy(name)
    monkeypatch.setattr(expand_triton, "_BLOCK", 64)  # so that there are several programs
    monkeypatch.setattr(expand_fused, "LEAST", 1)
    monkeypatch.setattr(expand_fused, "resolve", lambda impl, tensor: "triton")
    return names


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rng", ["split", "shared"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "with gaps"])
@pytest.mark.parametrize("name", ENVS)
def test_all_children_replace_their_parents(ran, device, rng, packed, name):
    env = ENVS[name]()
    slots = 111
    expected, found = (population(env, slots, device, packed=packed) for _ in range(2))
    for max_depth in (None, 3):
        want = branch_step(expected, Torch(env), rng=rng, max_depth=max_depth)[1:]
        got = branch_step(found, env, rng=rng, max_depth=max_depth)[1:]
        for values, wanted in zip(got, want, strict=True):
            assert values.dtype == wanted.dtype and torch.equal(values, wanted)
        same(everything(found), everything(expected))
        for frontier in (expected, found):
            frontier.prune(frontier.live & (torch.arange(slots, device=device) >= 9))
    assert ran == ["solves", "replace"] * 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["tree", "dice"])
def test_parents_expand_before_children_take_their_slots(ran, monkeypatch, device, name):
    monkeypatch.setattr(expand_fused, "GATHERED", 40)
    monkeypatch.setattr(expand_fused, "ALIGNED", 4)
    env = ENVS[name]()
    slots = 9 * 243
    expected, found = (population(env, slots, device, packed=True) for _ in range(2))
    for frontier in (expected, found):
        frontier.status[frontier.status == DONE] = FREE
        frontier.fork(torch.arange(3, device=device).repeat(int(240 - frontier.live.sum()) // 3))
        frontier.compact()
    del ran[:]
    same(everything(found), everything(expected))
    branch_step(expected, Torch(env))
    branch_step(found, env)
    same(everything(found), everything(expected))
    assert ran == ["solves", "replace", "replace", "replace"]  # from 240, 80 and 28 parents


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rng", ["split", "shared"])
@pytest.mark.parametrize("name", ENVS)
def test_children_that_are_selected_from(ran, device, rng, name):
    env = ENVS[name]()
    expected, found = (population(env, 60, device, packed=False) for _ in range(2))

    def judge(batch):
        return Verdicts(passed=batch.solved, score=batch.reward.to(torch.int64) + batch.depth)

    for verifier, policy in ((None, Beam(4)), (judge, None), (judge, Beam(3))):
        want = branch_step(expected, Torch(env), verifier, policy, rng=rng)[1:]
        got = branch_step(found, env, verifier, policy, rng=rng)[1:]
        for values, wanted in zip(got, want, strict=True):
            assert values.dtype == wanted.dtype and torch.equal(values, wanted)
        same(everything(found), everything(expected))
    assert set(ran) <= {"children"} and ran


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["dice", "counter"])
def test_a_root_that_is_solved_keeps_no_sibling(ran, device, name):
    env = Dice(solved_above=30) if name == "dice" else SharedCounter(width=50, depth=7, target=1)
    expected, found = (population(env, 60, device, packed=True, live=9) for _ in range(2))
    branch_step(expected, Torch(env))
    branch_step(found, env)
    same(everything(found), everything(expected))
    assert found.solved.any()
    assert ran == ["solves", "children"]
    del ran[:]
    branch_step(expected, Torch(env), max_depth=2)  # a solved root's live branches leave
    branch_step(found, env, max_depth=2)
    same(everything(found), everything(expected))


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_changes_nothing(ran, device):
    env = Dice()
    frontier = population(env, 16, device, packed=True)
    before = {name: values.clone() for name, values in everything(frontier).items()}
    with pytest.raises(FrontierFullError):
        branch_step(frontier, env)
    same(everything(frontier), before)
    frontier = population(env, 80, device, packed=True)
    frontier.lineage.capacity = 40  # smaller from the start, a step on a GPU would not fit
    before = {name: values.clone() for name, values in everything(frontier).items()}
    with pytest.raises(LineageFullError):
        branch_step(frontier, env)
    same(everything(frontier), before)
    assert "replace" not in ran


@pytest.mark.parametrize("device", DEVICES)
def test_without_a_lineage_and_without_branches(ran, device):
    env = Dice()
    expected, found = (population(env, 80, device, packed=True) for _ in range(2))
    for frontier in (expected, found):
        frontier.lineage.capacity = 0
    branch_step(expected, Torch(env))
    branch_step(found, env)
    same(everything(found), everything(expected))
    assert ran == ["solves", "replace"] and bool((found.last_entry[found.live] == -1).all())
    for frontier in (expected, found):
        frontier.prune(frontier.live)
    branch_step(expected, Torch(env))
    branch_step(found, env)
    same(everything(found), everything(expected))
    assert ran == ["solves", "replace"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_checked_frontier_runs_the_hook_that_is_checked(ran, device):
    env = Dice()
    frontier = population(env, 80, device, packed=True)
    frontier.debug = True
    branch_step(frontier, env)
    assert ran == []


def test_where_torch_runs(monkeypatch):
    frontier = population(Dice(), 80, "cpu", packed=True)

    def found(parents, env=None):
        env = Dice() if env is None else env
        return expand_fused.fused_expansion(frontier, env, "split", parents=parents, fanout=3)

    assert found(expand_fused.LEAST) is None  # on the CPU
    monkeypatch.setattr(expand_fused, "resolve", lambda impl, tensor: "triton")
    assert found(expand_fused.LEAST // 3) is None
    assert found(expand_fused.LEAST // 3 + 1) is not None
    assert found(expand_fused.LEAST, Torch(Dice())) is None
    for name, field in (("said", log((), torch.int64)), ("hand", branch((2,), torch.int64))):
        env = Dice()
        env.contract = Contract({**env.contract.fields, name: field})
        assert found(expand_fused.LEAST, env) is None
