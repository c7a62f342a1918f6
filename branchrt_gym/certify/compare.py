"""Runs a program on a vector environment and on the scalar model in lockstep."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from branchrt_gym.certify.branch import Branch
from branchrt_gym.certify.contents import compare_contents
from branchrt_gym.certify.difference import (
    Difference,
    Disagreement,
    Ledger,
    as_array,
    compare_trajectories,
)
from branchrt_gym.certify.expansion import branch_step
from branchrt_gym.certify.observations import compare_observations, leaves, stacked_rows
from branchrt_gym.certify.operations import (
    BranchStep,
    Compact,
    Fork,
    Operation,
    Prune,
    Reset,
    RoundTrip,
    Step,
)
from branchrt_gym.certify.population import Outcome, ScalarPopulation
from branchrt_gym.policies import Beam
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["Comparison", "compare_program"]

NO_ROOT = -1
FREE, LIVE, DONE = 0, 1, 2
AS_AT_RESET, WRITTEN = "as at the reset", "written by something else"


@dataclass(frozen=True)
class Comparison:
    """The result of one program.

    Attributes:
        compared: Values compared.
        difference: The first difference, or None.
        operations: What was run, up to and with the operation that differed; replays as it is.
    """

    compared: int
    difference: Difference | None
    operations: tuple[Operation, ...]


def compare_program(
    envs: BranchingVectorEnv, model: ScalarPopulation, program: Iterable[Operation]
) -> Comparison:
    """Applies each operation to both and compares everything after it.

    An error that the environment raises is a difference named `error`. A shared field that was
    written is named in place of the difference that it led to.
    """
    lockstep = Lockstep(envs, model)
    operations: list[Operation] = []
    difference: Difference | None = None
    try:
        for number, operation in enumerate(program):
            operations.append(operation)
            lockstep.apply(number, operation)
        lockstep.finish()
    except Disagreement as disagreement:
        difference = disagreement.difference
        written = lockstep.written_shared()
        if written:
            difference = dataclasses.replace(
                difference, field=f"shared.{written}", expected=AS_AT_RESET, got=WRITTEN
            )
    return Comparison(lockstep.ledger.compared, difference, tuple(operations))


class Lockstep:
    """One environment and its model, the same operations applied to both."""

    def __init__(self, envs: BranchingVectorEnv, model: ScalarPopulation) -> None:
        """Takes both before their first reset."""
        self.envs = envs
        self.model = model
        self.ledger = Ledger()
        self.space = envs.single_observation_space
        self.digests: dict[str, str] = {}

    def apply(self, number: int, operation: Operation) -> None:
        """Applies one operation and compares; raises `Disagreement`."""
        ledger = self.ledger
        ledger.operation, ledger.operation_name = number, type(operation).__name__
        fresh = (
            isinstance(operation, Reset) and operation.mask is None and operation.seed is not None
        )
        if fresh and self.digests:
            self.finish()
        try:
            getattr(self, f"_{type(operation).__name__.lower()}")(operation)
            self._columns()
        except Disagreement:
            raise
        except Exception as error:
            ledger.fail("error", "none", f"{type(error).__name__}: {error}")
        if fresh:
            self.digests = self._shared_digests()

    def finish(self) -> None:
        """Compares the trajectories, if they are recorded, and the shared fields' digests."""
        written = self.written_shared()
        if written:
            self.ledger.fail(f"shared.{written}", AS_AT_RESET, WRITTEN)
        self.ledger.compared += len(self.digests)
        branches = [
            branch
            for episodes in self.model.history
            for episode in episodes
            for branch in episode.values()
        ]
        if branches and self.envs.frontier.lineage.recorded:
            ids = torch.tensor([branch.branch_id for branch in branches], device=self.envs.device)
            compare_trajectories(self.ledger, branches, self.envs.trajectories(ids))

    def written_shared(self) -> str | None:
        """Returns the name of a shared field that is not as it was at the reset."""
        now = self._shared_digests() if self.digests else {}
        return next((name for name, digest in self.digests.items() if now[name] != digest), None)

    # Operations.

    def _reset(self, operation: Reset) -> None:
        seed = list(operation.seed) if isinstance(operation.seed, tuple) else operation.seed
        if operation.mask is None:
            outcome = self.model.reset(seed)
            observations, info = self.envs.reset(seed=seed)
        else:
            options = {"reset_mask": self._given(operation.mask, np.bool_)}
            outcome = self.model.reset_masked(operation.mask, seed)
            observations, info = self.envs.reset(seed=seed, options=options)
            if list(options) != ["reset_mask"]:
                self.ledger.fail("options", "['reset_mask']", list(options))
        self._observations(outcome.observations, observations, self.model.slots)
        self._info(outcome, info, self.model.slots)

    def _step(self, operation: Step) -> None:
        before = list(self.model.slots)
        outcome = self.model.step(operation.actions)
        after = self.model.slots
        branches = [old or new for old, new in zip(before, after, strict=True)]
        observations, rewards, terminated, truncated, info = self.envs.step(
            self._actions(operation.actions)
        )
        self._observations(outcome.observations, observations, branches)
        self._rewards("reward", outcome.rewards, rewards, branches)
        self.ledger.same("terminated", outcome.terminated, terminated, branches)
        self.ledger.same("truncated", outcome.truncated, truncated, branches)
        self._info(outcome, info, branches)

    def _fork(self, operation: Fork) -> None:
        counts = operation.counts
        each = counts if isinstance(counts, int) else self._given(counts, np.int64)
        parents = self._given(operation.parents, np.int64)
        slots = self.model.fork(operation.parents, counts, operation.rng)
        self.ledger.same("fork slots", slots, self.envs.fork(parents, each, rng=operation.rng))
        self._observed()

    def _prune(self, operation: Prune) -> None:
        if operation.by_mask:
            # A mask may also cover slots in which there is nothing to prune.
            ignored = self.model.free_slots() + list(self.model.reserved.values())
            mask = np.zeros(self.model.num_envs, dtype=np.bool_)
            mask[[*operation.slots, *ignored]] = True
            self.envs.prune(self._given(mask, np.bool_))
        else:
            self.envs.prune(self._given(operation.slots, np.int64))
        self.model.prune(operation.slots)
        self._observed()

    def _compact(self, operation: Compact) -> None:
        self.ledger.same("compact source", self.model.compact(), self.envs.compact())
        self._observed()

    def _branchstep(self, operation: BranchStep) -> None:
        parents = [branch for branch in self.model.slots if branch and branch.live]
        slots = self.model.live_slots()
        rewards, done = branch_step(self.model, operation.width, operation.rng)
        policy = None if operation.width is None else Beam(operation.width)
        _, got, ended = self.envs.branch_step(policy=policy, rng=operation.rng)
        # A row for each parent, so that a difference names it, and the action by its number.
        shape = len(parents), len(rewards) // max(len(parents), 1)
        self._rewards("child reward", rewards, got, parents, slots, shape)
        ends = as_array(ended).reshape(shape)
        self.ledger.same("child done", np.reshape(done, shape), ends, parents, slots)
        self._observed()

    def _roundtrip(self, operation: RoundTrip) -> None:
        snapshot = self.envs.snapshot()
        self.envs.step(self._actions(operation.actions))
        observations = self.envs.restore(snapshot)
        self._observations(self.model.observe(), observations, self.model.slots)

    # What is compared.

    def _columns(self) -> None:
        """Compares the frontier's columns: identity and place of every branch."""
        ledger, frontier, slots = self.ledger, self.envs.frontier, self.model.slots
        live = [bool(branch and branch.live) for branch in slots]
        status = [FREE if branch is None else LIVE if branch.live else DONE for branch in slots]
        roots = [branch.root if branch else NO_ROOT for branch in slots]
        ledger.same("live", live, self.envs.live, slots)
        ledger.same("status", status, frontier.status, slots)
        ledger.same("root", roots, self.envs.roots, slots)
        used = [slot for slot, branch in enumerate(slots) if branch]
        there = [branch for branch in slots if branch]
        columns = {
            "branch_id": [branch.branch_id for branch in there],
            "parent_id": [branch.parent_id for branch in there],
            "context_index": [branch.context_index for branch in there],
            "depth": [branch.oracle.depth for branch in there],
            "forks": [branch.oracle.forks for branch in there],
            "key": np.array([branch.oracle.key for branch in there], np.uint64).view(np.int64),
        }
        for name, expected in columns.items():
            got = as_array(getattr(frontier, name))[used]
            ledger.same(name, expected, got, there, used)
        compare_contents(ledger, frontier.branches().pages, there, used)
        for name, pool in frontier.pages.items():
            try:
                pool.invariants(frontier.status != FREE)
            except AssertionError as error:
                ledger.fail(f"accounts of {name}", "exact", str(error))

    def _observed(self) -> None:
        self._observations(self.model.observe(), self.envs.observe(), self.model.slots)

    def _observations(self, expected: Any, got: Any, branches: list[Branch | None]) -> None:
        name = "observation"
        parts = dict(leaves(got, name))
        compare_observations(self.ledger, self.space, name, expected, parts, branches)

    def _rewards(
        self,
        field: str,
        expected: list[float],
        got: Any,
        branches: Sequence[Branch | None],
        slots: Sequence[int] | None = None,
        shape: tuple[int, ...] = (-1,),
    ) -> None:
        """Compares in the contract's dtype: as it is in torch, widened to float64 in NumPy."""
        dtype = self.envs.env.reward_dtype
        want = torch.tensor(expected, dtype=torch.float64).to(dtype)
        torch_output = isinstance(got, torch.Tensor)
        right = got.dtype == (dtype if torch_output else np.float64)
        if not right:
            self.ledger.fail(f"{field} (dtype)", dtype if torch_output else "float64", got.dtype)
        have = as_array(got.double() if torch_output else got)
        want_rows, rows = want.double().numpy().reshape(shape), have.reshape(shape)
        self.ledger.same(field, want_rows, rows, branches, slots)

    def _info(self, outcome: Outcome, info: Any, branches: list[Branch | None]) -> None:
        self.ledger.same("info.live", outcome.live, info["live"], branches)
        if "solved" in info or self.ledger.operation_name == "Step":
            self.ledger.same("info.solved", outcome.solved, info["solved"], branches)
        restarted = np.zeros(self.model.num_envs, dtype=np.bool_)
        restarted[list(outcome.final)] = True
        if "final_obs" in info or outcome.final:
            self.ledger.same("info._final_obs", restarted, info["_final_obs"], branches)
        if not outcome.final:
            return
        slots = list(outcome.final)
        last, solved = zip(*outcome.final.values(), strict=True)
        ended = [branches[slot] for slot in slots]
        name = "info.final_obs"
        parts = stacked_rows(info["final_obs"], slots, name)
        compare_observations(self.ledger, self.space, name, last, parts, ended, slots)
        verdicts = as_array(info["final_info"]["solved"])[slots]
        self.ledger.same("info.final_info.solved", solved, verdicts, ended, slots)

    # How values are given to the environment.

    def _given(self, values: Any, dtype: Any) -> Any:
        """Returns an array, or a tensor on the environment's device where it speaks torch."""
        array = np.asarray(values, dtype=dtype)
        if self.envs.output == "torch":
            return torch.from_numpy(array).to(self.envs.device)
        return array

    def _actions(self, actions: tuple[Any, ...]) -> Any:
        return self._given(actions, self.envs.single_action_space.dtype)

    def _shared_digests(self) -> dict[str, str]:
        return {
            name: hashlib.blake2b(as_array(field).tobytes(), digest_size=16).hexdigest()
            for name, field in self.envs.frontier.shared.items()
        }
