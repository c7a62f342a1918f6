"""A vector env's step in one or two Triton kernels, replayed from a CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from branchrt_gym.kernels.dispatch import has_triton
from branchrt_gym.lineage import NO_ENTRY
from branchrt_gym.seeding import root_key
from branchrt_gym.slots import NO_BRANCH
from branchrt_gym.step_outputs import StepOutputs, leaves

if TYPE_CHECKING:
    from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["FusedStep", "StepTier", "plan_step", "unfit"]

StepTier = Literal["auto", "eager", "fused"]

ENTRIES = 256  # of an observation, at most: the kernel writes each by an instruction of its own
INT32 = torch.iinfo(torch.int32)
OFTEN = 2  # times that actions come from an address before a graph is made for it
ADDRESSES = 8  # that are kept account of
NEVER = INT32.max  # a depth that no branch reaches

_MODES = {AutoresetMode.NEXT_STEP: 0, AutoresetMode.SAME_STEP: 1, AutoresetMode.DISABLED: 2}

_log = logging.getLogger("branchrt_gym")


def unfit(envs: BranchingVectorEnv, rest: Any, bounds: tuple[Tensor, Tensor] | None) -> str | None:
    """Says why an environment's steps cannot be fused, or returns None; see `plan_step`."""
    env, frontier = envs.env, envs.frontier
    rules = type(env.rules).__name__
    if not has_triton():
        return "Triton is not installed"
    for hook in ("transition_kernel", "initial_kernel", "observation_kernel"):
        if getattr(env, hook)(frontier.device) is None:
            return f"{rules} has no `{hook}`"
    if envs.output != "torch":
        return f'`output` is "{envs.output}"'
    if env.debug:
        return "`debug` checks every hook"
    if frontier.lineage.recorded:
        return "the lineage is recorded"
    if envs.num_roots != envs.num_envs:
        return f"there are {envs.num_roots} roots in {envs.num_envs} slots"
    if env.contract.not_in_registers is not None:
        return env.contract.not_in_registers
    if frontier.status.is_inference():
        return "it was made under `torch.inference_mode`, where no change is counted"
    if bounds is None or bounds[0].ndim:
        return "its action is not one integer"
    low, high = (int(bound) for bound in bounds)
    if low < INT32.min or high > INT32.max:
        return f"its actions are {low} … {high}; expected int32"
    entries = sum(leaf.numel() for leaf in leaves(rest))
    if entries > ENTRIES:
        return f"an observation has {entries} entries; expected at most {ENTRIES}"
    return None


def plan_step(
    envs: BranchingVectorEnv, tier: StepTier, rest: Any, bounds: tuple[Tensor, Tensor] | None
) -> FusedStep | None:
    """Returns the fused form of an environment's steps where `tier` asks for it and it fits.

    Args:
        envs: The environment.
        tier: What its caller asked for.
        rest: The observation of a slot that is not live.
        bounds: The lowest and the highest action, if actions are integers.

    Raises:
        ValueError: If `tier` insists on it and it does not fit, with the reason.
    """
    if tier not in ("auto", "eager", "fused"):
        raise ValueError(f'`tier` is {tier!r}; expected "auto", "eager" or "fused"')
    if tier == "eager" or (tier == "auto" and envs.device.type != "cuda"):
        return None
    reason = unfit(envs, rest, bounds)
    if reason is None:
        assert bounds is not None
        return FusedStep(envs, rest, bounds)
    if tier == "fused":
        raise ValueError(f'`tier` is "fused", which does not fit: {reason}; expected "auto"')
    _log.info("steps of %s run eagerly: %s", type(envs.env.rules).__name__, reason)
    return None


class FusedStep:
    """Steps a population in which slot `r` holds root `r`.

    A full reset makes such a population; a fork, a compaction or an expansion may unmake it, and
    so may whoever changes the frontier's columns. `ready` says whether it still stands, from the
    version that torch counts of each tensor: no look at the device is needed. Kernels do not
    count, but a fork changes `forks`, everything else `status`, by an operation of torch's.

    Args:
        envs: Whose steps; its frontier's tensors stay the same ones, its shared fields may change.
        rest: The observation of a slot that is not live.
        bounds: The lowest and the highest action.
    """

    def __init__(self, envs: BranchingVectorEnv, rest: Any, bounds: tuple[Tensor, Tensor]) -> None:
        """Allocates what a step writes."""
        from branchrt_gym.kernels import step_triton

        self.envs, self.frontier = envs, envs.frontier
        self._triton = step_triton
        count, device = envs.num_envs, envs.device
        parts = leaves(rest)
        kernels = (
            envs.env.transition_kernel(device),
            envs.env.initial_kernel(device),
            envs.env.observation_kernel(device),
        )
        transition, initial, observation = kernels
        assert transition is not None and initial is not None and observation is not None
        self._rules = step_triton.Rules(
            transition,
            initial,
            observation,
            widths=tuple(leaf.numel() if leaf.ndim else 0 for leaf in parts),
            rest=tuple(tuple(leaf.flatten().tolist()) for leaf in parts),
            low=int(bounds[0]),
            high=int(bounds[1]),
            uses_key=envs.env.uses_key,
        )
        frontier = self.frontier
        self._columns = step_triton.Columns(
            status=frontier.status,
            context=frontier.context_index,
            branch_id=frontier.branch_id,
            depth=frontier.depth,
            key=frontier.key,
            root_key=torch.empty_like(frontier.seed),
            episode=frontier.episode,
            first_id=frontier.first_id,
            oldest_id=frontier.oldest_id,
            next_id=frontier.next_id,
        )
        self._actions = torch.zeros(count, dtype=torch.int64, device=device)
        blocks = step_triton.num_blocks(count)
        self._counts = [
            step_triton.Counts(
                torch.zeros(blocks, dtype=torch.int32, device=device),
                torch.zeros((), dtype=torch.int64, device=device),
            )
            for _ in range(2)
        ]
        self._outputs = StepOutputs(envs, rest)
        # By the address of the actions that they read, and the counts.
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._seen: dict[int, int] = {}  # how often actions came at an address
        self._turn = 0  # which of the counts say what restarts next
        self._lent = False  # whether a caller's graph steps too
        self._setting: tuple[object, ...] = ()
        self._shared: list[int] = []  # the addresses of the shared fields
        self._known: int | None = None  # the versions at which slot `r` was seen to hold root `r`
        self._counted: int | None = None  # those at which it is known what restarts next

    # Whether it may run -------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether slot `r` is known to hold root `r`, and no other branch was ever there."""
        return self._known == self._versions()

    def ready(self, actions: Any) -> bool:
        """Whether a step with these actions may be fused."""
        mine = self._actions
        return (
            isinstance(actions, Tensor)
            and (actions.dtype is torch.int64 or actions.dtype is torch.int32)
            and actions.shape == mine.shape
            and actions.device == mine.device
            and self.plain
        )

    def started(self) -> None:
        """Notes that slot `r` holds root `r`; seeds and shared fields may be others than before."""
        self._columns.root_key.copy_(root_key(self.frontier.seed))
        shared = [field.data_ptr() for field in self._read()]
        if shared != self._shared:
            self._shared = shared
            self._graphs.clear()
        self._known = self._versions()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Notes that what happens meanwhile moves no branch to another slot."""
        plain = self.plain
        yield
        if plain:
            self.started()

    def look(self) -> None:
        """Looks whether slot `r` holds root `r`, as after a restore; synchronises."""
        frontier = self.frontier
        same = frontier.root == torch.arange(frontier.num_slots, device=frontier.device)
        for column, value in (
            (frontier.parent_id, NO_BRANCH),
            (frontier.forks, 0),
            (frontier.last_entry, NO_ENTRY),
            (frontier.verdict_score, 0),
            (frontier.solved, 0),
            (frontier.branch_id, frontier.first_id),
        ):
            same &= column == value
        if bool(same.all()):
            self.started()
        else:
            self._known = None

    def _versions(self) -> int:
        frontier = self.frontier
        return frontier.status._version + frontier.forks._version + frontier.seed._version

    # The step -----------------------------------------------------------------------------

    def step(self, actions: Tensor) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every live branch, as `BranchingVectorEnv.step` does; no host synchronisation."""
        envs = self.envs
        setting = (envs.autoreset_mode, envs.max_episode_steps, envs.num_contexts)
        if setting != self._setting:
            self._graphs.clear()
            self._setting, self._counted = setting, None
        on_cuda = self._actions.is_cuda
        lent = on_cuda and torch.cuda.is_current_stream_capturing()
        self._lent |= lent
        if self._counted != self._known or self._lent:
            if envs.autoreset_mode == AutoresetMode.NEXT_STEP:
                self._count(self._actions)
            self._turn, self._counted = 0, self._known
        read = self._source(actions, not on_cuda or lent)
        graph = self._graphs.get((read.data_ptr(), self._turn))
        if graph is not None and not lent:
            graph.replay()
        else:
            self._launch(read)
            if on_cuda and not lent:
                self._graphs[read.data_ptr(), self._turn] = self._capture(read)
        if envs.autoreset_mode == AutoresetMode.NEXT_STEP:
            self._turn = 1 - self._turn
        return self._outputs.result(envs.copy)

    def _source(self, actions: Tensor, at_once: bool) -> Tensor:
        """Returns what the kernels read: the caller's tensor, or a copy of it.

        A graph reads one address, so the caller's tensor is read if others came from there.
        """
        if actions.dtype is torch.int64 and actions.is_contiguous():
            address = actions.data_ptr()
            times = self._seen.get(address, 0)
            if times >= OFTEN or at_once:
                return actions
            if times or len(self._seen) < ADDRESSES:
                self._seen[address] = times + 1
        return self._actions.copy_(actions)

    def _count(self, actions: Tensor) -> None:
        self._triton.count(
            self._rules,
            self._read(),
            self._columns,
            [*self.frontier.state.values()],
            actions,
            self._counts[0],
            mode=_MODES[self.envs.autoreset_mode],
            max_depth=self._last_depth(),
        )

    def _launch(self, actions: Tensor) -> None:
        mode = self.envs.autoreset_mode
        if mode == AutoresetMode.SAME_STEP:
            self._count(actions)
        outputs = self._outputs
        ends = outputs.ends or outputs.flags[:2]  # these are not written then
        self._triton.step(
            self._rules,
            self._read(),
            self._columns,
            [*self.frontier.state.values()],
            actions,
            outputs.leaves,
            outputs.final_leaves,
            self._triton.Outputs(outputs.reward, *outputs.flags, *ends),
            self._counts[self._turn],
            self._counts[1 - self._turn],
            mode=_MODES[mode],
            num_contexts=self.envs.num_contexts,
            max_depth=self._last_depth(),
        )

    def _read(self) -> list[Tensor]:
        return [self.frontier.shared[name] for name in self.envs.env.contract.of("shared")]

    def _last_depth(self) -> int:
        most = self.envs.max_episode_steps
        return NEVER if most is None else min(most - 1, NEVER)

    def _capture(self, actions: Tensor) -> torch.cuda.CUDAGraph:
        """Records the launches just made, on a stream beside the current one; nothing runs."""
        device = actions.device
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(device)
        beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._launch(actions)
            finally:
                graph.capture_end()
        current.wait_stream(beside)
        return graph
