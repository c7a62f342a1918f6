"""Recorded SWE-bench outcomes as a branching environment: which submission to try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from branchrt_gym.contract import BranchEnv, Branches, Contract, Transition, branch, read_shared
from branchrt_gym.contract import shared as shared_field
from branchrt_gym.kernels import bounded, fold
from branchrt_gym.oracle import Oracle
from branchrt_gym.oracle import bounded as bounded_int
from branchrt_gym.oracle import fold as fold_int
from branchrt_gym.wrappers.swebench import SweBenchReplay

__all__ = ["SweBench", "SweBenchOracle"]

MICRO = 10**6  # dollars are added as whole millionths
SOLVED = 10**12  # what solving adds to the score: more than any sum of dollars takes away
MOST = 62  # submissions: a branch has one bit for each


class SweBench(BranchEnv):
    """Trying submissions on an instance until one resolves it.

    A context is an instance, drawn by the context's key. A branch is the submissions tried so far.
    An action tries one: it costs that attempt's dollars and resolves the instance or not, as on
    record. Trying one again costs nothing and changes nothing. An episode ends when the instance
    is resolved, or after as many steps as there are submissions.

    Observation: `[C] int8`, 1 for each submission tried. Reward: 1 when the instance is resolved.
    Score, in millionths of a dollar: what was spent, negative; plus 10**12 where it is resolved:
    so a search looks for the cheapest submission that resolves each instance.

    The rules are stated in full by `SweBenchOracle`, the scalar form.

    Args:
        directory: A checkout of the public layout; see `SweBenchReplay.load`.
        submissions: See `choose`. At most 62.
        split: Which split; None for the only one.
    """

    reward_dtype = torch.int32
    uses_key = False

    def __init__(
        self, directory: str, submissions: Sequence[str] = ("all",), split: str | None = None
    ) -> None:
        """Reads the outcomes; see the class for the arguments."""
        replay = SweBenchReplay.load(directory, submissions, split)
        self.resolved, self.price = _outcomes(replay)
        self.instances = replay.instances
        self.count = len(replay.table.names)
        if self.count > MOST:
            raise ValueError(f"`submissions` are {self.count}; expected at most {MOST}")
        self.contract = Contract(
            {
                "instance": shared_field((), torch.int32),
                "resolved": shared_field((self.count,), torch.bool),
                "price": shared_field((self.count,), torch.int64),
                "tried": branch((), torch.int64),
                "score": branch((), torch.int64),
            }
        )
        self.single_observation_space = spaces.Box(0, 1, (self.count,), np.int8)
        self.single_action_space = spaces.Discrete(self.count)

    def initial_shared(self, keys: Tensor) -> dict[str, Tensor]:
        """Draws an instance for each context, and takes its outcomes."""
        instance = bounded(fold(keys, 0), len(self.instances))
        row = instance.cpu()
        return {
            "instance": instance.to(torch.int32),
            "resolved": torch.from_numpy(self.resolved)[row].to(keys.device),
            "price": torch.from_numpy(self.price)[row].to(keys.device),
        }

    def initial(
        self, shared: Mapping[str, Tensor], context_index: Tensor, keys: Tensor
    ) -> dict[str, Tensor]:
        """Starts with nothing tried."""
        nothing = torch.zeros_like(keys)
        return {"tried": nothing, "score": nothing.clone()}

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        """Tries a submission on each branch's instance."""
        candidate = action.to(torch.int64)
        tried = branches.state["tried"]
        bit = torch.ones_like(tried) << candidate
        fresh = (tried & bit) == 0
        price = read_shared(shared["price"], branches.context_index, candidate)
        solved = read_shared(shared["resolved"], branches.context_index, candidate) & fresh
        score = branches.state["score"] - price * fresh + SOLVED * solved
        last = branches.depth >= self.count - 1
        return Transition(
            state={"tried": tried | bit, "score": score},
            reward=solved.to(torch.int32),
            terminated=solved,
            truncated=last & ~solved,
            solved=solved,
        )

    def observation(self, shared: Mapping[str, Tensor], branches: Branches) -> Tensor:
        """Shows which submissions were tried."""
        tried = branches.state["tried"]
        place = torch.arange(self.count, device=tried.device)
        return (tried[:, None] >> place & 1).to(torch.int8)


class SweBenchOracle(Oracle[np.ndarray, int | np.int64]):
    """The scalar form of `SweBench`, which has the same arguments."""

    branch_fields = ("tried", "score")

    def __init__(
        self, directory: str, submissions: Sequence[str] = ("all",), split: str | None = None
    ) -> None:
        """Reads the outcomes."""
        replay = SweBenchReplay.load(directory, submissions, split)
        resolved, price = _outcomes(replay)
        self.rows = list(zip(resolved.tolist(), price.tolist(), strict=True))
        self.count = len(replay.table.names)
        self.observation_space = spaces.Box(0, 1, (self.count,), np.int8)
        self.action_space = spaces.Discrete(self.count)

    def make_context(self, key: int) -> object:
        """An instance and its outcomes."""
        instance = bounded_int(fold_int(key, 0), len(self.rows))
        resolved, price = self.rows[instance]
        return {"instance": instance, "resolved": tuple(resolved), "price": tuple(price)}

    def start(self) -> None:
        """Nothing was tried."""
        self.tried = self.score = 0

    def advance(self, action: int, key: int) -> tuple[float, bool, bool, bool]:
        """Tries a submission."""
        context: Any = self.context
        solved = False
        if not self.tried >> action & 1:
            self.tried |= 1 << action
            self.score -= context["price"][action]
            solved = context["resolved"][action]
        if solved:
            self.score += SOLVED
        return float(solved), solved, self.depth + 1 == self.count and not solved, solved

    def observe(self) -> np.ndarray:
        """Which submissions were tried."""
        return np.array([self.tried >> place & 1 for place in range(self.count)], np.int8)


def _outcomes(replay: SweBenchReplay) -> tuple[np.ndarray, np.ndarray]:
    """Verdicts `[R, C] bool` and prices `[R, C] int64`; what is absent resolves nothing."""
    assert replay.table.cost is not None
    return replay.resolved, np.rint(replay.table.cost * MICRO).astype(np.int64)
