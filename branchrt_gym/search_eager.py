"""The eager tier of `search`: plain torch, on any device; what the other tiers must equal."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from branchrt_gym.branch_step import first_action, num_actions
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import Branches, Transition
from branchrt_gym.kernels import fold, top_k_per_root
from branchrt_gym.roots import Roots
from branchrt_gym.search_pages import SearchPages
from branchrt_gym.search_result import NO_CHOICE, Population, carried
from branchrt_gym.seeding import Rng, fork_key

__all__ = ["Found", "beam", "best_first"]

Found = tuple[Population, list[Tensor], int]  # kept last, choices, transitions


def beam(
    env: CheckedEnv, roots: Roots, width: int, depth: int, rng: Rng, stop_solved: bool
) -> Found:
    """Expands every open branch of each root, level by level; see `search`."""
    pages = SearchPages(env, roots.shared, roots.seed.device)
    held = _start(env, roots, width, pages)
    choices: list[Tensor] = []
    transitions = 0
    level = _Level(env, roots, 1)
    closed: Tensor | None = None  # branches that are not open; None while there is none
    for step in range(depth):
        kept = held.branch_id.shape[1]
        if level.kept != kept:
            level = _Level(env, roots, kept)
        open_now = len(roots) * kept if closed is None else int((~closed).sum())
        if open_now == 0:
            break
        transitions += open_now * level.fanout
        held, choice, closed = _advance(
            env, roots, level, held, closed, step, width, rng, stop_solved, pages
        )
        choices.append(choice)
    return _found(held, roots, pages), choices, transitions


def best_first(
    env: CheckedEnv,
    roots: Roots,
    width: int,
    budget: int,
    depth: int,
    rng: Rng,
    stop_solved: bool,
) -> Found:
    """Expands the best open branch of each root, `budget` times; see `search`."""
    pages = SearchPages(env, roots.shared, roots.seed.device)
    held = _start(env, roots, width, pages)
    choices: list[Tensor] = []
    transitions = torch.zeros((), dtype=torch.int64, device=roots.seed.device)
    fanout = num_actions(env)
    for step in range(budget):
        closed = held.terminated | held.truncated | (held.branch_id == NO_CHOICE)
        closed |= held.depth >= depth
        if stop_solved:
            closed |= held.solved
        some = ~closed.all(1)
        if not bool(some.any()):
            break
        transitions += some.sum() * fanout
        held, choice = _expand_best(
            env, roots, held, closed, some, step, width, rng, stop_solved, pages
        )
        choices.append(choice)
    return _found(held, roots, pages), choices, int(transitions)


def _found(held: Population, roots: Roots, pages: SearchPages) -> Population:
    """The branches held last, their paged fields apart from the others."""
    context = roots.context_index.repeat_interleave(held.branch_id.shape[1])
    return replace(held, state=pages.fields(held.state), pages=pages.view(held.state, context))


def _start(env: CheckedEnv, roots: Roots, width: int, pages: SearchPages) -> Population:
    """One branch of each root."""
    device, count = roots.seed.device, len(roots)
    no = torch.zeros(count, 1, dtype=torch.bool, device=device)
    return Population(
        branch_id=torch.arange(count, device=device)[:, None] * width,
        score=roots.state[env.score].to(torch.int64).view(count, 1),
        depth=torch.zeros(count, 1, dtype=torch.int32, device=device),
        terminated=no,
        truncated=no,
        solved=no,
        state={**roots.state, **pages.begin(count)},
        key=roots.key if env.uses_key else None,
    )


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
    stop_solved: bool,
    pages: SearchPages,
) -> tuple[Population, Tensor, Tensor | None]:
    """Expands one level and selects from it."""
    count = level.root.shape[0]
    key = here = None
    if held.key is not None:
        key = fork_key(held.key.index_select(0, level.parent), level.no_forks, level.child, rng)
        here = fold(key, step)
    parents = {name: values.index_select(0, level.parent) for name, values in held.state.items()}
    seen = Branches(
        level.context_index,
        level.depth.fill_(step),
        pages.fields(parents),
        here,
        pages.view(parents, level.context_index),
    )
    made = env.transition(roots.shared, seen, level.action)
    after = {**made.state, **pages.tables(parents)}
    score = made.state[env.score].view(count, -1)
    quiet = closed is None and score.device.type == "cpu" and _quiet(made)
    wins = made.solved.view(count, -1)
    stays = valid = None
    if closed is not None:
        # An ended branch is its own only child, with the score it has.
        spread = closed.repeat_interleave(level.fanout, dim=1)
        empty = (held.branch_id == NO_CHOICE).repeat_interleave(level.fanout, dim=1)
        stays = spread & ~empty & (level.child == 0).view(count, -1)
        valid = stays | ~spread
        wins = wins & ~spread
        score = torch.where(spread, parents[env.score].view(count, -1), score)
    if stop_solved and not quiet:
        allowed = wins | ~wins.any(1, keepdim=True)
        valid = allowed if valid is None else valid & allowed
    keep = min(width, score.shape[1])
    choice, _ = top_k_per_root(score, keep, valid)
    place = choice if valid is None else choice.clamp(min=0)
    row = (place + level.first).view(-1)

    ids = level.root * width + torch.arange(keep, device=row.device)
    ids += (step + 1) * count * width
    deep = torch.full((1,), step + 1, dtype=torch.int32, device=row.device).expand(count, keep)
    state = {name: values.index_select(0, row) for name, values in after.items()}
    writes = {name: runs.rows(row) for name, runs in made.pages.items()}
    context = level.context_index.index_select(0, row) if writes else row
    best = score.view(-1).index_select(0, row).view(count, keep).to(torch.int64)
    own = None if key is None else key.index_select(0, row)
    if quiet:
        no = torch.zeros(1, dtype=torch.bool).expand(count, keep)
        pages.write(state, writes, torch.ones_like(row, dtype=torch.bool), context)
        return Population(ids, best, deep, no, no, no, state, own), choice, None

    flags = torch.stack([made.terminated, made.truncated, made.solved])
    flags = flags.index_select(1, row).view(3, count, keep)
    there = choice != NO_CHOICE
    fresh = there.view(-1)
    if stays is not None:
        parent = level.parent[row]
        stayed = stays.view(-1)[row] & there.view(-1)
        fresh = fresh & ~stayed
        for name, values in state.items():
            rows = stayed.view(-1, *[1] * (values.ndim - 1))
            state[name] = torch.where(rows, held.state[name][parent], values)
        if own is not None and held.key is not None:
            own = torch.where(stayed, held.key[parent], own)
        grid, above = stayed.view(count, keep), parent.view(count, keep) % level.kept
        before = torch.stack([held.terminated, held.truncated, held.solved])
        flags = torch.where(grid, before.gather(2, above.expand(3, -1, -1)), flags)
        ids = torch.where(grid, held.branch_id.gather(1, above), ids)
        deep = torch.where(grid, held.depth.gather(1, above), deep)
        choice = torch.where(grid, carried(above), choice)
    pages.write(state, writes, fresh, context)
    ids = torch.where(there, ids, NO_CHOICE)
    deep = torch.where(there, deep, 0)
    terminated, truncated, solved = (flags & there).unbind()
    chosen = Population(ids, best, deep, terminated, truncated, solved, state, own)
    over = terminated | truncated | ~there
    return chosen, choice, over | solved if stop_solved else over


def _quiet(made: Transition) -> bool:
    """Whether no child ended or solved its root, so that there are no flags to select."""
    return not bool((made.terminated | made.truncated).logical_or_(made.solved).any())


def _expand_best(
    env: CheckedEnv,
    roots: Roots,
    held: Population,
    closed: Tensor,
    some: Tensor,
    step: int,
    width: int,
    rng: Rng,
    stop_solved: bool,
    pages: SearchPages,
) -> tuple[Population, Tensor]:
    """Replaces the first open branch of each root, where there is one, by its children."""
    count, kept = closed.shape
    fanout, device = num_actions(env), closed.device
    root = torch.arange(count, device=device)
    # Places are ranks, best first, so the best open branch is the first. `kept`: there is none.
    place = torch.where(some, (~closed).to(torch.int8).argmax(1), kept)
    row = (root * kept + place.clamp(max=kept - 1)).repeat_interleave(fanout)
    child = torch.arange(fanout, device=device).repeat(count)
    depth = held.depth.view(-1)[row]
    key = here = None
    if held.key is not None:
        key = fork_key(held.key[row], torch.zeros_like(row), child, rng)
        here = fold(key, depth.to(torch.int64))
    parents = {name: values[row] for name, values in held.state.items()}
    context = roots.context_index.repeat_interleave(fanout)
    seen = Branches(context, depth, pages.fields(parents), here, pages.view(parents, context))
    made = env.transition(roots.shared, seen, child + first_action(env))
    after = {**made.state, **pages.tables(parents)}

    # Candidates in order: the places, with the expanded one's children where it stood.
    slot = torch.arange(kept - 1 + fanout, device=device).expand(count, -1)
    at = place[:, None]
    is_child = (slot >= at) & (slot < at + fanout)
    source = torch.where(
        is_child, kept + slot - at, torch.where(slot < at, slot, slot - fanout + 1)
    )
    source = source.clamp(max=kept + fanout - 1)
    is_child &= some[:, None]

    def join(before: Tensor, after: Tensor) -> Tensor:
        """Returns `[R, kept + fanout, …]`: what was held, then the children."""
        grid = (count, -1, *after.shape[1:])
        return torch.cat([before.reshape(grid), after.reshape(grid).to(before.dtype)], 1)

    score = join(held.score, made.state[env.score]).gather(1, source)
    there = join(held.branch_id != NO_CHOICE, torch.ones_like(made.solved)).gather(1, source)
    valid = there & (is_child | (source < kept))
    if stop_solved:
        wins = is_child & join(torch.zeros_like(closed), made.solved).gather(1, source)
        valid &= wins | ~wins.any(1, keepdim=True)
    keep = min(width, slot.shape[1])
    picked, _ = top_k_per_root(score, keep, valid)
    there = picked != NO_CHOICE
    inside = picked.clamp(min=0)
    origin = source.gather(1, inside)
    new = is_child.gather(1, inside) & there
    ids = (step + 1) * count * width + root[:, None] * width
    ids = ids + torch.arange(keep, device=device)
    flat = (root[:, None] * (kept + fanout) + origin).view(-1)

    def pick(before: Tensor, after: Tensor) -> Tensor:
        return join(before, after).flatten(0, 1).index_select(0, flat)

    def grid(before: Tensor, after: Tensor) -> Tensor:
        return pick(before, after).view(count, keep)

    chosen = Population(
        branch_id=torch.where(new, ids, torch.where(there, grid(held.branch_id, row), NO_CHOICE)),
        score=score.gather(1, inside),
        depth=torch.where(there, grid(held.depth, depth + 1), 0),
        terminated=grid(held.terminated, made.terminated) & there,
        truncated=grid(held.truncated, made.truncated) & there,
        solved=grid(held.solved, made.solved) & there,
        state={name: pick(held.state[name], values) for name, values in after.items()},
        key=None if key is None or held.key is None else pick(held.key, key),
    )
    # Of a place that is no child the first child's writes are taken, and not written.
    row_of_child = (root[:, None] * fanout + (origin - kept).clamp(min=0)).view(-1)
    writes = {name: runs.rows(row_of_child) for name, runs in made.pages.items()}
    here_now = roots.context_index.repeat_interleave(keep) if writes else root
    pages.write(chosen.state, writes, new.view(-1), here_now)
    taken = at * fanout + origin - kept
    choice = torch.where(new, taken, torch.where(there, carried(origin), NO_CHOICE))
    return chosen, choice
