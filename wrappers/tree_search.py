"""TreeSearch: plans from where an environment is, and leaves it there.

    >>> import gymnasium
    >>> from branchrt_gym.wrappers import BranchWrapper, TreeSearch
    >>> env = BranchWrapper(gymnasium.make("CartPole-v1"))
    >>> observation, info = env.reset(seed=0)
    >>> plan = TreeSearch(env, rng="shared").mcts(transitions=500)
    >>> step = env.step(plan.action)

Three ways to spend a budget:

*   `beam` and `best_first`, the policies of `search`: what they find is one sequence of actions and
    the return that it had. For environments without chance.
*   `mcts` with no `policy` is UCT: UCB1 chooses among a point's actions (Kocsis and Szepesvári,
    "Bandit based Monte-Carlo planning", 2006).
*   `mcts` with one is PUCT: its probabilities say where to look first (Rosin, "Multi-armed bandits
    with episode context", 2011, in the form of Silver et al., "Mastering the game of Go without
    human knowledge", 2017).

**Chance.** With `rng="split"`, the default, a plan's luck is apart from the environment's own, so
that it cannot foresee what will come. `mcts` then takes every simulation from the root anew, with
luck of its own, and `points_by` says which points of the tree it goes through. `rng="shared"` gives
the plan the environment's own luck: right where there is none (CartPole, most of MuJoCo and Atari,
after the reset), and then cheaper, since points keep their branch and no transition is taken twice;
clairvoyant where there is some. Environments under a contract say that they have none by
`uses_key`, and are then planned for in the cheaper way.
"""

from __future__ import annotations

import math
from typing import Any, get_args

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from branchrt_gym.errors import NotResetError
from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.seeding import Rng, check_rng
from branchrt_gym.vector_env import BranchingVectorEnv
from branchrt_gym.wrappers.branch_wrapper import BranchWrapper
from branchrt_gym.wrappers.object_vector_env import ObjectVectorEnv
from branchrt_gym.wrappers.tree import ROOT, Tree, TreePlan
from branchrt_gym.wrappers.tree_budget import Budget, Luck, counted, expect_end
from branchrt_gym.wrappers.tree_levels import grow
from branchrt_gym.wrappers.tree_mcts import Judge, Mcts, PointsBy, Rules
from branchrt_gym.wrappers.tree_states import ObjectStates, States
from branchrt_gym.wrappers.tree_tensors import TensorStates

__all__ = ["TreeSearch"]

Ints = NDArray[np.int64]


class TreeSearch:
    """Plans for a `BranchWrapper`, or for every live branch of a `BranchingVectorEnv` at once.

    Each call plans anew from where the environment is then. It works on copies: the environment,
    its luck and the luck of its later forks are afterwards as if nothing had been planned. The same
    seed, state and budget in transitions give the same plan; a branch's plan does not depend on
    the other live branches but by its place among them.

    After the end of an episode, terminated or truncated, nothing is earned.

    Args:
        env: With Discrete actions. Of a stack of wrappers the `BranchWrapper` must be the
            outermost; of a vector environment under Gymnasium's wrappers give `envs.unwrapped`.
        rng: Whether planned branches have luck of their own, or the environment's; see the module.
        discount: Of a reward one transition later, in (0, 1].
        seed: Of all draws of a plan.

    Raises:
        TypeError: For an environment that cannot be planned for, with what to do.
    """

    def __init__(
        self,
        env: BranchWrapper[Any, Any] | BranchingVectorEnv,
        *,
        rng: Rng = "split",
        discount: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Checks the arguments."""
        self.rng = check_rng(rng)
        if not isinstance(env, BranchWrapper | BranchingVectorEnv):
            if isinstance(env, gymnasium.vector.VectorEnv):
                fix = "a BranchingVectorEnv: `envs.unwrapped`, or `make_branching(…)`"
            else:
                fix = "`BranchWrapper(env)`, which can be copied"
            raise TypeError(f"`env` is {type(env).__name__}; expected {fix}")
        space: Any = env.action_space if isinstance(env, BranchWrapper) else env.single_action_space
        if not isinstance(space, Discrete):
            raise TypeError(
                f"the action space is {space}; expected Discrete, whose actions can be enumerated"
            )
        if not 0 < discount <= 1:
            raise ValueError(f"`discount` is {discount!r}; expected a number in (0, 1]")
        whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
        if not whole or not 0 <= seed < 2**63:
            raise ValueError(f"`seed` is {seed!r}; expected an int in 0 … 2**63 - 1")
        self.env = env
        self.discount = float(discount)
        self.seed = int(seed)
        self._space: Discrete = space

    def beam(
        self,
        width: int,
        depth: int,
        *,
        transitions: int | None = None,
        seconds: float | None = None,
    ) -> TreePlan:
        """Expands level by level and keeps the `width` best, as `search` does with `Beam`.

        Branches are ranked by the score that `search` ranks by; without one by their return, in
        65,536ths. A branch that ended competes with what it has. No root is done early: see
        `stop_solved` of `search`.

        Args:
            width: Branches of each root that are kept.
            depth: Levels, at most.
            transitions: Of each root, at most; a level that does not fit is not begun.
            seconds: For all roots together; no level is begun later.
        """
        return self._grow(Beam(width), counted("depth", depth), transitions, seconds)

    def best_first(
        self,
        width: int = 64,
        *,
        depth: int | None = None,
        transitions: int | None = None,
        seconds: float | None = None,
    ) -> TreePlan:
        """Expands the best open branch of each root again and again, as `search` with `BestFirst`.

        Args:
            width: Branches of each root that are held, at most.
            depth: Of a branch, at most; None for no limit.
            transitions: Of each root, at most: one expansion takes as many as there are actions.
            seconds: For all roots together. One of the two must be given.
        """
        expect_end(transitions, seconds)
        budget = 2**62 if transitions is None else max(1, transitions // int(self._space.n))
        depth = None if depth is None else counted("depth", depth)
        return self._grow(BestFirst(budget, width), depth, transitions, seconds)

    def mcts(
        self,
        *,
        transitions: int | None = None,
        seconds: float | None = None,
        policy: Judge | None = None,
        value: Judge | None = None,
        rollout: Judge | None = None,
        rollout_depth: int = 100,
        exploration: float | None = None,
        points_by: PointsBy = "history",
    ) -> TreePlan:
        """Monte-Carlo tree search: UCT, or PUCT with a policy; see the module.

        A simulation goes down the tree by the highest `q + exploration * bonus`, adds one point,
        estimates it, and adds what it found to the means on its way. `q` is the mean of what an
        action earned, scaled so that the lowest and the highest such mean of the whole tree so far
        become 0 and 1 (Schrittwieser et al., "Mastering Atari, Go, chess and shogi by planning with
        a learned model", 2020). With `n` visits of the action and `N` of all actions there, the
        bonus is `sqrt(ln N / n)` for UCT, which takes each action once first; and `prior * sqrt(1 +
        N) / (1 + n)` for PUCT, where an action without visits has the point's own value. Equals are
        chosen among by chance. The action to take is the one most visited, of equals the one that
        earned most.

        A callable is given a batch of observations, as a vector environment's, of `m` points.

        Args:
            transitions: Of each root, at most, those of rollouts included; there are no more
                simulations than that either. The last rollout may be cut short by it, and counts
                as it stands.
            seconds: For all roots together; no simulation is begun later. One of the two must be
                given.
            policy: Returns `[m, A]` prior probabilities of the actions; they are made to sum to 1.
            value: Returns `[m]`, what is earned from there on. None plays on instead.
            rollout: Returns `[m, A]` probabilities to play by; None for equal ones.
            rollout_depth: Transitions of a rollout, at most.
            exploration: None for `sqrt(2)` with UCT, as for rewards in [0, 1], and 1.25 with PUCT.
            points_by: With luck split, what makes a point. `"history"`: the actions and what was
                observed after each, which is right for any environment. `"observation"`: the
                depth and the last observation, as Kocsis and Szepesvári have it, where that tells
                the state: ways that meet are one. `"actions"`: these alone, for observations that
                are never seen twice, such as noise; what is planned is a sequence.

        Raises:
            ValueError: For arguments outside what they may be, or what a callable returns.
        """
        expect_end(transitions, seconds)
        if exploration is None:
            exploration = math.sqrt(2) if policy is None else 1.25
        if not 0 <= exploration < math.inf:
            raise ValueError(f"`exploration` is {exploration!r}; expected a number of 0 or more")
        for name, given in {"policy": policy, "value": value, "rollout": rollout}.items():
            if given is not None and not callable(given):
                raise TypeError(
                    f"`{name}` is {type(given).__name__}; expected a callable that is given a "
                    "batch of observations, or None"
                )
        if points_by not in get_args(PointsBy):
            expected = ", ".join(map(repr, get_args(PointsBy)))
            raise ValueError(f"`points_by` is {points_by!r}; expected one of {expected}")
        states, slots = self._states()
        kept = self.rng == "shared" or states.certain
        rules = Rules(
            discount=self.discount,
            exploration=exploration,
            policy=policy,
            value=value,
            rollout=rollout,
            rollout_depth=counted("rollout_depth", rollout_depth),
            kept=kept,
            points_by=points_by,
        )
        fanout = int(self._space.n)
        budget = Budget(states.roots, transitions, seconds, (1, "a first step"))
        tree = Tree.start(states.roots, fanout, int(self._space.start))
        mcts = Mcts(states, tree, budget, Luck(self.seed, states.roots, fanout), rules)
        while (on := budget.begins()).size:
            mcts.simulate(on)
        visits = tree.action_visits[:, ROOT]
        most = visits == visits.max(1, keepdims=True)
        choice = np.where(most, tree.action_value[:, ROOT], -np.inf).argmax(1)
        earned = tree.action_value[np.arange(states.roots), ROOT, choice]
        budget.simulations = tree.visits[:, ROOT].copy()  # those that came to an end
        return self._plan(choice, earned, tree, budget, slots)

    def _grow(
        self,
        policy: Beam | BestFirst,
        depth: int | None,
        transitions: int | None,
        seconds: float | None,
    ) -> TreePlan:
        states, slots = self._states()
        fanout = int(self._space.n)
        least = (fanout, "one for each action of the root")
        budget = Budget(states.roots, transitions, seconds, least)
        tree = Tree.start(states.roots, fanout, int(self._space.start))
        found = grow(states, tree, budget, policy, depth, self.rng, self.discount)
        return self._plan(*found, tree, budget, slots)

    def _states(self) -> tuple[States, Ints]:
        """Copies the branches to plan for; returns them and their slots."""
        env = self.env
        if isinstance(env, BranchWrapper):
            if env.observation is None:
                raise NotResetError(
                    "a plan before the first reset; call `reset` of this BranchWrapper first"
                )
            return ObjectStates([env], [env.key], self.rng, self.seed), np.zeros(1, np.int64)
        slots = np.flatnonzero(np.asarray(_host(env.live)))
        if not slots.size:
            raise ValueError("no branch is live; expected at least one to plan for")
        if isinstance(env, ObjectVectorEnv):
            frontier, limit = env.frontier, env.max_episode_steps
            left = None if limit is None else (limit - frontier.depth[slots]).tolist()
            states = ObjectStates(
                env.environments(frontier.state["place"][slots]),
                [key % 2**64 for key in frontier.key[slots].tolist()],
                self.rng,
                self.seed,
                left=left,
                as_torch=env.output == "torch",
            )
            return states, slots
        return TensorStates(env, slots, self.rng, self.seed), slots

    def _plan(
        self, choice: Ints, earned: NDArray[np.float64], tree: Tree, budget: Budget, slots: Ints
    ) -> TreePlan:
        action: Any = choice + int(self._space.start)
        value: Any = earned
        if isinstance(self.env, BranchWrapper):
            action, value = int(action[0]), float(value[0])
        else:
            action = np.full(self.env.num_envs, int(self._space.start))
            value = np.full(self.env.num_envs, np.nan)
            action[slots], value[slots] = choice + int(self._space.start), earned
        return TreePlan(
            action=action,
            value=value,
            tree=tree.trim(),
            slots=slots,
            transitions=budget.used,
            simulations=budget.simulations,
            seconds=budget.elapsed,
        )


def _host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
