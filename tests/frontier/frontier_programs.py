"""Random programs that run on a frontier and on the plain model at once, compared at each step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from frontier_keys import signed
from frontier_model import Model
from frontier_records import Refused
from population_model import Population
from words import Word

from branchrt_gym import Frontier, Snapshot, errors, load, save
from branchrt_gym.lineage import entry_flags
from branchrt_gym.slots import DONE, FREE

COLUMNS = {
    "root": "root",
    "context_index": "context",
    "branch_id": "id",
    "parent_id": "parent",
    "depth": "depth",
    "forks": "forks",
    "verdict_score": "score",
}


class Program:
    """What all frontiers have in common; a subclass says how it starts and steps.

    Attributes:
        operations: Names of methods, some more often than others.
    """

    operations: tuple[str, ...] = ()
    frontier: Frontier
    model: Model
    population: Population

    def __init__(self, header: Word) -> None:
        self.word = header
        self.size = 1 + header.take(12)
        self.num_roots = 1 + header.take(min(4, self.size))
        self.capacity = header.one([400, 3 * self.size, 2 * self.size + self.num_roots, 0])
        self.contexts = 1 + header.take(self.num_roots)
        self.model = Model(self.size, self.num_roots, self.capacity)
        self.kept: Any = None

    def run(self, words: Sequence[bytes]) -> None:
        self.compare()
        for given in words:
            self.word = Word(given)
            getattr(self, self.word.one(self.operations))()
            self.compare()
        self.ask_for_what_is_gone()

    def both(self, plan: Callable[[], Any], call: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Results of the model and of the library, or None where both refuse alike."""
        try:
            expected = plan()
        except Refused as refused:
            self.refuses(call, getattr(errors, str(refused)))
            return None
        return expected, call()

    def refuses(
        self, call: Callable[[], Any], error: type[Exception], match: str | None = None
    ) -> None:
        """The call must raise, and leave every bit as it was."""
        before = self.bits()
        with pytest.raises(error, match=match):
            call()
        for name, bits in self.bits().items():
            assert torch.equal(bits, before[name]), f"a refused call changed `{name}`"

    def bits(self) -> dict[str, torch.Tensor]:
        frontier, count = self.frontier, int(self.frontier.lineage.count)
        return {
            "status": frontier.status.clone(),
            "next_id": frontier.next_id.clone(),
            **{name: getattr(frontier, name).clone() for name in frontier.COLUMNS},
            **{name: getattr(frontier, name).clone() for name in frontier.ROOT_COLUMNS},
            **{f"state {name}": column.clone() for name, column in frontier.state.items()},
            **{
                f"lineage {name}": column[:count].contiguous().view(torch.uint8).clone()
                for name, column in frontier.lineage.columns.items()
            },
        }

    # Comparison ---------------------------------------------------------------------------

    def compare(self) -> None:
        frontier, model = self.frontier, self.model
        slots = model.slots
        assert frontier.status.tolist() == [held.status if held else FREE for held in slots]
        for name, attribute in COLUMNS.items():
            column = getattr(frontier, name).tolist()
            pairs = zip(slots, column, strict=True)
            wanted = [getattr(held, attribute) if held else free for held, free in pairs]
            assert column == wanted, name
        key = frontier.key.tolist()
        assert key == [signed(h.key) if h else free for h, free in zip(slots, key, strict=True)]
        for name, tensor in frontier.state.items():
            column = tensor.tolist()
            pairs = zip(slots, column, strict=True)
            assert column == [held.state[name] if held else free for held, free in pairs], name
        if not frontier.state:
            assert frontier.payloads == [held.payload if held else None for held in slots]
        for name in ("seed", "episode", "solved"):
            assert getattr(frontier, name).tolist() == [getattr(r, name) for r in model.roots], name
        assert frontier.first_id.tolist() == [root.first for root in model.roots]
        assert int(frontier.next_id) == model.next_id
        assert int(frontier.live.sum()) == len(model.live)
        assert int(frontier.lineage.count) == len(model.entries)
        self.compare_trajectories()

    def compare_trajectories(self) -> None:
        ids = self.model.known()
        if not self.capacity:
            with pytest.raises(ValueError, match="record_lineage"):
                self.frontier.trajectories(ids)
            return
        ids = ids[::-1] + ids[:1]
        paths = self.frontier.trajectories(ids)
        logs = zip(*(column.tolist() for column in paths.log.values()), strict=True)
        taken = [paths.action.tolist(), paths.reward.tolist()]
        said = [[*zip(*row, strict=True)] for row in logs] or [[()] * len(row) for row in taken[0]]
        flags = ("terminated", "truncated", "solved", "pruned")
        ended = [*zip(*(getattr(paths, name).tolist() for name in flags), strict=True)]
        assert paths.branch_id.tolist() == ids
        root, length, mask = paths.root.tolist(), paths.length.tolist(), paths.mask.tolist()
        longest = max(length, default=0)
        for row, branch in enumerate(ids):
            of_root, path, how = self.model.trajectory(branch)
            steps = [*zip(taken[0][row], taken[1][row], said[row], strict=True)]
            assert (root[row], length[row]) == (of_root, len(path)), branch
            assert steps[: len(path)] == path, branch
            assert mask[row] == [place < len(path) for place in range(longest)]
            assert not any(taken[1][row][len(path) :]) and not any(taken[0][row][len(path) :])
            cut = "truncated" in how or "pruned" in how
            wanted = ("terminated" in how, cut, "solved" in how, "pruned" in how)
            assert ended[row] == wanted, branch

    def ask_for_what_is_gone(self) -> None:
        if not self.capacity:
            return
        known = {*self.model.known()}
        gone = [branch for branch in range(-1, self.model.next_id + 1) if branch not in known]
        for branch in (gone[0], gone[-2], gone[-1]):
            ask = partial(self.frontier.trajectories, [*known, branch])
            self.refuses(ask, ValueError, rf"\[{branch}\]")

    # Operations ---------------------------------------------------------------------------

    def a_slot(self) -> int:
        return self.word.take(self.size + 2) - 1

    def fork(self) -> None:
        word = self.word
        parents = word.few(self.model.live, 4)
        if word.take(8) == 7:
            parents.append(self.a_slot())
        counts = word.take(4) if word.take(2) else [word.take(4) for _ in parents]
        rng = word.one(["split", "shared"])
        each = counts if isinstance(counts, list) else [counts] * len(parents)
        named = word.shaped(parents)
        shaped = word.shaped(counts) if isinstance(counts, list) else counts
        found = self.both(
            lambda: self.model.fork(parents, each, rng),
            lambda: self.owner.fork(named, shaped, rng=rng),
        )
        if found is not None:
            assert found[1].tolist() == found[0]

    @property
    def owner(self) -> Any:
        return self.frontier

    def prune(self) -> None:
        word, model = self.word, self.model
        by_mask = bool(word.take(2))
        if by_mask:
            mask = [word.take(4) == 3 for _ in range(self.size)]
            slots = [slot for slot in range(self.size) if mask[slot] and model.slots[slot]]
            named = word.shaped(mask)
        else:
            slots = word.few(model.live + model.done, 3)
            if word.take(8) == 7:
                slots.append(self.a_slot())
            named = word.shaped(slots)
        found = self.both(lambda: self.plan_prune(slots, by_mask), lambda: self.owner.prune(named))
        if found is not None and isinstance(found[1], torch.Tensor):
            assert found[1].nonzero().squeeze(1).tolist() == sorted(set(slots))

    def plan_prune(self, slots: list[int], by_mask: bool) -> None:
        held = self.model.live if self.waits else self.model.live + self.model.done
        if not by_mask and not set(slots) <= set(held):
            raise Refused("SlotError")
        self.population.prune(slots)

    @property
    def waits(self) -> bool:
        """Whether DONE slots wait for a restart."""
        return self.population.mode in ("NextStep", "SameStep")

    def compact(self) -> None:
        keep_done = bool(self.word.take(2))
        source = self.frontier.compact(keep_done=keep_done)
        assert source.dtype == torch.int32
        assert source.tolist() == self.model.compact(keep_done)

    def mark_done(self) -> None:
        slots = sorted({*self.word.few(self.model.live, 2)})
        self.frontier.release(self.mask(slots), DONE)
        self.model.end(slots, DONE)

    def make_room(self) -> None:
        extra = max(0, self.capacity + 2 - self.word.take(self.capacity // 2 + 1))
        self.both(lambda: self.model.room(extra), lambda: self.frontier.make_room(extra))

    def advance(self) -> None:
        """A transition of some of the live branches; those that end are freed or stay DONE."""
        word = self.word
        slots = word.some(self.model.live)
        actions = [word.take(3) - 1 for _ in range(self.size)]
        status = word.one([None, DONE])
        mask, action = self.mask(slots), torch.tensor(actions)
        step = self.transition(action)

        def plan() -> None:
            self.model.room(len(slots))
            for slot in slots:
                taken = self.step_of(slot, actions[slot])
                self.model.advance(slot, actions[slot], taken)
                if taken.terminated or taken.truncated:
                    self.model.end([slot], status)

        def call() -> None:
            self.frontier.make_room(len(slots))
            ended = mask & (step.terminated | step.truncated)
            flags = entry_flags(
                mask, step.terminated & mask, step.truncated & mask, step.solved & mask
            )
            self.frontier.advance(mask, action, step, flags if self.capacity else None)
            self.frontier.release(ended, FREE if status is None else status)

        self.both(plan, call)

    def mask(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor([slot in slots for slot in range(self.size)])

    def compare_expansion(self, children: Sequence[Any], found: tuple[Any, Any] | None) -> None:
        if found is not None:
            frontier, rewards, done = found[1]
            assert frontier is self.frontier
            assert rewards.tolist() == [child.step.reward for child in children]
            ended = [child.step.terminated or child.step.truncated for child in children]
            assert done.tolist() == ended

    def keep(self) -> None:
        """Takes a snapshot, puts back an earlier one, or goes through a file."""
        what = self.word.take(16)
        if what < 6 or self.kept is None:
            self.kept = Snapshot.take(self.frontier), self.model.copy(), [*self.population.tables]
        elif what < 15:
            snapshot, model, self.population.tables = self.kept
            self.model = self.population.model = model.copy()
            self.put_back(snapshot)
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "frontier")
                save(self.frontier, path)
                loaded = load(path, self.frontier.contract)
            self.put_back(Snapshot.take(loaded))

    def put_back(self, snapshot: Snapshot) -> None:
        snapshot.put(self.frontier)
