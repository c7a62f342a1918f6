"""MCTS against a scalar loop over its formulas, and against exact values of FrozenLake."""

import math

import gymnasium
import numpy as np
import pytest
from driving import bits, follow
from gymnasium.vector import AutoresetMode

from branchrt_gym import BranchingVectorEnv, DeepTree
from branchrt_gym.wrappers import BranchWrapper, make_branching
from branchrt_gym.wrappers.tree import ROOT
from branchrt_gym.wrappers.tree_search import TreeSearch

GAMMA = 0.95
FREE_TIME = {"max_episode_steps": 10**6}  # so that what is best does not depend on the time
# The start stands beside the goal, where luck decides soon.
NEAR = ["FFFF", "FHFH", "FFFH", "HFSG"]


def lake(desc=None, **more):
    make = gymnasium.make("FrozenLake-v1", desc=desc, **FREE_TIME, **more)
    env = BranchWrapper(make)
    env.reset(seed=0)
    return env


def best_values(env):
    """Q* by value iteration, from Gymnasium's own table."""
    table = env.unwrapped.P
    q = np.zeros((len(table), 4))
    for _ in range(2000):
        v = q.max(1)
        for s, a in np.ndindex(q.shape):
            q[s, a] = sum(p * (r + GAMMA * v[s2] * (not end)) for p, s2, r, end in table[s][a])
    return q


# The formulas ------------------------------------------------------------------------------


def score(action_visits, action_values, prior, here, bounds, c, puct):
    """Of one action after another, as the docstring of `mcts` says it."""
    low, high = bounds
    total = sum(action_visits)
    scores = []
    for n, q, p in zip(action_visits, action_values, prior, strict=True):
        if puct and n == 0:
            q = here
        q = (q - low) / (high - low) if high > low else 0.0
        if puct:
            scores.append(q + c * p * math.sqrt(1 + total) / (1 + n))
        else:
            scores.append(math.inf if n == 0 else q + c * math.sqrt(math.log(total) / n))
    return scores


def hashed(seen, word):
    return (np.abs(seen.reshape(len(seen), -1)).sum(1) * 1000 * word) % 1.0


def value_of(seen):
    return 10 * hashed(seen, 7.3)


def policy_of(seen):
    return np.stack([0.2 + hashed(seen, word) for word in (1.1, 2.3, 3.7)], 1)


@pytest.mark.parametrize("puct", [False, True], ids=["UCT", "PUCT"])
@pytest.mark.parametrize("c", [None, 0.4])
def test_each_simulation_is_what_a_scalar_loop_says(puct, c):
    rules = {"width": 64, "fanout": 3, "depth": 4, "value_range": 5}
    envs = BranchingVectorEnv(DeepTree(**rules), num_envs=2)
    envs.reset(seed=5)
    search = TreeSearch(envs, discount=0.9)
    policy = policy_of if puct else None
    trees = [
        search.mcts(transitions=n, value=value_of, policy=policy, exploration=c).tree
        for n in range(1, 41)
    ]
    c = c if c is not None else 1.25 if puct else math.sqrt(2)
    for root in range(2):
        oracle = BranchWrapper(gymnasium.make("branchrt/DeepTree-v0", **rules))
        oracle.reset(seed=5 + root)
        bounds = (math.inf, -math.inf)
        for before, after in zip([None, *trees[:-1]], trees, strict=True):
            copy = oracle.fork(1, "shared")[0]
            point, way = ROOT, []
            while True:
                old = 0 if before is None else before.count[root]
                if before is None:
                    visits, values, here = [0] * 3, [0.0] * 3, 0.0
                elif point < old:
                    visits = before.action_visits[root, point].tolist()
                    values = before.action_value[root, point].tolist()
                    here = before.value[root, point]
                else:
                    break
                more = after.action_visits[root, point] - np.array(visits)
                assert sorted(more.tolist()) == [0, 0, 1]
                action = int(more.argmax())
                prior = policy_of(copy.observation[None])[0] if puct else np.ones(3)
                prior = prior / prior.sum()
                assert after.action_prior[root, point].tolist() == pytest.approx(prior.tolist())
                scores = score(visits, values, prior, here, bounds, c, puct)
                assert scores[action] == pytest.approx(max(scores))
                observation, reward, ended, _, _ = copy.step(action)
                way.append((point, action, reward, visits[action], values[action]))
                (child,) = np.flatnonzero(
                    (after.parent[root] == point) & (after.action[root] == action)
                )
                point = int(child)
                assert after.reward[root, point] == reward
                assert after.ended[root, point] == ended
                if ended or before is None:
                    break
            gain = 0.0 if ended else float(value_of(observation[None])[0])
            for point, action, reward, n, q in reversed(way):
                gain = reward + 0.9 * gain
                mean = q + (gain - q) / (n + 1)
                assert after.action_value[root, point, action] == pytest.approx(mean)
                bounds = min(bounds[0], mean), max(bounds[1], mean)
        assert trees[-1].visits[root, ROOT] == 40


def test_a_small_tree_is_known_to_its_ends():
    envs = BranchingVectorEnv(DeepTree(width=64, fanout=2, depth=3), num_envs=3)
    envs.reset(seed=0)
    plan = TreeSearch(envs).mcts(transitions=400)
    assert plan.tree.count.tolist() == [15] * 3  # 1 + 2 + 4 + 8
    assert (plan.transitions < 400).all() and (plan.simulations == 400).all()
    assert (plan.tree.visits[:, ROOT] == 400).all()
    best = TreeSearch(envs).beam(8, 3)
    assert np.array_equal(best.action, plan.action)


# Chance ------------------------------------------------------------------------------------


def test_ice_is_crossed_by_the_shortest_way():
    env = lake(["SFF", "FHF", "FFG"], is_slippery=False)
    q = best_values(env)
    for _ in range(4):
        search = TreeSearch(env, rng="shared", discount=GAMMA)
        plan = search.mcts(transitions=2500, exploration=0.2)
        state = env.unwrapped.s
        assert q[state, plan.action] == pytest.approx(q[state].max())
        assert plan.value <= q[state].max() + 1e-9
        ended = env.step(plan.action)[2]
    assert ended


@pytest.mark.parametrize("way", [["value"], ["value", "policy"], []], ids=["v", "PUCT", "rollout"])
def test_slippery_ice_against_value_iteration(way):
    env = lake(NEAR)
    q = best_values(env)
    given = {
        "value": lambda seen: q[seen].max(1),
        "policy": lambda seen: 1 + (q[seen] == q[seen].max(1, keepdims=True)),
    }
    plan = TreeSearch(env, discount=GAMMA).mcts(
        transitions=8000, exploration=0.5, **{name: given[name] for name in way}
    )
    here = q[14]
    assert here[plan.action] == pytest.approx(here.max())
    # Every return lies in [0, 1], and no plan can be better than the best.
    error = 0.5 / math.sqrt(plan.tree.action_visits[0, ROOT, plan.action])
    assert plan.value < here.max() + 4 * error
    assert plan.value > here.max() - (0.15 if way else 0.35)


def test_one_action_is_worth_what_its_chain_earns():
    class Right(gymnasium.ActionWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.action_space = gymnasium.spaces.Discrete(1)

        def action(self, action):
            return 2

    env = BranchWrapper(Right(gymnasium.make("FrozenLake-v1", desc=NEAR, max_episode_steps=30)))
    env.reset(seed=0)
    value = np.zeros(16)
    for _ in range(30):  # backwards from the time limit
        value = np.array(
            [
                sum(p * (r + GAMMA * value[s2] * (not end)) for p, s2, r, end in row[2])
                for row in env.unwrapped.P.values()
            ]
        )
    for points_by in ("history", "actions", "observation"):
        search = TreeSearch(env, discount=GAMMA)
        plan = search.mcts(transitions=4000, points_by=points_by)
        visits = plan.tree.visits[0, ROOT]
        assert visits == plan.simulations[0] > 500
        assert plan.transitions == 4000
        assert plan.value == pytest.approx(plan.tree.value[0, ROOT])
        # The last simulation may be cut short; a return has a deviation of at most 1 / 2.
        assert abs(plan.value - value[14]) < 4 * 0.5 / math.sqrt(visits) + 1 / visits
        tree = plan.tree
        outcomes = np.unique(tree.parent[0, 1:], return_counts=True)[1]
        assert (outcomes.max() == 1) == (points_by == "actions")
        if points_by == "observation":  # a state is met once at each depth, ended or not
            assert tree.count[0] <= 1 + 30 * 17 and tree.visits[0, 1:].max() > 0.3 * visits
        first = plan.tree.parent[0] == ROOT
        mean = (plan.tree.reward * plan.tree.visits)[0, first].sum() / visits
        assert mean == pytest.approx(1 / 3, abs=2 / math.sqrt(visits))


# Populations of ordinary environments --------------------------------------------------------


@pytest.mark.parametrize("rng", ["split", "shared"])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_objects_in_a_population_are_planned_for_as_alone(rng, output):
    envs = make_branching("FrozenLake-v1", num_envs=3, output=output)
    one = make_branching("FrozenLake-v1", num_envs=1)
    env = BranchWrapper(gymnasium.make("FrozenLake-v1"))
    for each in (envs, one, env):
        each.reset(seed=7)
    for call in (
        lambda search: search.mcts(transitions=150),
        lambda search: search.mcts(transitions=150, policy=lambda seen: np.ones((len(seen), 4))),
        lambda search: search.beam(5, 3),
    ):
        plans = [call(TreeSearch(each, rng=rng)) for each in (envs, one, env)]
        for alone in plans[1:] if rng == "shared" else plans[1:2]:
            count = alone.tree.count[0]
            assert plans[0].tree.count[0] == count
            for name in ("visits", "value", "reward", "action", "parent", "ended"):
                row = getattr(plans[0].tree, name)[0, :count]
                assert np.array_equal(row, getattr(alone.tree, name)[0, :count]), name


@pytest.mark.parametrize("rng", ["split", "shared"])
def test_a_population_of_objects_does_not_notice(rng):
    def make():
        envs = make_branching(
            "FrozenLake-v1", num_envs=6, num_roots=2, autoreset_mode=AutoresetMode.DISABLED
        )
        envs.reset(seed=1)
        envs.action_space.seed(1)
        envs.step(np.full(6, 1))
        envs.fork([0, 1], [2, 1])
        envs.prune([0])
        return envs

    envs, twin = make(), make()
    search = TreeSearch(envs, rng=rng)
    for plan in (
        search.mcts(transitions=80),
        search.beam(3, 3),
        search.best_first(4, transitions=40),
    ):
        assert plan.slots.tolist() == [1, 2, 3, 4]
    held = [set(each.rules.objects) for each in (envs, twin)]
    assert held[0] == held[1]
    for each in (envs, twin):
        each.fork([2, 3])
    actions = [np.random.default_rng(step).integers(4, size=6) for step in range(30)]
    assert follow(envs, actions) == follow(twin, actions)
    assert bits(envs.observe()) == bits(twin.observe())


def test_a_fork_that_was_not_stepped_yet_has_its_own_future():
    envs = make_branching("FrozenLake-v1", num_envs=9, num_roots=1)
    envs.reset(seed=0)
    envs.fork([0], 8)
    plan = TreeSearch(envs, rng="shared").beam(16, 1)
    reached = [plan.tree.action_visits.shape, set()]
    row = {slot: place for place, slot in enumerate(plan.slots.tolist())}
    seen = TreeSearch(envs, rng="shared").mcts(transitions=4, value=lambda seen: seen.astype(float))
    envs.step(np.full(9, 2))
    after = envs.observe()
    for slot in range(9):
        foreseen = seen.tree.action_value[row[slot], ROOT, 2]
        assert foreseen == after[slot]
        reached[1].add(int(after[slot]))
    assert len(reached[1]) > 1


def test_the_time_limit_of_a_population_ends_its_plans():
    limit = {"max_episode_steps": 3}
    envs = make_branching("CartPole-v1", num_envs=2, vector_kwargs=limit)
    tensors = BranchingVectorEnv(DeepTree(width=64, fanout=2, depth=9), 2, **limit)
    for each in (envs, tensors):
        each.reset(seed=0)
        each.step(np.zeros(2, np.int64))
        plan = TreeSearch(each, rng="shared").mcts(transitions=50)
        assert plan.tree.depth.max() == 2 and plan.tree.ended[plan.tree.depth == 2].all()
    assert TreeSearch(envs, rng="shared").beam(4, 9).value.tolist() == [2.0, 2.0]
