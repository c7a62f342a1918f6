"""`search`: expand, rank and keep, level by level, over many roots at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from branchrt_gym.branch_step import first_action, num_actions
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import BranchEnv, Branches, Transition
from branchrt_gym.kernels import fold, top_k_per_root
from branchrt_gym.policies import Beam
from branchrt_gym.roots import Roots, make_roots
from branchrt_gym.seeding import Rng, check_rng, fork_key
from branchrt_gym.slots import Slots, read_array
from branchrt_gym.trajectories import Trajectories

__all__ = ["NO_CHOICE", "Population", "SearchResult", "search"]

NO_CHOICE = -1


@dataclass
class Population:
    """The branches that a search holds at one level: `K` places for each root, best first.

    Attributes:
        branch_id: `[R, K] int64`; `NO_CHOICE` in an empty place.
        score: `[R, K] int64`.
        terminated: `[R, K] bool`. truncated, solved: likewise.
        state: The `branch` fields, each `[R * K, …]`.
        key: `[R * K] int64`, or None where the environment does not use keys.
    """

    branch_id: Tensor
    score: Tensor
    terminated: Tensor
    truncated: Tensor
    solved: Tensor
    state: dict[str, Tensor]
    key: Tensor | None

    def clone(self) -> Population:
        """Copies every tensor."""
        return Population(
            branch_id=self.branch_id.clone(),
            score=self.score.clone(),
            terminated=self.terminated.clone(),
            truncated=self.truncated.clone(),
            solved=self.solved.clone(),
            state={name: values.clone() for name, values in self.state.items()},
            key=None if self.key is None else self.key.clone(),
        )


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Branch ids are `(level * R + root) * width + rank`, the same in every tier; level 0 holds the
    roots at rank 0.

    Attributes:
        branch_id: `[R] int64`, each root's best branch.
        score: `[R] int64`, its score.
        solved: `[R] bool`, whether a branch among the last kept solves the root.
        population: The branches kept last.
        tier: `"eager"`; the other tiers are to come.
        levels: Levels expanded.
        transitions: Transitions taken, those of children that were not kept included.
        seconds: Wall time of the levels, contexts not counted.
        choices: For each level `[R, K] int64`: which child, by order, came to each place;
            `parent rank * F + action`.
        fanout: `F`.
        width: The beam's width.
    """

    branch_id: Tensor
    score: Tensor
    solved: Tensor
    population: Population = field(repr=False)
    tier: str
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
        device = self.branch_id.device
        ids = self.branch_id
        if branch_ids is not None:
            ids = read_array("branch_ids", branch_ids, device, "integers of shape (B,)")
            ids = ids.to(torch.int64)
        level, root, rank = self._locate(ids)
        actions = torch.zeros(ids.shape[0], self.levels, dtype=torch.int64, device=device)
        place = rank
        for step in reversed(range(self.levels)):
            choice = self.choices[step]
            inside = place.clamp(max=choice.shape[1] - 1)
            taken = torch.where(level > step, choice[root, inside], 0)
            actions[:, step] = taken % self.fanout
            place = torch.where(level > step, taken // self.fanout, place)
        return self._replay(ids, root, level, actions)

    def _locate(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count, width = len(self.roots), self.width
        level, root, rank = ids // (count * width), ids // width % count, ids % width
        good = (ids >= 0) & (level <= self.levels) & ((level > 0) | (rank == 0))
        for step, choice in enumerate(self.choices):
            here = level == step + 1
            inside = rank.clamp(max=choice.shape[1] - 1)
            good &= ~here | ((rank < choice.shape[1]) & (choice[root, inside] != NO_CHOICE))
        if not bool(good.all()):
            raise ValueError(
                f"no branch has id {ids[~good].tolist()[:8]}; expected ids of kept branches"
            )
        return level, root, rank

    def _replay(self, ids: Tensor, root: Tensor, level: Tensor, actions: Tensor) -> Trajectories:
        env, roots = self.env, self.roots
        count = ids.shape[0]
        longest = int(level.max()) if count else 0
        state = {name: values[root] for name, values in roots.state.items()}
        key = roots.key[root]
        first = first_action(env)
        flags = torch.zeros(3, count, dtype=torch.bool, device=ids.device)
        rewards, logs = [], []
        for step in range(longest):
            action = actions[:, step]
            depth = torch.full((count,), step, dtype=torch.int32, device=ids.device)
            key = fork_key(key, torch.zeros_like(key), action, self.rng)
            here = fold(key, step) if env.uses_key else None
            seen = Branches(roots.context_index[root], depth, state, here)
            made = env.transition(roots.shared, seen, action + first)
            on = step < level
            now = torch.stack([made.terminated, made.truncated, made.solved])
            flags = torch.where(on, now, flags)
            rewards.append(torch.where(on, made.reward, 0))
            logs.append(made.log)
            state = dict(made.state)
        mask = torch.arange(longest, device=ids.device) < level[:, None]
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
            length=level,
            action=torch.where(mask, actions[:, :longest] + first, 0),
            reward=torch.stack(rewards, 1) if rewards else empty,
            mask=mask,
            terminated=flags[0],
            truncated=flags[1],
            solved=flags[2],
            pruned=torch.zeros_like(flags[0]),
            log=log,
        )


def search(
    env: BranchEnv,
    roots: Roots | int | Sequence[int],
    policy: Beam,
    depth: int,
    *,
    num_contexts: int | None = None,
    device: str | torch.device = "cpu",
    rng: Rng = "split",
) -> SearchResult:
    """Searches from every root at once; what a root's branches share is stored once.

    Each level expands every open branch by every action and keeps the policy's choice of each
    root. Ended branches compete with their final score and are never expanded. Order is total:
    score descending, then (parent's rank, action).

    Args:
        env: The rules; its actions are Discrete and its contract has the integer field that
            `env.score` names.
        roots: Roots, or their seeds, or a number of roots (see `make_roots`).
        policy: `Beam(width)`.
        depth: Levels, at most; a search ends earlier when no branch is open.
        num_contexts: With seeds or a number: `C`; None gives each root its own context.
        device: With seeds or a number: where to search.
        rng: Whether children have random futures of their own or their parent's.
    """
    check_rng(rng)
    if not isinstance(env, BranchEnv):
        raise TypeError(f"`env` is {type(env).__name__}; expected a BranchEnv, such as DeepTree()")
    checked = env if isinstance(env, CheckedEnv) else CheckedEnv(env)
    if checked.score not in checked.contract.of("branch"):
        raise ValueError(
            f"the contract has no `branch` field `{checked.score}`; `search` ranks by the integer "
            "field that `env.score` names"
        )
    if not isinstance(policy, Beam):
        raise TypeError(f"`policy` is {type(policy).__name__}; expected Beam(width)")
    if depth < 0:
        raise ValueError(f"`depth` is {depth}; expected 0 or more levels")
    if not isinstance(roots, Roots):
        roots = make_roots(checked, roots, num_contexts=num_contexts, device=device)
    began = time.perf_counter()
    with torch.inference_mode():
        result = _beam(checked, roots, policy.width, depth, rng)
    if roots.seed.device.type == "cuda":
        torch.cuda.synchronize(roots.seed.device)
    population, choices, transitions = result
    # Inference tensors are quick to make but refuse autograd and changes in place; copies do not.
    population = population.clone()
    choices = [choice.clone() for choice in choices]
    return SearchResult(
        branch_id=population.branch_id[:, 0],
        score=population.score[:, 0],
        solved=population.solved.any(1),
        population=population,
        tier="eager",
        levels=len(choices),
        transitions=transitions,
        seconds=time.perf_counter() - began,
        choices=choices,
        fanout=num_actions(checked),
        width=policy.width,
        env=checked,
        roots=roots,
        rng=rng,
    )


def _beam(
    env: CheckedEnv, roots: Roots, width: int, depth: int, rng: Rng
) -> tuple[Population, list[Tensor], int]:
    device = roots.seed.device
    count = len(roots)
    state = dict(roots.state)
    no = torch.zeros(count, 1, dtype=torch.bool, device=device)
    held = Population(
        branch_id=torch.arange(count, device=device)[:, None] * width,
        score=state[env.score].to(torch.int64).view(count, 1),
        terminated=no,
        truncated=no,
        solved=no,
        state=state,
        key=roots.key if env.uses_key else None,
    )
    choices: list[Tensor] = []
    transitions = 0
    level = _Level(env, roots, 1)
    closed: Tensor | None = None  # branches that are not open; None while there is none
    for step in range(depth):
        kept = held.branch_id.shape[1]
        if level.kept != kept:
            level = _Level(env, roots, kept)
        if closed is not None:
            open_now = int((~closed).sum())
            if open_now == 0:
                break
            transitions += open_now * level.fanout
        else:
            transitions += count * kept * level.fanout
        held, choice, closed = _advance(env, roots, level, held, closed, step, width, rng)
        choices.append(choice)
    return held, choices, transitions


class _Level:
    """Index tensors of an expansion that keeps its shape from level to level."""

    def __init__(self, env: CheckedEnv, roots: Roots, kept: int) -> None:
        """Makes them for `kept` branches of each root."""
        device = roots.seed.device
        count, self.kept = len(roots), kept
        self.fanout = num_actions(env)
        self.parent = torch.arange(count * kept, device=device).repeat_interleave(self.fanout)
        self.child = torch.arange(self.fanout, device=device).repeat(count * kept)
        self.action = self.child + first_action(env)
        self.context_index = roots.context_index[self.parent // kept]
        self.first = (torch.arange(count, device=device) * (kept * self.fanout))[:, None]
        self.depth = torch.zeros_like(self.parent, dtype=torch.int32)
        self.no_forks = torch.zeros_like(self.parent)
        self.root = torch.arange(count, device=device)[:, None]


def _advance(
    env: CheckedEnv,
    roots: Roots,
    level: _Level,
    held: Population,
    closed: Tensor | None,
    step: int,
    width: int,
    rng: Rng,
) -> tuple[Population, Tensor, Tensor | None]:
    """Expands one level and selects from it."""
    count = level.root.shape[0]
    key = here = None
    if held.key is not None:
        key = fork_key(held.key.index_select(0, level.parent), level.no_forks, level.child, rng)
        here = fold(key, step)
    parents = {name: values.index_select(0, level.parent) for name, values in held.state.items()}
    seen = Branches(level.context_index, level.depth.fill_(step), parents, here)
    made = env.transition(roots.shared, seen, level.action)
    score = made.state[env.score].view(count, -1)
    stays = valid = None
    if closed is not None:
        # An ended branch is its own only child, with the score it has.
        spread = closed.repeat_interleave(level.fanout, dim=1)
        empty = (held.branch_id == NO_CHOICE).repeat_interleave(level.fanout, dim=1)
        stays = spread & ~empty & (level.child == 0).view(count, -1)
        valid = stays | ~spread
        score = torch.where(spread, parents[env.score].view(count, -1), score)
    keep = min(width, score.shape[1])
    choice, _ = top_k_per_root(score, keep, valid)
    place = choice if valid is None else choice.clamp(min=0)
    row = (place + level.first).view(-1)

    ids = level.root * width + torch.arange(keep, device=row.device)
    ids += (step + 1) * count * width
    state = {name: values.index_select(0, row) for name, values in made.state.items()}
    best = score.view(-1).index_select(0, row).view(count, keep).to(torch.int64)
    if closed is None and row.device.type == "cpu" and _quiet(made):
        no = torch.zeros(1, dtype=torch.bool).expand(count, keep)
        chosen = Population(ids, best, no, no, no, state, None if key is None else key[row])
        return chosen, choice, None

    terminated, truncated, solved = (
        values[row].view(count, keep) for values in (made.terminated, made.truncated, made.solved)
    )
    if valid is None or stays is None:
        chosen = Population(
            ids, best, terminated, truncated, solved, state, None if key is None else key[row]
        )
        return chosen, choice, chosen.terminated | chosen.truncated
    parent = level.parent[row]
    stayed = stays.view(-1)[row] & (choice != NO_CHOICE).view(-1)
    old = held.key
    for name, values in state.items():
        rows = stayed.view(-1, *[1] * (values.ndim - 1))
        state[name] = torch.where(rows, held.state[name][parent], values)
    grid = stayed.view(count, keep)

    def carry(values: Tensor, before: Tensor) -> Tensor:
        return torch.where(grid, before.reshape(-1)[parent].view(count, keep), values)

    chosen = Population(
        branch_id=torch.where(choice == NO_CHOICE, NO_CHOICE, carry(ids, held.branch_id)),
        score=best,
        terminated=carry(terminated, held.terminated),
        truncated=carry(truncated, held.truncated),
        solved=carry(solved, held.solved) & (choice != NO_CHOICE),
        state=state,
        key=None if key is None or old is None else torch.where(stayed, old[parent], key[row]),
    )
    return chosen, choice, chosen.terminated | chosen.truncated | (choice == NO_CHOICE)


def _quiet(made: Transition) -> bool:
    """Whether no child ended or solved its root, so that there are no flags to select."""
    return not bool((made.terminated | made.truncated).logical_or_(made.solved).any())
