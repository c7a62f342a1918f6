"""An environment with fields of many dtypes and shapes, batched in torch and scalar in Python.

Chance ends branches early and often, and solves without ending, so that short programs meet it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from frontier_keys import context_key, fold
from frontier_records import Step
from gymnasium import spaces

from branchrt_gym import BranchEnv, Contract, Transition, branch, log, read_shared, shared
from branchrt_gym.kernels import fold as fold_tensor

WIDTH = 5
BIAS = 2
ACTIONS = range(-1, 2)


class Weave(BranchEnv):
    reward_dtype = torch.float32

    def __init__(self) -> None:
        self.contract = Contract(
            {
                "table": shared((WIDTH,), torch.int16),
                "bias": shared((), torch.int32, per_context=False),
                "score": branch((), torch.int32),
                "knots": branch((3,), torch.bool),
                "cloth": branch((2, 2), torch.uint8),
                "tall": branch((), torch.int64),
                "fine": branch((2,), torch.float16),
                "void": branch((0,), torch.float64),
                "said": log((2,), torch.int16),
                "loud": log((), torch.bool),
            }
        )
        self.single_observation_space = spaces.Box(-(2**31), 2**31 - 1, (2,), np.int64)
        self.single_action_space = spaces.Discrete(len(ACTIONS), start=ACTIONS.start)

    def initial_shared(self, keys):
        words = torch.arange(WIDTH, device=keys.device)
        table = (fold_tensor(keys[:, None], words) & 15).to(torch.int16)
        return {"table": table, "bias": torch.tensor(BIAS, dtype=torch.int32)}

    def initial(self, shared, context_index, keys):
        score = read_shared(shared["table"], context_index, keys & 3).to(torch.int32)
        count = keys.shape[0]
        return {
            "score": score,
            "knots": torch.stack([(keys >> n) & 1 == 1 for n in range(3)], dim=1),
            "cloth": torch.full((count, 2, 2), 250, dtype=torch.uint8),
            "tall": keys.clone(),
            "fine": torch.zeros(count, 2, dtype=torch.float16),
            "void": torch.zeros(count, 0, dtype=torch.float64),
        }

    def transition(self, shared, branches, action):
        key, state = branches.key, branches.state
        part = read_shared(shared["table"], branches.context_index, (action + branches.depth) % 5)
        gain = (part + ((key >> 32) & 3) - shared["bias"]).to(torch.int32)
        last = state["knots"]
        cloth = state["cloth"].to(torch.int64) + action[:, None, None] + 3
        return Transition(
            state={
                "score": state["score"] + gain,
                "knots": torch.stack([last[:, 1], last[:, 2], (key >> 5) & 1 == 1], dim=1),
                "cloth": (cloth & 255).to(torch.uint8).transpose(1, 2),
                "tall": state["tall"] * 3 + key,
                "fine": torch.stack([state["fine"][:, 1] + 0.5, action.half()], dim=1),
                "void": state["void"],
            },
            reward=gain * 0.5,
            terminated=(key >> 8) & 7 == 0,
            truncated=(key >> 12) & 15 == 0,
            solved=(key >> 16) & 7 == 0,
            log={
                "said": torch.stack([action, (key >> 20) & 255], dim=1).to(torch.int16),
                "loud": (key >> 30) & 1 == 1,
            },
        )

    def observation(self, shared, branches):
        return torch.stack([branches.state["score"].long(), branches.depth + 1], dim=1)


def wrapped(value: int, bits: int = 64) -> int:
    """The signed integer of `bits` bits that is left of `value`."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def scalar_table(seed: int) -> list[int]:
    key = context_key(seed)
    return [fold(key, word) & 15 for word in range(WIDTH)]


def scalar_initial(table: list[int], key: int) -> dict[str, Any]:
    return {
        "score": table[key & 3],
        "knots": [bool(key >> n & 1) for n in range(3)],
        "cloth": [[250, 250], [250, 250]],
        "tall": wrapped(key),
        "fine": [0.0, 0.0],
        "void": [],
    }


def scalar_transition(
    table: list[int], state: dict[str, Any], depth: int, key: int, action: int
) -> Step:
    """Takes an action; `key` is the transition's."""
    gain = table[(action + depth) % WIDTH] + (key >> 32 & 3) - BIAS
    (a, b), (c, d) = ([(entry + action + 3) % 256 for entry in row] for row in state["cloth"])
    after = {
        "score": state["score"] + gain,
        "knots": [*state["knots"][1:], bool(key >> 5 & 1)],
        "cloth": [[a, c], [b, d]],
        "tall": wrapped(state["tall"] * 3 + key),
        "fine": [state["fine"][1] + 0.5, float(action)],
        "void": [],
    }
    return Step(
        state=after,
        reward=gain * 0.5,
        terminated=key >> 8 & 7 == 0,
        truncated=key >> 12 & 15 == 0,
        solved=key >> 16 & 7 == 0,
        log=([action, key >> 20 & 255], bool(key >> 30 & 1)),
    )


def scalar_observation(state: dict[str, Any], depth: int) -> list[int]:
    return [state["score"], depth + 1]
