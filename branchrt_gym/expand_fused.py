"""The expansion in one kernel, for environments with a `transition_kernel`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from branchrt_gym.contract import BranchEnv
from branchrt_gym.frontier import Frontier
from branchrt_gym.kernels import copy_rows, resolve
from branchrt_gym.seeding import Rng
from branchrt_gym.slots import DONE, FREE

if TYPE_CHECKING:
    from branchrt_gym.kernels.expand_triton import Rules

__all__ = ["FusedExpansion", "fused_expansion"]

LEAST = 1 << 14  # children; with fewer, torch has stepped them long before a kernel is compiled
GATHERED = 1 << 16  # parents that are copied out of their children's way rather than expanded first
ALIGNED = 16  # a launch's first child, so that the kernel stores wide words


@dataclass(frozen=True)
class Made:
    """The children of an expansion, `[M]`: their fields, keys and how their steps ended."""

    state: dict[str, Tensor]
    key: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    solved: Tensor


def fused_expansion(
    frontier: Frontier, env: BranchEnv, rng: Rng, *, parents: int, fanout: int, first: int = 0
) -> FusedExpansion | None:
    """Returns the expansion of a frontier by an environment's kernel, or None where torch's runs.

    That is so without a GPU, Triton or such a kernel, for `branch` fields that are no scalars, for
    `paged` fields, and for `log` fields, which a kernel does not return; with few children; and
    with `debug`, since what is checked then is the environment's torch transition.

    Args:
        frontier: Whose branches expand.
        env: Its environment.
        rng: See `branch_step`.
        parents: How many branches expand.
        fanout: Actions of each.
        first: The lowest action.
    """
    if frontier.debug or resolve("auto", frontier.status) != "triton":
        return None
    contract = env.contract
    unfit = contract.not_in_registers is not None or contract.of("log")
    if parents * fanout < LEAST or unfit or not frontier.state:
        return None
    kernel = env.transition_kernel(frontier.device)
    if kernel is None:
        return None
    from branchrt_gym.kernels.expand_triton import Rules

    return FusedExpansion(frontier, env, Rules(kernel, fanout, first, env.uses_key, rng == "split"))


@dataclass(frozen=True)
class FusedExpansion:
    """Expands branches of a frontier, every action of each, as `branch_step` does."""

    frontier: Frontier
    env: BranchEnv
    rules: Rules

    def children(self, parents: Tensor) -> Made:
        """Returns the children of `parents`, `[P] int64`, in order of (parent, action)."""
        from branchrt_gym.kernels import expand_triton

        frontier = self.frontier
        number = parents.shape[0] * self.rules.fanout

        def column(dtype: torch.dtype) -> Tensor:
            return torch.empty(number, dtype=dtype, device=frontier.device)

        state = {name: column(frontier.state[name].dtype) for name in self._names}
        flags = [column(torch.bool) for _ in range(3)]
        made = Made(state, column(torch.int64), column(self.env.reward_dtype), *flags)
        if number:
            expand_triton.children(
                self.rules,
                self._shared,
                self._columns,
                self._state,
                parents,
                [*state.values()],
                made.key,
                (made.reward, *flags),
            )
        return made

    def fields(self, state: Mapping[str, Tensor]) -> None:
        """Writes the `branch` fields of the children of the first branches, and nothing else."""
        from branchrt_gym.kernels import expand_triton

        out = [state[name] for name in self._names]
        expand_triton.children(self.rules, self._shared, self._columns, self._state, None, out)

    def replace_all(
        self, parents: Tensor, max_depth: int | None, more_entries: int
    ) -> tuple[Tensor, Tensor] | None:
        """Replaces every live branch by its children if nothing is to be selected.

        That is so where all of them fit and none of their roots is or becomes solved, which is
        found out first, by a kernel that only looks: nothing of what the children are is kept
        between the two.

        Args:
            parents: The live branches' slots in order.
            max_depth: See `branch_step`.
            more_entries: Likewise.

        Returns:
            All children's rewards and whether they are done, or None, and nothing has changed.

        Raises:
            LineageFullError: If the lineage cannot take them; nothing is changed.
        """
        from branchrt_gym.kernels import expand_triton

        frontier = self.frontier
        count = parents.shape[0]
        number = count * self.rules.fanout
        if not 0 < number <= frontier.num_slots:
            return None
        seen = (
            expand_triton.solves(self.rules, self._shared, self._columns, self._state, parents),
            frontier.solved[frontier.root[parents]].any(),
            (frontier.status == DONE).sum(),
            parents[-1],
        )
        passed, solved, held, last = (int(x) for x in torch.stack([x.long() for x in seen]).cpu())
        if passed or solved or number > frontier.num_slots - held:
            return None
        frontier.make_room(number + more_entries)
        live = frontier.live
        slots = None
        if held or last != count - 1:  # else the parents are in front, and so will be the children
            slots = ((frontier.status == FREE) | live).nonzero().squeeze(1)[:number]
        frontier.status.masked_fill_(live, FREE)
        reward = torch.empty(number, dtype=self.env.reward_dtype, device=frontier.device)
        done = torch.empty(number, dtype=torch.bool, device=frontier.device)
        self.write(parents, slots, max_depth, (reward, done))
        frontier.next_id += number
        if frontier.lineage.recorded:
            frontier.lineage.used += number
            frontier.lineage.count += number
        return reward, done

    def write(
        self,
        parents: Tensor,
        slots: Tensor | None,
        max_depth: int | None = None,
        outcome: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Writes every child into its slot and the lineage; no host synchronisation.

        Nothing is checked, none may solve its root, and the counters of ids and entries stay.
        Where the parents fill the first slots, child number `i` goes to slot `i`: the last parents
        are expanded first, as many at a time as have their children's slots behind them, and only
        the first parents are copied out of the way.

        Args:
            parents: `[P] int64`, their slots.
            slots: `[P * F] int64`, the children's; None if parents and children fill the first.
            max_depth: Depth at which children are truncated.
            outcome: All children's reward and done, to be written too.
        """
        from branchrt_gym.kernels import expand_triton

        frontier, fanout = self.frontier, self.rules.fanout
        names = ("root", "context_index", "branch_id", "depth", "key", "forks", "last_entry")
        source = [getattr(frontier, name) for name in names]
        state = self._state
        lineage = frontier.lineage
        recorded = ("parent_entry", "branch_id", "root", "flags", "action", "reward")
        entries = [lineage.columns[name] for name in recorded] if lineage.recorded else None
        score = self._names.index(self.env.score) if self.env.score in self._names else None

        def launch(source: list[Tensor], state: list[Tensor], low: int, high: int) -> None:
            expand_triton.replace(
                self.rules,
                self._shared,
                source,
                state,
                slots,
                [frontier.status, *(getattr(frontier, name) for name in frontier.COLUMNS)],
                self._state,
                entries,
                frontier.next_id,
                lineage.count,
                outcome,
                (low * fanout, high * fanout),
                max_depth,
                score,
            )

        high = parents.shape[0]
        while slots is None and fanout > 1 and high > GATHERED:
            low = -(-high // (fanout * ALIGNED)) * ALIGNED
            launch(source, state, low, high)
            high = low
        rows = parents[:high]
        columns = [*source, *state]
        copies = [torch.empty(high, dtype=x.dtype, device=x.device) for x in columns]
        place = rows if slots is None else torch.arange(high, device=rows.device)
        copy_rows(copies, rows, place, sources=columns)
        launch(copies[: len(names)], copies[len(names) :], 0, high)

    @property
    def _names(self) -> list[str]:
        """The `branch` fields in the contract's order, which is the kernel's."""
        return [*self.env.contract.of("branch")]

    @property
    def _state(self) -> list[Tensor]:
        return [self.frontier.state[name] for name in self._names]

    @property
    def _shared(self) -> list[Tensor]:
        shared = self.frontier.shared
        return [shared[name].contiguous() for name in self.env.contract.of("shared")]

    @property
    def _columns(self) -> list[Tensor]:
        frontier = self.frontier
        return [frontier.context_index, frontier.depth, frontier.key, frontier.forks]
