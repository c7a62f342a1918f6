"""A tiny environment with chance, ends that depend on the state, and faults to plant.

The counter goes round a shared table of 16 entries. A step adds the action and one to it, and pays
the entry it lands on and a draw in 0 … 2; the score adds up what was paid. An episode terminates
on the context's goal; it is truncated after `limit` steps. It is solved by a step after which the
score is above 6, at the end or before.
"""

import numpy as np
import torch
from gymnasium import spaces

from branchrt_gym.contract import BranchEnv, Contract, Transition, branch, read_shared, shared
from branchrt_gym.kernels import bounded, fold
from branchrt_gym.oracle import Oracle
from branchrt_gym.oracle import bounded as scalar_bounded
from branchrt_gym.oracle import fold as scalar_fold
from branchrt_gym.registry import Registration

SIZE = 16


def observation_space():
    return spaces.Dict(
        count=spaces.Discrete(SIZE, start=1), paid=spaces.Box(-1000, 1000, (2,), np.int32)
    )


class LuckyCounter(BranchEnv):
    reward_dtype = torch.int32
    fault = None

    def __init__(self, actions=3, limit=9):
        self.limit = limit
        self.contract = Contract(
            {
                "table": shared((SIZE,), torch.int32),
                "goal": shared((), torch.int32),
                "count": branch((), torch.int32),
                "score": branch((), torch.int32),
            }
        )
        self.single_observation_space = observation_space()
        self.single_action_space = spaces.Discrete(actions)

    def initial_shared(self, keys):
        entries = torch.stack([bounded(fold(keys, i), 7) - 3 for i in range(SIZE)], dim=1)
        goal = bounded(fold(keys, SIZE), SIZE)
        return {"table": entries.to(torch.int32), "goal": goal.to(torch.int32)}

    def initial(self, shared, context_index, keys):
        count = bounded(fold(keys, 0), SIZE).to(torch.int32)
        return {"count": count, "score": torch.zeros_like(count)}

    def transition(self, shared, branches, action):
        index = branches.context_index
        count = (branches.state["count"] + action.to(torch.int32) + 1) % SIZE
        entry = read_shared(shared["table"], index, count.to(torch.int64))
        reward = entry + bounded(fold(branches.key, 0), 3).to(torch.int32)
        if self.fault == "reward":
            reward = torch.where(branches.depth == 3, reward + 1, reward)
        if self.fault == "shared":
            shared["table"][index[branches.depth == 2], 5] += 1
        if self.fault == "shared, behind torch's back":
            shared["table"].numpy()[index[branches.depth == 2], 5] += 1
        score = branches.state["score"] + reward
        terminated = count == shared["goal"][index]
        truncated = (branches.depth + 1 >= self.limit) & ~terminated
        if self.fault == "truncated":
            truncated = branches.depth + 1 >= self.limit
        state = {"count": count, "score": score}
        return Transition(state, reward, terminated, truncated, score > 6)

    def observation(self, shared, branches):
        count = branches.state["count"].to(torch.int64)
        if self.fault == "observation":
            count = torch.where(branches.depth == 1, (count + 1) % SIZE, count)
        last = read_shared(shared["table"], branches.context_index, count)
        return {
            "count": count + 1,
            "paid": torch.stack([branches.state["score"], last], dim=1),
        }


class LuckyCounterOracle(Oracle):
    branch_fields = ("count", "score")

    def __init__(self, actions=3, limit=9, render_mode=None):
        self.limit = limit
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = spaces.Discrete(actions)

    def make_context(self, key):
        table = tuple(scalar_bounded(scalar_fold(key, i), 7) - 3 for i in range(SIZE))
        return table, scalar_bounded(scalar_fold(key, SIZE), SIZE)

    def start(self):
        self.count = scalar_bounded(scalar_fold(self.key, 0), SIZE)
        self.score = 0

    def advance(self, action, key):
        table, goal = self.context
        self.count = (self.count + action + 1) % SIZE
        reward = table[self.count] + scalar_bounded(scalar_fold(key, 0), 3)
        self.score += reward
        terminated = self.count == goal
        truncated = self.depth + 1 >= self.limit and not terminated
        return reward, terminated, truncated, self.score > 6

    def observe(self):
        paid = np.array([self.score, self.context[0][self.count]], np.int32)
        return {"count": np.int64(self.count + 1), "paid": paid}


def faulty(fault):
    return type("Faulty", (LuckyCounter,), {"fault": fault})


def registration(env_class=LuckyCounter):
    return Registration(
        id="test/LuckyCounter-v0",
        env_class=env_class,
        oracle_class=LuckyCounterOracle,
        kwargs={},
        matrix={"actions": (2, 3), "limit": (1, 4, 9)},
    )
