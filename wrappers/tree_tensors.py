"""The rows of a plan as tensors: of a population under a contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor

from branchrt_gym.contract import Branches
from branchrt_gym.kernels import fold
from branchrt_gym.page_pool import PagePool
from branchrt_gym.pages import PageWrites
from branchrt_gym.seeding import Rng, fork_key
from branchrt_gym.slots import occurrence
from branchrt_gym.structure import map_leaves
from branchrt_gym.vector_env import BranchingVectorEnv
from branchrt_gym.wrappers.tree_states import PLAN, Numbers, Step, told_apart

__all__ = ["TensorStates"]

Ints = NDArray[np.int64]
FIELD, TABLE = "field ", "pages of "  # before the names of columns; no contract's has a space


class TensorStates:
    """Rows of a population under a contract, in tensors on its device.

    Args:
        envs: The population, which is only read.
        slots: `[R] int64`, the branches to plan for.
        rng: Whether the rows' luck is apart from theirs.
        seed: Of the luck, if it is.
    """

    def __init__(self, envs: BranchingVectorEnv, slots: Ints, rng: Rng, seed: int) -> None:
        """Copies the branches' columns, and the pages that they have."""
        frontier = envs.frontier
        self.env = envs.env
        self.roots = slots.shape[0]
        self.space: Discrete = envs.single_action_space  # type: ignore[assignment]
        self.certain = not self.env.uses_key
        self.scored = self.env.score in frontier.contract.of("branch")
        self.shared = frontier.shared
        self.output = envs.output
        self.device = envs.device
        self.limit = envs.max_episode_steps
        rows = torch.from_numpy(slots).to(self.device)
        key = frontier.key[rows]
        if rng == "split":
            key = fold(fold(key, PLAN), seed)
        self.columns = {
            "key": key,
            "forks": torch.zeros_like(key),
            "depth": frontier.depth[rows],
            "context_index": frontier.context_index[rows],
        }
        self.columns |= {FIELD + name: col[rows] for name, col in frontier.state.items()}
        self.pools = {name: _twin(pool, rows) for name, pool in frontier.pages.items()}
        self.columns |= {TABLE + name: pool.table for name, pool in self.pools.items()}
        self._rows = Numbers(self.roots)

    def take(self, count: int) -> Ints:
        """As `States.take`."""
        rows = self._rows.take(count)
        here = self.columns["key"].shape[0]
        if self._rows.used > here:
            more = torch.zeros(max(here, self._rows.used - here), dtype=torch.int64)
            more = more.to(self.device)  # copies of the first row: valid values
            self.columns = {
                name: torch.cat([column, column[more]]) for name, column in self.columns.items()
            }
        return rows

    def free(self, rows: Iterable[int]) -> None:
        """As `States.free`."""
        self._rows.spare.extend(int(row) for row in rows)

    def copy(self, source: Ints, to: Ints, rng: Rng) -> None:
        """As `States.copy`."""
        parents, children = self._index(source), self._index(to)
        forks = self.columns["forks"][parents]
        key = fork_key(self.columns["key"][parents], forks, occurrence(parents), rng)
        self.columns["forks"][parents] = forks + 1
        for column in self.columns.values():
            column[children] = column[parents]
        self.columns["key"][children] = key
        if rng == "split":
            self.columns["forks"][children] = 0

    def step(self, rows: Ints, choice: Ints) -> Step:
        """As `States.step`."""
        at = self._index(rows)
        seen = self._branches(at, with_key=self.env.uses_key)
        made = self.env.transition(self.shared, seen, self._index(choice) + int(self.space.start))
        for name, values in made.state.items():
            self.columns[FIELD + name][at] = values
        depth = self.columns["depth"][at] + 1
        self.columns["depth"][at] = depth
        self._write(at, made.pages)
        ended = made.terminated | made.truncated
        if self.limit is not None:
            ended = ended | (depth >= self.limit)
        score = made.state[self.env.score].to(torch.int64).cpu().numpy() if self.scored else None
        return Step(made.reward.to(torch.float64).cpu().numpy(), ended.cpu().numpy(), score)

    def observe(self, rows: Ints) -> Any:
        """As `States.observe`."""
        seen = self.env.observation(self.shared, self._branches(self._index(rows)))
        return seen if self.output == "torch" else map_leaves(lambda leaf: leaf.cpu().numpy(), seen)

    def outcome(self, rows: Ints) -> list[bytes]:
        """As `States.outcome`."""
        seen = self.env.observation(self.shared, self._branches(self._index(rows)))
        whole = map_leaves(lambda leaf: leaf.cpu().numpy(), seen)
        return [
            told_apart(map_leaves(lambda leaf, row=row: leaf[row], whole))
            for row in range(rows.shape[0])
        ]

    def _index(self, rows: Ints) -> Tensor:
        return torch.from_numpy(rows).to(self.device)

    def _branches(self, at: Tensor, with_key: bool = False) -> Branches:
        columns = {name: column[at] for name, column in self.columns.items()}
        context, depth = columns["context_index"], columns["depth"]
        pages = {
            name: pool.view(self._base(pool), context, None)._replace(table=columns[TABLE + name])
            for name, pool in self.pools.items()
        }
        return Branches(
            context_index=context,
            depth=depth,
            state={
                name.removeprefix(FIELD): column
                for name, column in columns.items()
                if name.startswith(FIELD)
            },
            key=fold(columns["key"], depth.to(torch.int64)) if with_key else None,
            pages=pages,
        )

    def _write(self, at: Tensor, pages: Mapping[str, PageWrites]) -> None:
        """Writes to pages; every row may share its own with others, so none is written in place."""
        for name, writes in pages.items():
            pool = self.pools[name]
            pool.table = self.columns[TABLE + name]
            count = pool.table.shape[0]
            pool.sealed = pool.tick().expand(count).contiguous()
            held = torch.ones(count, dtype=torch.bool, device=self.device)
            held[torch.tensor(self._rows.spare, dtype=torch.int64, device=self.device)] = False
            pool.make_room(writes, at, held)
            pool.write(writes, at, self._base(pool), self.columns["context_index"])

    def _base(self, pool: PagePool) -> Tensor | None:
        return None if pool.field.initial is None else self.shared[pool.field.initial]


def _twin(pool: PagePool, rows: Tensor) -> PagePool:
    """A pool of its own, with the pages that the slots `rows` have."""
    held = torch.zeros(pool.table.shape[0], dtype=torch.bool, device=rows.device)
    saved = pool.copies(held.index_fill_(0, rows, True))
    twin = PagePool(pool.field, rows.shape[0], device=rows.device, name=pool.name)
    twin.put({**saved, "table": saved["table"][rows], "sealed": saved["sealed"][rows]})
    return twin
