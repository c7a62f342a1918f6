"""Checks of what an environment's hooks return, against its contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from branchrt_gym.contract import (
    BranchEnv,
    Branches,
    Field,
    InitialKernel,
    ObservationKernel,
    Transition,
    TransitionKernel,
)
from branchrt_gym.errors import ContractError
from branchrt_gym.pages import NO_WRITE, PageWrites
from branchrt_gym.structure import rest_action, rest_observation

__all__ = ["CheckedEnv", "check_declaration"]


def check_declaration(env: BranchEnv) -> None:
    """Checks what can be checked without running the environment.

    Raises:
        ContractError: Naming the wrong attribute.
    """
    name = type(env).__name__
    if not hasattr(env, "contract") or not hasattr(env.contract, "of"):
        raise ContractError(f"`{name}.contract` is missing; expected a Contract")
    for attribute in ("single_observation_space", "single_action_space"):
        if not isinstance(getattr(env, attribute, None), spaces.Space):
            raise ContractError(f"`{name}.{attribute}` is missing; expected a Gymnasium space")
    rest_observation(env.single_observation_space)
    rest_action(env.single_action_space)
    if not isinstance(env.reward_dtype, torch.dtype):
        raise ContractError(
            f"`{name}.reward_dtype` is {env.reward_dtype!r}; expected a torch dtype"
        )
    score = env.contract.fields.get(env.score)
    if score is not None and (score.kind != "branch" or score.shape or not _whole(score.dtype)):
        raise ContractError(
            f"`{name}.score` names `{env.score}`, a {score.kind} field of {score.dtype} and shape "
            f"{score.shape}; expected a scalar integer `branch` field"
        )


def _whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and dtype != torch.bool


class CheckedEnv(BranchEnv):
    """An environment whose hooks are checked at their first call, and always with `debug`.

    Args:
        env: The environment, reachable as `rules`.
        debug: Check every call, and every transition for writes into shared fields.
    """

    def __init__(self, env: BranchEnv, *, debug: bool = False) -> None:
        """Checks the declaration."""
        check_declaration(env)
        self.rules = env
        self.debug = debug
        self.contract = env.contract
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.reward_dtype = env.reward_dtype
        self.score = env.score
        self.uses_key = env.uses_key
        self.uses_branch_key = env.uses_branch_key
        self._seen: set[str] = set()

    def initial_shared(self, keys: Tensor) -> dict[str, Tensor]:
        """As `BranchEnv.initial_shared`."""
        fields = self.rules.initial_shared(keys)
        declared = self.rules.contract.of("shared")
        self._fields("initial_shared", fields, declared, keys.shape[0])
        return {name: fields[name].contiguous() for name in declared}

    def initial(
        self, shared: Mapping[str, Tensor], context_index: Tensor, keys: Tensor
    ) -> dict[str, Tensor]:
        """As `BranchEnv.initial`."""
        return self._first(self.rules.initial(shared, context_index, keys), keys)

    def begin(
        self,
        shared: Mapping[str, Tensor],
        context_index: Tensor,
        keys: Tensor,
        *,
        roots: Tensor,
        slots: Tensor | None,
        seeds: Tensor | None,
    ) -> dict[str, Tensor]:
        """As `BranchEnv.begin`."""
        fields = self.rules.begin(
            shared, context_index, keys, roots=roots, slots=slots, seeds=seeds
        )
        return self._first(fields, keys)

    def _first(self, fields: Mapping[str, Tensor], keys: Tensor) -> dict[str, Tensor]:
        if self._due("initial"):
            self._fields("initial", fields, self.rules.contract.of("branch"), keys.shape[0])
        return {name: fields[name].contiguous() for name in self.rules.contract.of("branch")}

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        """As `BranchEnv.transition`."""
        if not self._due("transition"):
            return self.rules.transition(shared, branches, action)
        versions = {name: _version(field) for name, field in shared.items()}
        before = {name: field.clone() for name, field in shared.items()} if self.debug else {}
        lent = dict(shared)
        state = {name: _version(column) for name, column in branches.state.items()}
        step = self.rules.transition(lent, branches, action)
        for name, column in branches.state.items():
            if _version(column) != state[name]:
                raise ContractError(
                    f"`transition` wrote into `branches.state[{name!r}]`, which is the branches as "
                    "they were; return the new values in a tensor of their own"
                )
        for name, field in shared.items():
            touched = lent.get(name) is not field or _version(field) != versions[name]
            if touched or (name in before and not torch.equal(field, before[name])):
                raise ContractError(
                    f"`transition` wrote into field `{name}`, which is `shared`; declare it "
                    "`branch` if a transition must change it"
                )
        count = branches.depth.shape[0]
        contract = self.rules.contract
        self._fields("transition", step.state, contract.of("branch"), count, "state")
        self._fields("transition", step.log, contract.of("log"), count, "log")
        self._pages(step.pages, branches)
        _expect("transition", "reward", step.reward, self.rules.reward_dtype, (count,))
        for flag in ("terminated", "truncated", "solved"):
            _expect("transition", flag, getattr(step, flag), torch.bool, (count,))
        return step

    def transition_kernel(self, device: torch.device) -> TransitionKernel | None:
        """As `BranchEnv.transition_kernel`."""
        return self.rules.transition_kernel(device)

    def initial_kernel(self, device: torch.device) -> InitialKernel | None:
        """As `BranchEnv.initial_kernel`."""
        return self.rules.initial_kernel(device)

    def observation_kernel(self, device: torch.device) -> ObservationKernel | None:
        """As `BranchEnv.observation_kernel`."""
        return self.rules.observation_kernel(device)

    def observation(self, shared: Mapping[str, Tensor], branches: Branches) -> Any:
        """As `BranchEnv.observation`."""
        seen = self.rules.observation(shared, branches)
        if self._due("observation"):
            count = branches.depth.shape[0]
            _expect_tree(seen, rest_observation(self.rules.single_observation_space), count)
        return seen

    def render(
        self, shared: Mapping[str, np.ndarray], branch: Mapping[str, np.ndarray], mode: str
    ) -> np.ndarray | str:
        """As `BranchEnv.render`."""
        return self.rules.render(shared, branch, mode)

    def _pages(self, given: Mapping[str, PageWrites], branches: Branches) -> None:
        """Checks what a transition writes to paged fields, by entry if there is time for it."""
        declared = self.rules.contract.of("paged")
        if set(given) - set(declared):
            raise ContractError(
                f"`transition`'s `pages` has {sorted(given)}; expected the contract's paged fields "
                f"{sorted(declared)}, or some of them"
            )
        count = branches.depth.shape[0]
        for name, writes in given.items():
            if not isinstance(writes, PageWrites):
                raise ContractError(
                    f"`transition` returned `pages[{name!r}]` as {type(writes).__name__}; expected "
                    f"what `branches.pages[{name!r}].write` returns"
                )
            runs = (count, *writes.start.shape[1:])
            _expect("transition", f"{name}'s start", writes.start, torch.int64, runs)
            shape = (*runs, *writes.value.shape[2:])
            _expect("transition", name, writes.value, declared[name].dtype, shape)
            if writes.start.numel():
                _check_runs(name, writes, declared[name].shape[0])

    def _due(self, hook: str) -> bool:
        due = self.debug or hook not in self._seen
        self._seen.add(hook)
        return due

    def _fields(
        self,
        hook: str,
        given: Mapping[str, Tensor],
        declared: Mapping[str, Field],
        count: int,
        part: str = "",
    ) -> None:
        what = f"`{hook}`" + (f"'s `{part}`" if part else "")
        if not isinstance(given, Mapping):
            raise ContractError(f"{what} is {type(given).__name__}; expected a dict of fields")
        _same_names(what, given, declared)
        for name, field in declared.items():
            shape = field.shape if not field.per_context else (count, *field.shape)
            _expect(hook, name, given[name], field.dtype, shape)


def _check_runs(name: str, writes: PageWrites, width: int) -> None:
    """Refuses runs that leave the field or that overlap."""
    length = torch.full_like(writes.start, writes.value.shape[2])
    if writes.length is not None:
        length = writes.length
    length = torch.where(writes.start == NO_WRITE, 0, length)
    end = writes.start + length
    outside = (length > 0) & ((writes.start < 0) | (end > width))
    if bool(outside.any()) or bool((length < 0).any() | (length > writes.value.shape[2]).any()):
        raise ContractError(
            f"`transition` writes entries {int(writes.start.min())} … {int(end.max()) - 1} of "
            f"`{name}`, in runs of {int(length.min())} … {int(length.max())} entries; expected "
            f"entries 0 … {width - 1}, and runs of at most {writes.value.shape[2]}, the values"
        )
    start = torch.where(length > 0, writes.start, width).sort(1)
    if bool((end.gather(1, start.indices)[:, :-1] > start.values[:, 1:]).any()):
        raise ContractError(
            f"`transition` writes an entry of `{name}` twice in one step; expected runs of a "
            "branch that do not overlap, since which of them is last is not defined"
        )


def _version(column: Tensor) -> int:
    """How often a tensor was written to; inference tensors do not count."""
    return 0 if column.is_inference() else column._version


def _same_names(what: str, given: Iterable[str], declared: Iterable[str]) -> None:
    missing, extra = sorted(set(declared) - set(given)), sorted(set(given) - set(declared))
    if missing or extra:
        raise ContractError(
            f"{what} lacks {missing} and has {extra} beyond; expected the contract's "
            f"fields {sorted(declared)}"
        )


def _expect(hook: str, name: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor):
        raise ContractError(
            f"`{hook}` returned `{name}` as {type(value).__name__}; expected a tensor of {dtype} "
            f"and shape {shape}"
        )
    if value.dtype != dtype or tuple(value.shape) != shape:
        raise ContractError(
            f"`{hook}` returned `{name}` as {value.dtype} of shape {tuple(value.shape)}; expected "
            f"{dtype} of shape {shape}"
        )


def _expect_tree(seen: Any, rest: Any, count: int, name: str = "observation") -> None:
    if isinstance(rest, dict):
        if not isinstance(seen, dict):
            raise ContractError(f"`{name}` is {type(seen).__name__}; expected a dict, as its space")
        _same_names(f"`{name}`", seen, rest)
        for key in rest:
            _expect_tree(seen[key], rest[key], count, f"{name}[{key!r}]")
    elif isinstance(rest, tuple):
        if not isinstance(seen, tuple) or len(seen) != len(rest):
            raise ContractError(f"`{name}` is not a tuple of {len(rest)}, as its space is")
        for place, part in enumerate(rest):
            _expect_tree(seen[place], part, count, f"{name}[{place}]")
    else:
        dtype = torch.from_numpy(np.empty(0, rest.dtype)).dtype
        _expect("observation", name, seen, dtype, (count, *rest.shape))
