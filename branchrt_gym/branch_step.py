"""`branch_step`: expand, verify, prune, select, commit, for any environment or callable.

The framework-agnostic primitive: `env_fn` may be a `BranchEnv`, or any callable over a batch of
branches, such as one turn of a language model with its tools; no trainer's types appear here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from branchrt_gym.contract import BranchEnv
from branchrt_gym.errors import FrontierFullError
from branchrt_gym.expand_fused import FusedExpansion, fused_expansion
from branchrt_gym.frontier import Frontier
from branchrt_gym.kernels import fold
from branchrt_gym.lineage import entry_flags
from branchrt_gym.pages import PageWrites
from branchrt_gym.policies import Policy
from branchrt_gym.seeding import Rng, check_rng, fork_key
from branchrt_gym.slots import DONE, FREE, LIVE, read_array

__all__ = [
    "Batch",
    "Expansion",
    "Policy",
    "Verdicts",
    "Verifier",
    "branch_step",
    "num_actions",
]


@dataclass(frozen=True)
class Batch:
    """`M` branches, as `env_fn` sees those to expand and `verifier_fn` their children.

    Attributes:
        branch_id: `[M] int64`; of the parent, where the batch holds children.
        root: `[M] int64`.
        depth: `[M] int32`, transitions since the root.
        payloads: The branches' opaque objects, `M` of them; empty where a contract has `branch` or
            `shared` fields.
        state: The `branch` fields, each `[M, …]`; empty without such fields.
        shared: The `shared` fields, and `context_index: [M] int64` which row each branch reads.
        context_index: See `shared`.
        reward: `[M]`, of the children's step; None for branches to expand.
        done: `[M] bool`, likewise.
        solved: `[M] bool`, the environment's own verdict; None where there is none.
    """

    branch_id: Tensor
    root: Tensor
    depth: Tensor
    payloads: Sequence[object]
    state: dict[str, Tensor]
    shared: dict[str, Tensor]
    context_index: Tensor
    reward: Tensor | None = None
    done: Tensor | None = None
    solved: Tensor | None = None

    def __len__(self) -> int:
        """The number of branches."""
        return self.root.shape[0]


@dataclass(frozen=True)
class Expansion:
    """The children that a callable `env_fn` made of a batch.

    Attributes:
        parents: `[M]` ints, places in the batch, in ascending order; a branch may have any number
            of children, and one without any is pruned.
        payloads: `M` objects.
        rewards: `[M]`.
        done: `[M]` bools: these children have ended.
        log: The frontier's `log` fields, each `[M, …]`: what a step leaves in the lineage, such
            as the tokens of a turn.
    """

    parents: Tensor | np.ndarray | Sequence[int]
    payloads: Sequence[object]
    rewards: Tensor | np.ndarray | Sequence[float]
    done: Tensor | np.ndarray | Sequence[bool]
    log: Mapping[str, Tensor | np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdicts:
    """What a verifier says of `M` children.

    Attributes:
        passed: `[M]` bools: the child solves its root.
        score: `[M]` ints, by which a policy ranks.
    """

    passed: Tensor | np.ndarray | Sequence[bool]
    score: Tensor | np.ndarray | Sequence[int]


EnvFn = Callable[[Batch], Expansion]
Verifier = Callable[[Batch], Verdicts]


@dataclass(frozen=True)
class _Children:
    """The children of an expansion before any of them is kept; rows `[M]`."""

    rows: Tensor  # the parents' slots
    key: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    solved: Tensor | None
    state: dict[str, Tensor]
    log: dict[str, Tensor]
    payloads: Sequence[object]
    pages: Mapping[str, PageWrites] = field(default_factory=dict)


def num_actions(env: BranchEnv) -> int:
    """Returns how many actions an environment has, if it has a finite number."""
    space = env.single_action_space
    if not isinstance(space, spaces.Discrete):
        raise ValueError(
            f"`single_action_space` is {space}; expansion needs Discrete, whose actions can be "
            "enumerated"
        )
    return int(space.n)


def first_action(env: BranchEnv) -> int:
    """Returns the lowest action of an environment with Discrete actions."""
    space = env.single_action_space
    return int(space.start) if isinstance(space, spaces.Discrete) else 0


def branch_step(
    frontier: Frontier,
    env_fn: BranchEnv | EnvFn,
    verifier_fn: Verifier | None = None,
    policy: Policy | None = None,
    *,
    rng: Rng = "split",
    max_depth: int | None = None,
    compete_done: bool = True,
    more_entries: int = 0,
    every_root: bool = False,
) -> tuple[Frontier, Tensor, Tensor]:
    """Expands every live branch, verifies the children, and keeps those that a policy chooses.

    Children are ordered by (parent's slot, action). A root with a child that passes is marked
    solved; that child is DONE, the root's other children are not kept. Kept children get new ids
    in the order the policy returns (without a policy: all, in order) and the lowest free slots;
    every expanded parent leaves. Ended branches that stayed compete at their own slot's place
    with the score they had (a `BranchEnv`'s own, or their last verdict's), and are not expanded.

    Args:
        frontier: Changed in place, and returned.
        env_fn: A `BranchEnv` with Discrete actions (every action is taken), or a callable.
        verifier_fn: Judges the children. None takes a `BranchEnv`'s own `solved` and score.
        policy: None keeps all children.
        rng: Whether children have futures of their own or their parent's.
        max_depth: Truncate children at this depth.
        compete_done: Whether DONE branches compete; if not, they stay as they are.
        more_entries: Entries of the lineage that the caller will write right after, to be made
            sure of before anything is changed.
        every_root: Refuse a policy that keeps no branch of a root, as one that restarts must.

    Returns:
        The frontier, and of all children in order `rewards: [M]` and `done: [M] bool`.

    Raises:
        FrontierFullError: If the kept children do not fit; nothing is changed.
        LineageFullError: If the lineage cannot take them; nothing is changed.
        PagePoolFullError: If a page pool cannot take what they write; nothing is changed.
        ValueError: For an expansion or verdicts that do not fit the batch.
    """
    check_rng(rng)
    if policy is not None and not hasattr(policy, "select"):
        raise TypeError(
            f"`policy` is {type(policy).__name__}; expected one that selects among children, such "
            "as Beam(width): `branch_step` expands every live branch"
        )
    _check_fields(frontier, env_fn)
    frontier.check()
    parents = frontier.live.nonzero().squeeze(1)
    if isinstance(env_fn, BranchEnv):
        fused = fused_expansion(
            frontier,
            env_fn,
            rng,
            parents=parents.shape[0],
            fanout=num_actions(env_fn),
            first=first_action(env_fn),
        )
        if fused is not None and verifier_fn is None and policy is None:
            replaced = fused.replace_all(parents, max_depth, more_entries)
            if replaced is not None:
                return frontier, *replaced
        children = _expand(frontier, env_fn, parents, rng, fused)
    else:
        children = _call(frontier, env_fn, parents, rng)
    rows = children.rows
    root, depth = frontier.root[rows], frontier.depth[rows] + 1
    truncated = children.truncated
    if max_depth is not None:
        truncated = truncated | (depth >= max_depth)
    done = children.terminated | truncated
    passed, score = _verdicts(frontier, env_fn, verifier_fn, children, root, depth, done)

    solved = frontier.solved.clone()
    solved[root[passed]] = True
    candidates = (passed | ~solved[root]).nonzero().squeeze(1)
    own = frontier.state.get(env_fn.score) if isinstance(env_fn, BranchEnv) else None
    before = frontier.verdict_score if verifier_fn is not None or own is None else own
    kept, dropped = _select(frontier, policy, rows, root, score, before, candidates, compete_done)

    if every_root:
        bare = torch.zeros_like(solved).index_fill_(0, frontier.root[parents], True)
        if bool(bare.index_fill_(0, root[kept], False).any()):
            raise ValueError(
                f"the policy keeps no branch of root {int(bare.nonzero()[0])}, which could not "
                "restart then; keep one of each root, or use autoreset_mode=DISABLED. Nothing was "
                "changed"
            )

    leaving = dropped.clone()
    leaving[parents] = True
    childless = leaving & frontier.live
    childless[rows] = False
    room = ((frontier.status == FREE) | leaving).nonzero().squeeze(1)
    if kept.shape[0] > room.shape[0]:
        raise FrontierFullError(
            f"`branch_step` keeps {kept.shape[0]} children and {room.shape[0]} of "
            f"{frontier.num_slots} slots can take them; give a policy that keeps fewer, or make "
            "the frontier larger. Nothing was changed"
        )
    pages = {name: writes.rows(kept) for name, writes in children.pages.items()}
    tables = frontier.reserve_pages(pages, rows[kept], leaving)
    pruned = frontier.rows_of(childless)[0].shape[0]
    frontier.make_room(kept.shape[0] + pruned + more_entries)
    frontier.mark_pruned(childless)
    frontier.solved.copy_(solved)
    taken = torch.ones_like(passed)
    flags = entry_flags(taken, children.terminated, truncated, passed)
    frontier.replace(
        leaving,
        room[: kept.shape[0]],
        rows[kept],
        key=children.key[kept],
        forks=frontier.forks[rows[kept]] + 1 if rng == "shared" else None,
        state={name: values[kept] for name, values in children.state.items()},
        status=torch.where((done | passed)[kept], DONE, LIVE).to(torch.int8),
        score=score[kept],
        entry={
            "flags": flags[kept],
            "action": children.action[kept],
            "reward": children.reward[kept],
            **{name: values[kept] for name, values in children.log.items()},
        },
        pages=pages,
        tables=tables,
        payloads=[children.payloads[place] for place in kept.tolist()] if children.payloads else [],
    )
    return frontier, children.reward, done


def _check_fields(frontier: Frontier, env_fn: BranchEnv | EnvFn) -> None:
    fields = sorted(frontier.contract.fields)
    if isinstance(env_fn, BranchEnv):
        if env_fn.contract != frontier.contract:
            raise ValueError(
                f"`env_fn` is {type(env_fn).__name__} with the fields "
                f"{sorted(env_fn.contract.fields)}; expected the frontier's contract, {fields}"
            )
    elif not frontier.payloads:
        raise ValueError(
            "`env_fn` is a callable, which makes payloads; this frontier's branches have the "
            f"fields {fields}: give the BranchEnv whose contract it has"
        )


def _expand(
    frontier: Frontier, env: BranchEnv, parents: Tensor, rng: Rng, fused: FusedExpansion | None
) -> _Children:
    """Takes every action of an environment in every parent."""
    count = num_actions(env)
    rows = parents.repeat_interleave(count)
    child = torch.arange(count, device=rows.device).repeat(parents.shape[0])
    action = child + first_action(env)
    if fused is not None:
        made = fused.children(parents)
        return _Children(rows=rows, action=action, log={}, payloads=(), **vars(made))
    key = fork_key(frontier.key[rows], frontier.forks[rows], child, rng)
    seen = frontier.branches(rows)
    if env.uses_key or env.uses_branch_key:
        own = env.uses_branch_key
        seen = seen._replace(key=key if own else fold(key, seen.depth.to(torch.int64)))
    step = env.transition(frontier.shared, seen, action)
    return _Children(
        rows=rows,
        key=key,
        action=action,
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        solved=step.solved,
        state=dict(step.state),
        log=dict(step.log),
        payloads=(),
        pages=step.pages,
    )


def _call(frontier: Frontier, env_fn: EnvFn, parents: Tensor, rng: Rng) -> _Children:
    """Lets a callable expand the parents."""
    batch = _batch(frontier, parents, [frontier.payloads[slot] for slot in parents.tolist()])
    made = env_fn(batch)
    if not isinstance(made, Expansion):
        raise TypeError(f"`env_fn` returned {type(made).__name__}; expected an Expansion")
    payloads = made.payloads
    if isinstance(payloads, str | bytes | Mapping) or not hasattr(payloads, "__len__"):
        raise TypeError(
            f"`payloads` of the expansion is {type(payloads).__name__}; expected a sequence with "
            "one object for each child"
        )
    number = len(payloads)
    place = _column("parents", made.parents, torch.int64, number, frontier.device)
    in_order = bool((place[1:] >= place[:-1]).all()) if number else True
    if number and not (in_order and 0 <= int(place[0]) and int(place[-1]) < len(batch)):
        raise ValueError(
            f"`parents` of the expansion reaches from {int(place.min())} to {int(place.max())}"
            + ("" if in_order else ", not in ascending order")
            + f"; expected places in the batch, 0 … {len(batch) - 1}, in ascending order"
        )
    rows = parents[place]
    child = torch.arange(number, device=rows.device) - torch.searchsorted(place, place)
    done = _column("done", made.done, torch.bool, number, frontier.device)
    reward = _column(
        "rewards",
        made.rewards,
        frontier.lineage.columns["reward"].dtype,
        number,
        frontier.device,
    )
    return _Children(
        rows=rows,
        key=fork_key(frontier.key[rows], frontier.forks[rows], child, rng),
        action=child,
        reward=reward,
        terminated=done,
        truncated=torch.zeros_like(done),
        solved=None,
        state={},
        log=_log(frontier, made.log, number),
        payloads=list(payloads),
    )


def _batch(frontier: Frontier, rows: Tensor, payloads: Sequence[object], **more: Any) -> Batch:
    return Batch(
        branch_id=frontier.branch_id[rows],
        root=frontier.root[rows],
        depth=more.pop("depth", frontier.depth[rows]),
        payloads=payloads,
        state=more.pop("state", {name: col[rows] for name, col in frontier.state.items()}),
        shared=frontier.shared,
        context_index=frontier.context_index[rows],
        **more,
    )


def _verdicts(
    frontier: Frontier,
    env_fn: BranchEnv | EnvFn,
    verifier_fn: Verifier | None,
    children: _Children,
    root: Tensor,
    depth: Tensor,
    done: Tensor,
) -> tuple[Tensor, Tensor]:
    number = root.shape[0]
    if verifier_fn is None:
        if not isinstance(env_fn, BranchEnv) or children.solved is None:
            raise ValueError("`verifier_fn` is None; a callable `env_fn` needs a verifier")
        score = children.state.get(env_fn.score)
        return children.solved, torch.zeros_like(root) if score is None else score.to(torch.int64)
    batch = _batch(
        frontier,
        children.rows,
        children.payloads,
        depth=depth,
        state=children.state,
        reward=children.reward,
        done=done,
        solved=children.solved,
    )
    said = verifier_fn(batch)
    if not isinstance(said, Verdicts):
        raise TypeError(f"`verifier_fn` returned {type(said).__name__}; expected Verdicts")
    return (
        _column("passed", said.passed, torch.bool, number, frontier.device),
        _column("score", said.score, torch.int64, number, frontier.device),
    )


def _column(
    name: str, values: Any, dtype: torch.dtype, number: int, device: torch.device
) -> Tensor:
    given = read_array(name, values, device, f"{number} entries, one for each child")
    whole = not dtype.is_floating_point
    kind_differs = (dtype == torch.bool) != (given.dtype == torch.bool)
    differs = kind_differs or (whole and given.dtype.is_floating_point)
    if given.shape != (number,) or (number and differs):
        raise ValueError(
            f"`{name}` is {given.dtype} of shape {tuple(given.shape)}; expected {dtype} of shape "
            f"({number},), one entry for each child"
        )
    return given.to(dtype)


def _log(
    frontier: Frontier, log: Mapping[str, Tensor | np.ndarray], number: int
) -> dict[str, Tensor]:
    declared = frontier.contract.of("log")
    if set(log) != set(declared):
        raise ValueError(
            f"`log` of the expansion has {sorted(log)}; expected the contract's {sorted(declared)}"
        )
    rows = {}
    for name, item in declared.items():
        shape = (number, *item.shape)
        given = read_array(name, log[name], frontier.device, f"{item.dtype} of shape {shape}")
        if given.shape != shape or given.dtype != item.dtype:
            raise ValueError(
                f"`log[{name!r}]` is {given.dtype} of shape {tuple(given.shape)}; expected "
                f"{item.dtype} of shape {shape}, one row for each child"
            )
        rows[name] = given
    return rows


def _select(
    frontier: Frontier,
    policy: Policy | None,
    rows: Tensor,
    root: Tensor,
    score: Tensor,
    before: Tensor,
    candidates: Tensor,
    compete_done: bool,
) -> tuple[Tensor, Tensor]:
    """Returns the children that stay, in order, and `[N] bool`, the ended branches that do not."""
    dropped = torch.zeros_like(frontier.live)
    if policy is None:
        return candidates, dropped
    held = frontier.status == DONE
    ended = held.nonzero().squeeze(1) if compete_done else rows[:0]
    slot = torch.cat([rows[candidates], ended])
    order = torch.argsort(slot, stable=True)
    roots = torch.cat([root[candidates], frontier.root[ended]])[order]
    scores = torch.cat([score[candidates], before[ended].to(torch.int64)])[order]
    chosen = order[policy.select(roots, scores)]
    children = chosen[chosen < candidates.shape[0]]
    if compete_done:
        dropped[ended] = True
        dropped[ended[chosen[chosen >= candidates.shape[0]] - candidates.shape[0]]] = False
    return candidates[children], dropped
