"""What a search found: the branches it holds, and the paths that led to every one it kept."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from branchrt_gym.branch_step import first_action
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import Branches
from branchrt_gym.kernels import fold
from branchrt_gym.pages import Pages
from branchrt_gym.roots import Roots
from branchrt_gym.search_pages import SearchPages
from branchrt_gym.seeding import Rng, fork_key
from branchrt_gym.slots import Slots, read_ids
from branchrt_gym.trajectories import Trajectories

__all__ = ["NO_CHOICE", "Population", "SearchResult", "carried", "read_choice"]

NO_CHOICE = -1  # an empty place; carried places are below it


def carried(place: Tensor) -> Tensor:
    """Returns the choice that keeps the branch of a place as it is."""
    return NO_CHOICE - 1 - place


def read_choice(choice: Tensor, fanout: int) -> tuple[Tensor, Tensor]:
    """Reads choices as (the place one level up, the child taken); -1 where there is none."""
    child = choice >= 0
    place = torch.where(child, choice // fanout, NO_CHOICE - 1 - choice)
    return place, torch.where(child, choice % fanout, -1)


@dataclass
class Population:
    """The branches that a search holds at one level: `K` places for each root, best first.

    Attributes:
        branch_id: `[R, K] int64`; `NO_CHOICE` in an empty place.
        score: `[R, K] int64`.
        depth: `[R, K] int32`, transitions since the root; 0 in an empty place.
        terminated: `[R, K] bool`. truncated, solved: likewise.
        state: The `branch` fields, each `[R * K, …]`.
        key: `[R * K] int64`, or None where the environment does not use keys.
        pages: The `paged` fields, to read.
    """

    branch_id: Tensor
    score: Tensor
    depth: Tensor
    terminated: Tensor
    truncated: Tensor
    solved: Tensor
    state: dict[str, Tensor]
    key: Tensor | None
    pages: dict[str, Pages] = field(default_factory=dict)

    def clone(self) -> Population:
        """Copies every tensor."""
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        copies: dict[str, Any] = {
            name: column.clone() for name, column in columns.items() if isinstance(column, Tensor)
        }
        state = {name: column.clone() for name, column in self.state.items()}
        pages = {
            name: view._replace(pool=view.pool.clone(), table=view.table.clone())
            for name, view in self.pages.items()
        }
        return Population(**{"key": None, **copies, "state": state, "pages": pages})


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a search found.

    Branch ids are `(level * R + root) * width + rank`, the same in every tier; level 0 holds the
    roots at rank 0. A branch that stays where it is from one level to the next keeps its id.

    Attributes:
        branch_id: `[R] int64`, each root's best branch.
        score: `[R] int64`, its score.
        solved: `[R] bool`, whether a branch among the last kept solves the root.
        population: The branches kept last.
        tier: Which form ran: `"eager"`, `"captured"` or `"fused"`; see `search`.
        note: Why no faster one, in words; None where nothing stood in the way.
        levels: Levels expanded; of `BestFirst`, the most expansions of a root.
        transitions: Transitions taken, those of children that were not kept included.
        seconds: Wall time of the levels, contexts not counted.
        choices: For each level `[R, K] int64`: what came to each place: `parent's rank * F +
            action`, a branch carried over, or `NO_CHOICE`. See `read_choice`.
        fanout: `F`.
        width: The policy's width.
    """

    branch_id: Tensor
    score: Tensor
    solved: Tensor
    population: Population = field(repr=False)
    tier: str
    note: str | None
    levels: int
    transitions: int
    seconds: float
    choices: list[Tensor] = field(repr=False)
    fanout: int
    width: int
    env: CheckedEnv = field(repr=False)
    roots: Roots = field(repr=False)
    rng: Rng = "split"

    def trajectories(self, branch_ids: Slots | None = None) -> Trajectories:
        """Exports kept branches of any level; None for each root's best.

        The search records which child was kept; rewards, flags and logs are found by taking
        the path's transitions again, which costs as many transitions as the paths have.

        Raises:
            ValueError: For an id that the search did not give.
        """
        ids = self.branch_id
        if branch_ids is not None:
            ids = read_ids(branch_ids, ids.device)
        level, root, place = self._locate(ids)
        actions = torch.full((ids.shape[0], self.levels), -1, device=ids.device)
        for step in reversed(range(self.levels)):
            choice = self.choices[step]
            on = level > step
            inside = torch.where(on, place, 0)
            above, action = read_choice(choice[root, inside], self.fanout)
            actions[:, step] = torch.where(on, action, -1)
            place = torch.where(on, above, place)
        length = (actions >= 0).sum(1)
        # Transitions to the front, order kept; levels that carried a branch over fall behind.
        order = torch.argsort((actions < 0).to(torch.uint8), dim=1, stable=True)
        return self._replay(ids, root, length, actions.gather(1, order))

    def _locate(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count, width = len(self.roots), self.width
        level, root, rank = ids // (count * width), ids // width % count, ids % width
        good = (ids >= 0) & (level <= self.levels) & ((level > 0) | (rank == 0))
        for step, choice in enumerate(self.choices):
            here = level == step + 1
            inside = rank.clamp(max=choice.shape[1] - 1)
            good &= ~here | ((rank < choice.shape[1]) & (choice[root, inside] >= 0))
        if not bool(good.all()):
            raise ValueError(
                f"no branch has id {ids[~good].tolist()[:8]}; expected ids of kept branches"
            )
        return level, root, rank

    def _replay(self, ids: Tensor, root: Tensor, length: Tensor, actions: Tensor) -> Trajectories:
        env, roots = self.env, self.roots
        count = ids.shape[0]
        longest = int(length.max()) if count else 0
        pages = SearchPages(env, roots.shared, ids.device)
        tables = pages.begin(count)
        context = roots.context_index[root]
        state = {name: values[root] for name, values in roots.state.items()}
        key = roots.key[root]
        first = first_action(env)
        flags = torch.zeros(3, count, dtype=torch.bool, device=ids.device)
        rewards, logs = [], []
        for step in range(longest):
            action = actions[:, step].clamp(min=0)  # behind its end a path is not looked at
            depth = torch.full((count,), step, dtype=torch.int32, device=ids.device)
            key = fork_key(key, torch.zeros_like(key), action, self.rng)
            here = fold(key, step) if env.uses_key else None
            seen = Branches(context, depth, state, here, pages.view(tables, context))
            made = env.transition(roots.shared, seen, action + first)
            on = step < length
            pages.write(tables, made.pages, on, context, shared=False)
            now = torch.stack([made.terminated, made.truncated, made.solved])
            flags = torch.where(on, now, flags)
            rewards.append(torch.where(on, made.reward, 0))
            logs.append(made.log)
            state = dict(made.state)
        mask = torch.arange(longest, device=ids.device) < length[:, None]
        empty = torch.zeros(count, 0, dtype=env.reward_dtype, device=ids.device)
        log = {}
        for name, declared in env.contract.of("log").items():
            values = torch.zeros(
                count, longest, *declared.shape, dtype=declared.dtype, device=ids.device
            )
            for step, entries in enumerate(logs):
                values[mask[:, step], step] = entries[name][mask[:, step]]
            log[name] = values
        return Trajectories(
            branch_id=ids,
            root=root,
            length=length,
            action=torch.where(mask, actions[:, :longest] + first, 0),
            reward=torch.stack(rewards, 1) if rewards else empty,
            mask=mask,
            terminated=flags[0],
            truncated=flags[1],
            solved=flags[2],
            pruned=torch.zeros_like(flags[0]),
            log=log,
        )
