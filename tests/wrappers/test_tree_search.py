"""Plans against enumeration and against `search`; what a plan costs, and what it leaves alone."""

import itertools

import gymnasium
import numpy as np
import pytest
import torch
from driving import bits, follow
from gymnasium import spaces
from tape import Tape

import branchrt_gym
from branchrt_gym import Beam, BestFirst, BranchingVectorEnv, DeepTree, SharedCounter, search
from branchrt_gym.errors import NotResetError
from branchrt_gym.wrappers import BranchWrapper
from branchrt_gym.wrappers.tree import NO_ACTION, NO_POINT, ROOT
from branchrt_gym.wrappers.tree_search import TreeSearch

SMALL = {"width": 256, "fanout": 3, "depth": 5, "starts": 2}
STEPS = []  # of every copy of a `Counted`


class Counted(gymnasium.Wrapper):
    def step(self, action):
        STEPS.append(action)
        return self.env.step(action)


class Coin(gymnasium.Env):
    """Action 1 pays what a coin says, 0 or 1; action 0 pays 0.6. Three tosses."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tosses = 0
        return 0, {}

    def step(self, action):
        self.tosses += 1
        coin = float(self.np_random.integers(2))
        return self.tosses, coin if action else 0.6, self.tosses == 3, False, {}


def population(env, roots=4, **more):
    envs = BranchingVectorEnv(env, num_envs=roots, num_contexts=roots, **more)
    envs.reset(seed=0)
    return envs


def returns(env, depth):
    """The return of every sequence of actions, played by copies of a scalar environment."""
    found = {}
    for path in itertools.product(range(int(env.action_space.n)), repeat=depth):
        (copy,) = env.fork(1, "shared")
        total = 0.0
        for action in path:
            _, reward, terminated, truncated, _ = copy.step(action)
            total += reward
            if terminated or truncated:
                break
        found[path] = total
    return found


@pytest.mark.parametrize("steps", [[], [1, 2]])
def test_a_wide_beam_finds_the_best_leaf(steps):
    envs = population(DeepTree(**SMALL))
    oracles = [BranchWrapper(gymnasium.make("branchrt/DeepTree-v0", **SMALL)) for _ in range(4)]
    for root, oracle in enumerate(oracles):
        oracle.reset(seed=root)
    for action in steps:
        envs.step(np.full(4, action))
        for oracle in oracles:
            oracle.step(action)
    left = SMALL["depth"] - len(steps)
    wide = 3**left
    plans = [
        TreeSearch(envs).beam(wide, left),
        TreeSearch(envs).best_first(wide, transitions=10_000),
    ]
    for root, oracle in enumerate(oracles):
        leaves = returns(oracle, left)
        best = max(leaves.values())
        firsts = {path[0] for path, total in leaves.items() if total == best}
        alone = TreeSearch(oracle, rng="shared").beam(wide, left)
        assert alone.value == best and alone.action in firsts
        for plan in plans:
            assert plan.value[root] == best
            assert plan.action[root] in firsts
            assert plan.tree.value[root, ROOT] == best
            assert plan.tree.count[root] == sum(3**d for d in range(left + 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeepTree(width=512, fanout=4, depth=7),
        lambda: SharedCounter(width=64, depth=9, target=4),
        lambda: SharedCounter(width=64, depth=9, target=4, mutation=20),
        lambda: Tape(),
        lambda: Tape(dense=True),
    ],
    ids=["tree", "counter", "counter in pages", "tape", "dense tape"],
)
@pytest.mark.parametrize("width", [1, 3, 8])
def test_beam_and_best_first_are_those_of_search(make, width):
    envs = population(make(), roots=5)
    keep = {"rng": "shared", "stop_solved": False}
    found = search(make(), 5, Beam(width), 6, **keep)
    plan = TreeSearch(envs, rng="shared").beam(width, 6)
    assert np.array_equal(plan.value, found.trajectories().reward.sum(1).double())
    assert np.array_equal(plan.action, found.trajectories().action[:, 0])
    assert plan.transitions.sum() == found.transitions
    fanout = int(envs.single_action_space.n)
    found = search(make(), 5, BestFirst(9, width), 6, **keep)
    plan = TreeSearch(envs, rng="shared").best_first(width, depth=6, transitions=9 * fanout)
    assert np.array_equal(plan.value, found.trajectories().reward.sum(1).double())
    assert np.array_equal(plan.action, found.trajectories().action[:, 0])
    assert plan.transitions.sum() == found.transitions


def test_beam_finds_the_shortest_way_over_ice():
    env = BranchWrapper(gymnasium.make("FrozenLake-v1", is_slippery=False))
    env.reset(seed=0)
    plan = TreeSearch(env, rng="shared", discount=0.9).beam(4**6, 6)
    assert plan.value == pytest.approx(0.9**5)  # six steps to the goal
    path = plan.tree.actions_to(int(np.argmax(plan.tree.reward[0])))
    assert len(path) == 6 and path[0] == plan.action


PLANS = {
    "beam": lambda s, n: s.beam(3, 4, transitions=n),
    "best_first": lambda s, n: s.best_first(5, transitions=n),
    "uct": lambda s, n: s.mcts(transitions=n),
    "cut": lambda s, n: s.mcts(transitions=n, rollout_depth=3),
    "actions": lambda s, n: s.mcts(transitions=n, points_by="actions"),
    "observation": lambda s, n: s.mcts(transitions=n, points_by="observation"),
    "value": lambda s, n: s.mcts(transitions=n, value=lambda seen: np.zeros(len(seen))),
    "puct": lambda s, n: s.mcts(transitions=n, policy=lambda seen: np.ones((len(seen), 4))),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("rng", ["split", "shared"])
def test_transitions_are_counted_exactly_and_never_exceeded(name, rng):
    env = BranchWrapper(Counted(gymnasium.make("FrozenLake-v1")))
    env.reset(seed=1)
    used = []
    for budget in (4, 5, 7, 16, 33, 100):
        STEPS.clear()
        plan = PLANS[name](TreeSearch(env, rng=rng), budget)
        assert plan.transitions.tolist() == [len(STEPS)]
        used.append((len(STEPS), budget))
    assert all(taken <= budget for taken, budget in used)
    if name in ("uct", "cut", "actions", "observation") and rng == "split":
        assert all(taken == budget for taken, budget in used)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("rng", ["split", "shared"])
def test_the_environment_does_not_notice(name, rng):
    def make():
        env = BranchWrapper(gymnasium.make("FrozenLake-v1"))
        env.reset(seed=3)
        env.action_space.seed(3)
        env.step(2)
        return env

    env, twin = make(), make()
    PLANS[name](TreeSearch(env, rng=rng), 60)
    for left, right in zip(env.fork(2), twin.fork(2), strict=True):
        assert left.key == right.key
        assert follow(left, [1, 2, 1, 2, 3]) == follow(right, [1, 2, 1, 2, 3])
    assert follow(env, [1, 2, 3, 0] * 10) == follow(twin, [1, 2, 3, 0] * 10)


@pytest.mark.parametrize("make", [Tape, lambda: DeepTree(**SMALL)], ids=["tape", "tree"])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_population_does_not_notice(make, output):
    envs = BranchingVectorEnv(make(), num_envs=8, num_roots=3, output=output)
    envs.reset(seed=0)
    envs.fork([0, 2], [2, 1])
    envs.step(np.arange(8) % 3)
    envs.prune([1])
    before, seen = envs.snapshot(), bits(envs.observe())
    for rng in ("split", "shared"):
        search = TreeSearch(envs, rng=rng)
        for plan in (
            search.beam(3, 3),
            search.best_first(4, transitions=30),
            search.mcts(transitions=50),
        ):
            assert plan.slots.tolist() == [0, 2, 3, 4, 5]
            assert plan.action.shape == (8,) and np.isnan(plan.value[[1, 6, 7]]).all()
            assert np.isfinite(plan.value[plan.slots]).all()
    after = envs.snapshot()
    assert before.header == after.header
    for name, tensor in before.tensors.items():
        assert torch.equal(tensor, after.tensors[name]), name
    assert bits(envs.observe()) == seen
    envs.step(plan.action)


@pytest.mark.parametrize("make", [Tape, lambda: DeepTree(**SMALL)], ids=["tape", "tree"])
def test_a_branch_is_planned_for_as_if_it_were_alone(make):
    many, one = population(make(), 6), population(make(), 1)
    for rng in ("split", "shared"):
        for arguments in ({}, {"rollout_depth": 2}, {"policy": weights}):
            left = TreeSearch(many, rng=rng).mcts(transitions=40, **arguments)
            right = TreeSearch(one, rng=rng).mcts(transitions=40, **arguments)
            assert left.value[0] == right.value[0] and left.action[0] == right.action[0]
            count = int(right.tree.count[0])
            for name in ("parent", "action", "visits", "value", "prior", "reward"):
                row = getattr(left.tree, name)[0, :count]
                assert np.array_equal(row, getattr(right.tree, name)[0]), name


def weights(seen):
    return 1 + (np.abs(seen.reshape(len(seen), -1).sum(1)).astype(int)[:, None] + range(3)) % 4


def test_pages_are_planned_with_as_dense_fields_are():
    paged, dense = population(Tape()), population(Tape(dense=True))
    for step in range(3):
        paged.step(np.full(4, step))
        dense.step(np.full(4, step))
    for rng in ("split", "shared"):
        left = TreeSearch(paged, rng=rng).mcts(transitions=80)
        right = TreeSearch(dense, rng=rng).mcts(transitions=80)
        assert np.array_equal(left.tree.value, right.tree.value)
        assert np.array_equal(left.tree.visits, right.tree.visits)


def test_plans_are_the_same_for_the_same_seed():
    env = BranchWrapper(gymnasium.make("FrozenLake-v1"))
    env.reset(seed=0)
    trees = [TreeSearch(env, seed=seed).mcts(transitions=300).tree for seed in (0, 0, 1)]
    assert np.array_equal(trees[0].visits, trees[1].visits)
    assert np.array_equal(trees[0].parent, trees[1].parent)
    assert trees[0].visits.shape != trees[2].visits.shape or not np.array_equal(
        trees[0].visits, trees[2].visits
    )


def test_split_luck_does_not_foresee_the_coin():
    foreseen = set()
    for seed in range(8):
        env = BranchWrapper(Coin())
        env.reset(seed=seed)
        plan = TreeSearch(env, seed=seed).mcts(transitions=900)
        assert plan.action == 0
        assert plan.tree.action_value[0, ROOT, 1] == pytest.approx(0.5 + 1.2, abs=0.25)
        shared = TreeSearch(env, rng="shared").beam(8, 3)
        assert shared.value == sum(
            max(0.6, env.fork(1, "shared")[0].np_random.integers(2, size=3)[toss])
            for toss in range(3)
        )
        foreseen.add(shared.action)
        reward = env.step(1)[1]
        assert shared.action == int(reward)
    assert foreseen == {0, 1}


def test_a_second_is_checked_between_simulations():
    env = BranchWrapper(Coin())
    env.reset(seed=0)
    search = TreeSearch(env)
    assert search.mcts(seconds=1e-9).simulations.tolist() == [1]
    assert search.best_first(seconds=1e-9).transitions.tolist() == [2]
    plan = search.mcts(seconds=0.05)
    assert plan.seconds >= 0.05 and plan.simulations[0] > 1


def test_the_tree_reads_as_its_arrays_say():
    envs = population(DeepTree(**SMALL), roots=2)
    plan = TreeSearch(envs).beam(2, 3)
    tree = plan.tree
    assert tree.parent.shape == tree.visits.shape == (2, tree.count.max())
    assert tree.action_visits.shape == (2, tree.count.max(), 3)
    assert (tree.parent[:, ROOT] == NO_POINT).all() and (tree.action[:, ROOT] == NO_ACTION).all()
    for root, point in itertools.product(range(2), range(1, int(tree.count[0]))):
        path = tree.actions_to(point, root)
        assert len(path) == tree.depth[root, point]
        assert path[:-1] == tree.actions_to(int(tree.parent[root, point]), root)
    lines = plan.summary(depth=1).splitlines()
    assert lines[0].startswith(f"root: {tree.count[0]} visits, value {plan.value[0]:.4g}")
    assert len(lines) == 4 and all(line.startswith("  action ") for line in lines[1:])
    with pytest.raises(ValueError, match="`point` is 99; expected 0 …"):
        tree.actions_to(99)


def test_actions_need_not_start_at_zero():
    class Shifted(Coin):
        action_space = spaces.Discrete(2, start=-1)

        def step(self, action):
            assert action in (-1, 0)
            return super().step(action + 1)

    env = BranchWrapper(Shifted())
    env.reset(seed=0)
    for plan in (TreeSearch(env).mcts(transitions=600), TreeSearch(env).beam(1, 1)):
        assert plan.action in (-1, 0) and set(plan.tree.action[0, 1:].tolist()) <= {-1, 0}
    assert TreeSearch(env).mcts(transitions=600).action == -1


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda e, v: TreeSearch(gymnasium.make("CartPole-v1")), TypeError, "BranchWrapper"),
        (lambda e, v: TreeSearch(gymnasium.make_vec("CartPole-v1")), TypeError, "make_branching"),
        (
            lambda e, v: TreeSearch(BranchWrapper(gymnasium.make("Pendulum-v1"))),
            TypeError,
            "expected Discrete",
        ),
        (lambda e, v: TreeSearch(e, discount=1.5), ValueError, "`discount` is 1.5"),
        (lambda e, v: TreeSearch(e, rng="both"), ValueError, "`rng` is 'both'"),
        (lambda e, v: TreeSearch(e, seed=-1), ValueError, "`seed` is -1"),
        (lambda e, v: TreeSearch(e).mcts(), ValueError, "neither `transitions` nor `seconds`"),
        (lambda e, v: TreeSearch(e).best_first(), ValueError, "neither `transitions`"),
        (lambda e, v: TreeSearch(e).mcts(transitions=0), ValueError, "`transitions` is 0"),
        (lambda e, v: TreeSearch(e).mcts(seconds=0), ValueError, "`seconds` is 0"),
        (lambda e, v: TreeSearch(e).beam(2, 2, transitions=1), ValueError, "at least 2"),
        (lambda e, v: TreeSearch(e).beam(0, 2), ValueError, "`width` is 0"),
        (lambda e, v: TreeSearch(e).beam(2, 0), ValueError, "`depth` is 0"),
        (
            lambda e, v: TreeSearch(e).mcts(transitions=9, rollout_depth=0),
            ValueError,
            "`rollout_depth` is 0",
        ),
        (
            lambda e, v: TreeSearch(e).mcts(transitions=9, exploration=-1),
            ValueError,
            "`exploration` is -1",
        ),
        (
            lambda e, v: TreeSearch(e).mcts(transitions=9, points_by="state"),
            ValueError,
            "`points_by` is 'state'; expected one of 'history', 'observation', 'actions'",
        ),
        (lambda e, v: TreeSearch(e).mcts(transitions=9, value=3), TypeError, "`value` is int"),
        (
            lambda e, v: TreeSearch(e).mcts(transitions=9, value=lambda seen: [[0.0]]),
            ValueError,
            r"`value` returned float64 of shape \(1, 1\); expected finite numbers of shape \(1,\)",
        ),
        (
            lambda e, v: TreeSearch(e).mcts(transitions=9, policy=lambda seen: [[0.0, 0.0]]),
            ValueError,
            "`policy` returned weights from 0.0 to 0.0",
        ),
        (
            lambda e, v: TreeSearch(e).mcts(transitions=9, rollout=lambda seen: [[np.nan, 1]]),
            ValueError,
            "`rollout` returned .* not all finite",
        ),
        (lambda e, v: TreeSearch(v).beam(1, 1), ValueError, "no branch is live"),
        (lambda e, v: TreeSearch(BranchWrapper(Coin())).beam(1, 1), NotResetError, "reset"),
    ],
)
def test_wrong_arguments_are_named(call, error, text):
    env = BranchWrapper(Coin())
    env.reset(seed=0)
    envs = population(DeepTree(**SMALL), autoreset_mode="Disabled")
    envs.prune(np.ones(4, bool))
    with pytest.raises(error, match=text):
        call(env, envs)


def test_the_module_is_known():
    assert branchrt_gym.wrappers.tree_search.TreeSearch is TreeSearch
