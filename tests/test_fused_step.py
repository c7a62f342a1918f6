"""Fused steps against eager ones, bit for bit: random programs of everything that may happen."""

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from branchrt_gym import Beam, BranchEnv, BranchingVectorEnv, Contract, Transition, branch
from branchrt_gym.contract import InitialKernel, ObservationKernel, TransitionKernel
from branchrt_gym.envs.blackjack import Blackjack
from branchrt_gym.envs.deep_tree import DeepTree
from branchrt_gym.envs.shared_counter import SharedCounter
from branchrt_gym.frontier import Frontier

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
step_triton = pytest.importorskip("branchrt_gym.kernels.step_triton")

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


@triton.jit
def odd_transition(shared, context, depth, key, state, action, params: tl.constexpr):
    place, total = state
    roll = ((key >> 40) & 7).to(tl.int32)
    place = place * 3 + action.to(tl.int64) + (key & 255)
    total = total + roll.to(tl.float64)
    ended = roll == 0
    return (
        (place, total),
        roll.to(tl.float64) * 0.25,
        ended,
        roll == 1,
        ended & (action == params[0]),
    )


@triton.jit
def odd_initial(shared, context, key, params: tl.constexpr):
    return key ^ context, (key & 3).to(tl.float64)


@triton.jit
def odd_observation(shared, context, depth, state, params: tl.constexpr):
    place, total = state
    seen = (total.to(tl.float32), place.to(tl.float32), depth.to(tl.float32), (place & 1) * 1.5)
    return (place & 1) == 1, ((place & 63).to(tl.uint8),), seen, (place & 7) - 3


class Odd(BranchEnv):
    """A nested space, negative actions, wide fields, constant observations that are not zero."""

    reward_dtype = torch.float64
    score = "place"

    def __init__(self):
        self.contract = Contract(
            {"place": branch((), torch.int64), "total": branch((), torch.float64)}
        )
        self.single_observation_space = spaces.Tuple(
            (
                spaces.MultiBinary(()),
                spaces.Dict(
                    {
                        "byte": spaces.Box(3, 200, (1,), np.uint8),
                        "square": spaces.Box(0.3, np.inf, (2, 2), np.float32),
                        "word": spaces.Discrete(8, start=-3),
                    }
                ),
            )
        )
        self.single_action_space = spaces.Discrete(3, start=-1)

    def initial_shared(self, keys):
        return {}

    def initial(self, shared, context_index, keys):
        return {"place": keys ^ context_index, "total": (keys & 3).double()}

    def transition(self, shared, branches, action):
        roll = ((branches.key >> 40) & 7).int()
        state = branches.state
        ended = roll == 0
        return Transition(
            {
                "place": state["place"] * 3 + action + (branches.key & 255),
                "total": state["total"] + roll,
            },
            roll.double() * 0.25,
            ended,
            roll == 1,
            ended & (action == 1),
        )

    def observation(self, shared, branches):
        place, total = branches.state["place"], branches.state["total"]
        square = [total.float(), place.float(), branches.depth.float(), (place & 1) * 1.5]
        return (
            (place & 1).to(torch.int8),
            {
                "byte": (place & 63).to(torch.uint8)[:, None],
                "square": torch.stack(square, 1).view(-1, 2, 2),
                "word": (place & 7) - 3,
            },
        )

    def transition_kernel(self, device):
        return TransitionKernel(odd_transition, (1,))

    def initial_kernel(self, device):
        return InitialKernel(odd_initial)

    def observation_kernel(self, device):
        return ObservationKernel(odd_observation)


RULES = {
    "blackjack": Blackjack,
    "blackjack-natural": lambda: Blackjack(natural=True),
    "blackjack-sab": lambda: Blackjack(sab=True),
    "tree": lambda: DeepTree(width=7, fanout=3, depth=4, window=9, value_range=16_383),
    "counter": lambda: SharedCounter(width=97, depth=5, target=2),
    "odd": Odd,
}


class Pair(NamedTuple):
    """One environment stepped both ways; every call goes to both and must agree."""

    eager: BranchingVectorEnv
    fused: BranchingVectorEnv

    @classmethod
    def make(cls, rules, count, **more):
        both = (
            BranchingVectorEnv(
                RULES[rules](), count, output="torch", device=DEVICE, tier=tier, **more
            )
            for tier in ("eager", "fused")
        )
        return cls(*both)

    def call(self, name, *given, tier=None, **more):
        expected, found = (getattr(envs, name)(*given, **more) for envs in self)
        agree(expected, found)
        agree(*(taken(envs) for envs in self))
        if tier is not None:
            assert (self.eager.step_tier, self.fused.step_tier) == ("eager", tier)
        return found

    def actions(self, chance):
        """Actions, on a GPU some outside the space, which are clamped."""
        space = self.eager.single_action_space
        low, high = int(space.start), int(space.start + space.n)
        if CUDA:
            low, high = low - 3, high + 3
        return torch.from_numpy(chance.integers(low, high, self.eager.num_envs)).to(DEVICE)


def taken(envs):
    return {name: values.clone() for name, values in envs.snapshot().tensors.items()}


def agree(expected, found, name="result"):
    if isinstance(expected, dict):
        spare = set(found) - set(expected)
        if spare:  # on the CPU, an eager step says nothing of ends where there are none
            assert spare == {"final_obs", "_final_obs", "final_info", "_final_info"}, name
            assert not found["_final_obs"].any() and not found["final_info"]["solved"].any()
        for key in expected:
            agree(expected[key], found[key], f"{name}[{key!r}]")
    elif isinstance(expected, tuple):
        assert len(expected) == len(found), name
        for place, pair in enumerate(zip(expected, found, strict=True)):
            agree(*pair, f"{name}[{place}]")
    elif isinstance(expected, torch.Tensor):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape), name
        differs = expected.ne(found)
        assert not differs.any(), f"{name} differs at {differs.nonzero()[:4].tolist()}"
    else:
        assert expected == found, name


@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("count", [1, 37])
def test_random_programs(rules, count, mode):
    chance = np.random.default_rng(count)
    limit = [None, 2][chance.integers(2)]
    copied = bool(chance.integers(2))
    pair = Pair.make(
        rules, count, autoreset_mode=mode, max_episode_steps=limit, copy=copied, num_contexts=None
    )
    pair.call("reset", seed=11)
    kept = pair.fused.snapshot()
    for _ in range(12):
        pair.call("step", pair.actions(chance), tier="fused")
        what = chance.integers(8)
        if what == 0:
            pair.call("reset", seed=int(chance.integers(100)))
        elif what == 1:
            pair.call("reset")
        elif what == 2:
            mask = torch.from_numpy(chance.random(count) < 0.5).to(DEVICE)
            if mask.any():
                pair.call("reset", options={"reset_mask": mask})
        elif what == 3:
            mask = torch.from_numpy(chance.random(count) < 0.3).to(DEVICE)
            pair.call("prune", mask)
        elif what == 4:
            pair.call("restore", kept)
            kept = pair.eager.snapshot()


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_ids_count_over_more_blocks_than_a_block_has_slots(mode, monkeypatch):
    monkeypatch.setattr(step_triton, "_BLOCK", 4)
    pair = Pair.make("blackjack", 45, autoreset_mode=mode)
    assert step_triton.num_blocks(45) == 12
    pair.call("reset", seed=0)
    chance = np.random.default_rng(0)
    for _ in range(6):
        pair.call("step", pair.actions(chance), tier="fused")
    assert int(pair.fused.frontier.next_id) > 3 * 45


@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED])
def test_a_population_that_moved_steps_eagerly_until_a_full_reset(mode):
    pair = Pair.make("counter", 6, autoreset_mode=mode)
    actions = torch.zeros(6, dtype=torch.int64, device=DEVICE)
    pair.call("reset", seed=1)
    moves = [
        ("compact", ()),
        ("branch_step", (None, Beam(1))),
    ]
    if mode == DISABLED:
        moves.append(("fork", ([0], 2)))
    for name, given in moves:
        pair.call("reset", seed=1)
        pair.call("step", actions, tier="fused")
        for envs in pair:
            if name == "fork":
                envs.prune([2, 4])
            getattr(envs, name)(*given)
        pair.call("step", actions, tier="eager")
        moved = pair.eager.snapshot()
        pair.call("reset")
        pair.call("step", actions, tier="fused")
        pair.call("restore", moved)
        pair.call("step", actions, tier="fused" if name == "compact" else "eager")


@pytest.mark.parametrize("name", ["fork", "compact", "prune"])
def test_what_is_done_to_the_frontier_itself_is_noticed(name):
    pair = Pair.make("counter", 4, autoreset_mode=DISABLED)
    pair.call("reset", seed=1)
    for envs in pair:
        frontier: Frontier = envs.frontier
        if name != "compact":
            frontier.prune([1])
        if name == "fork":
            frontier.fork([0])
        if name == "compact":
            frontier.compact()
    pair.call("step", torch.zeros(4, dtype=torch.int32, device=DEVICE), tier="eager")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_any_integers_are_actions(dtype):
    pair = Pair.make("counter", 5)
    pair.call("reset", seed=1)
    tier = "fused" if dtype in (torch.int32, torch.int64) else "eager"
    for step in range(7):
        actions = torch.full((5,), step % 4, dtype=dtype, device=DEVICE)
        pair.call("step", actions, tier=tier)
        pair.call("step", actions.long(), tier="fused")


def test_lists_and_wrong_actions_are_left_to_the_eager_step():
    pair = Pair.make("counter", 3)
    pair.call("reset", seed=1)
    pair.call("step", [0, 1, 2], tier="eager")
    for wrong in (torch.zeros(4, dtype=torch.int64), torch.zeros(3), torch.zeros(3, 1).long()):
        with pytest.raises(ValueError, match="`actions` is "):
            pair.fused.step(wrong.to(DEVICE))
    pair.call("step", torch.zeros(3, dtype=torch.int64, device=DEVICE), tier="fused")


def test_tensors_are_overwritten_unless_copied():
    for copied in (True, False):
        envs = Pair.make("counter", 5, copy=copied).fused
        envs.reset(seed=1)
        actions = torch.zeros(5, dtype=torch.int64, device=DEVICE)
        observation, reward, *_ = envs.step(actions)
        held = observation.clone()
        later, rewards, *_ = envs.step(actions + 1)
        assert (later.data_ptr() == observation.data_ptr()) is not copied
        assert (rewards.data_ptr() == reward.data_ptr()) is not copied
        assert torch.equal(held, observation) is copied


def test_a_copy_steps_for_itself():
    pair = Pair.make("blackjack", 9)
    pair.call("reset", seed=1)
    chance = np.random.default_rng(0)
    actions = pair.actions(chance)
    pair.call("step", actions, tier="fused")
    other = copy.deepcopy(pair.fused)
    before = taken(pair.fused)
    agree(before, taken(other))
    other.step(actions)
    assert other.step_tier == "eager"
    other.reset()
    other.step(actions)
    assert other.step_tier == "fused"
    agree(before, taken(pair.fused))
    pair.call("step", actions, tier="fused")


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("`output` is", {"output": "numpy"}),
        ("`debug`", {"debug": True}),
        ("the lineage is recorded", {"record_lineage": True}),
        ("there are 2 roots in 4 slots", {"num_roots": 2, "record_lineage": False}),
    ],
)
def test_what_does_not_fit_says_why(reason, more):
    more = {"output": "torch", "device": DEVICE, **more}
    with pytest.raises(ValueError, match=f'`tier` is "fused", which does not fit: {reason}'):
        BranchingVectorEnv(SharedCounter(width=8), 4, tier="fused", **more)
    envs = BranchingVectorEnv(SharedCounter(width=8), 4, **more)
    envs.reset(seed=0)
    envs.step(torch.zeros(4, dtype=torch.int64, device=DEVICE))
    assert envs.step_tier == "eager"


def test_an_environment_without_kernels_does_not_fit():
    class Half(Odd):
        def observation_kernel(self, device):
            return None

    with pytest.raises(ValueError, match="Half has no `observation_kernel`"):
        BranchingVectorEnv(Half(), 4, output="torch", device=DEVICE, tier="fused")
    with pytest.raises(ValueError, match=r"`tier` is 'fast'; expected"):
        BranchingVectorEnv(Odd(), 4, tier="fast")


@pytest.mark.skipif(CUDA, reason="on a CUDA device `auto` fuses")
def test_steps_on_the_cpu_are_eager():
    envs = BranchingVectorEnv(SharedCounter(width=8), 4, output="torch")
    assert envs.step_tier is None
    envs.reset(seed=0)
    envs.step(torch.zeros(4, dtype=torch.int64))
    assert envs.step_tier == "eager"


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("rules", RULES)
def test_a_step_is_one_replay_and_waits_for_nothing(rules):
    pair = Pair.make(rules, 1000)
    chance = np.random.default_rng(0)
    pair.call("reset", seed=0)
    actions = pair.actions(chance)
    for _ in range(8):  # of the caller's tensor and a copy, after odd and even steps
        pair.call("step", actions, tier="fused")
    graphs = dict(pair.fused._fused._graphs)
    assert len(graphs) == 4
    torch.cuda.set_sync_debug_mode("error")
    try:
        pair.fused.step(actions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pair.fused._fused._graphs == graphs
    pair.eager.step(actions)
    pair.call("step", actions, tier="fused")


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_a_step_can_be_part_of_a_callers_graph():
    pair = Pair.make("blackjack", 1000, copy=False)
    chance = np.random.default_rng(0)
    pair.call("reset", seed=0)
    pair.call("step", pair.actions(chance), tier="fused")
    actions = pair.actions(chance)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = pair.fused.step(actions)
    for _ in range(3):
        graph.replay()
        agree(pair.eager.step(actions), captured)
    agree(*(taken(envs) for envs in pair))
