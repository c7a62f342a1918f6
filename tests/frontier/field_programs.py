"""Programs for a frontier by itself, with and without a contract."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from frontier_keys import context_key, episode_key, signed
from frontier_programs import Program
from frontier_records import Child, Step
from population_model import Population
from weave import Weave
from words import Word

from branchrt_gym import (
    Beam,
    Contract,
    Expansion,
    Frontier,
    Snapshot,
    Transition,
    Verdicts,
    branch_step,
    log,
)
from branchrt_gym.errors import SlotError

WEAVE = Weave()
SAID = Contract({"said": log((2,), torch.int16)})


class OnFrontier(Program):
    """A frontier by itself."""

    operations = (
        *("compact", "prune", "make_room", "mark_done", "start", "keep", "wrong", "restart"),
        *("advance", "expand", "fork") * 3,
    )
    rules: Weave | None = None

    def __init__(self, header: Word) -> None:
        super().__init__(header)
        contract = self.rules.contract if self.rules else header.one([None, SAID])
        self.frontier = Frontier(
            self.size, self.num_roots, contract, lineage_capacity=self.capacity
        )
        self.population = Population(self.model, self.contexts)
        self.start()

    def wrong_calls(self):
        size, frontier, roots = self.size, self.frontier, self.num_roots
        yield lambda: frontier.fork([0], -1), ValueError
        yield lambda: frontier.fork([0.5]), TypeError
        yield lambda: frontier.fork([[0]]), TypeError
        yield lambda: frontier.fork([True]), TypeError
        yield lambda: frontier.fork([0], [1, 2]), ValueError
        yield lambda: frontier.fork([0], [[1]]), ValueError
        yield lambda: frontier.fork([0], rng="both"), ValueError
        yield lambda: frontier.fork([size]), SlotError
        yield lambda: frontier.fork([-1], 0), SlotError
        yield lambda: frontier.prune([0, size]), SlotError
        yield lambda: frontier.prune([0.0]), TypeError
        yield lambda: frontier.prune([True] * (size + 1)), ValueError
        yield lambda: frontier.trajectories([[0]]), TypeError if self.capacity else ValueError
        yield lambda: frontier.trajectories(["a"]), TypeError if self.capacity else ValueError
        yield lambda: frontier.start([0] * (roots + 1)), ValueError
        yield lambda: frontier.start(-1), ValueError
        yield lambda: frontier.start(0.5), TypeError
        yield lambda: frontier.start(0, payloads=[""] * (roots + 1)), ValueError
        yield lambda: frontier.start(0, state={"other": torch.zeros(roots)}), ValueError
        if self.rules:
            yield lambda: branch_step(frontier, raises, raises), ValueError
        else:
            yield lambda: branch_step(frontier, WEAVE), ValueError
            yield lambda: branch_step(frontier, lambda batch: None, raises), TypeError
            yield lambda: branch_step(frontier, raises, raises), ArithmeticError
        yield lambda: branch_step(frontier, WEAVE, rng="both"), ValueError

    def wrong(self) -> None:
        self.refuses(*self.word.one([*self.wrong_calls()]))

    def seeds(self) -> list[int]:
        first = self.word.one([0, 7, 2**40, 2**63 - 1 - self.num_roots])
        if self.word.take(2):
            return [first + self.word.take(2) for _ in range(self.num_roots)]
        return [*range(first, first + self.num_roots)]

    def tensors(self, rows: Sequence[int], contexts: Sequence[int], episodes: Sequence[int]):
        """Context, key and state of the roots in `rows`, as a runtime hands them in."""
        seeds = [self.model.roots[root].seed for root in rows]
        keys = [signed(episode_key(*pair)) for pair in zip(seeds, episodes, strict=True)]
        context, key = torch.tensor(contexts), torch.tensor(keys)
        state = self.rules.initial(self.frontier.shared, context, key) if self.rules else {}
        return context, key, state

    def restart(self) -> None:
        model, word, frontier = self.model, self.word, self.frontier
        roots = word.some(range(self.num_roots))[::-1]
        theirs = [s for s in model.live + model.done if model.at(s).root in roots]
        if self.both(lambda: model.prune(theirs), lambda: frontier.prune(theirs)) is None:
            return
        slots = model.free[: len(roots)]
        roots = roots[: len(slots)]
        if not slots:
            return
        contexts = [word.take(self.contexts) for _ in roots]

        def plan() -> None:
            model.room(len(slots))
            for slot, root, context in zip(slots, roots, contexts, strict=True):
                self.begin(slot, root, context)

        def call() -> None:
            frontier.make_room(len(slots))
            episodes = frontier.episode[roots] + 1
            values = self.tensors(roots, contexts, episodes.tolist())
            frontier.begin(torch.tensor(slots), None, torch.tensor(roots), *values)

        self.both(plan, call)


class OnPayloads(OnFrontier):
    """Branches without a contract: each carries a text, or None."""

    def start(self) -> None:
        seeds, named = self.seeds(), self.word.take(3)
        payloads = [*"pqrs"][: self.num_roots] if named else None
        self.frontier.start(seeds, payloads=payloads)
        self.model.start(seeds)
        for root in range(self.num_roots):
            self.begin(root, root, 0, payloads[root] if payloads else None)

    def begin(self, slot: int, root: int, context: int, payload: object = None) -> None:
        self.model.begin(slot, root, context, {}, payload)

    def step_of(self, slot: int, action: int) -> Step:
        held = self.model.slots[slot]
        chance = crc32(f"{held and held.payload}{action}".encode())
        said = self.said(chance)
        ends = chance & 7 == 0, chance >> 3 & 15 == 0, chance >> 7 & 7 == 0
        return Step({}, action / 2, *ends, said)

    def transition(self, action: torch.Tensor) -> Transition:
        steps = [self.step_of(slot, each) for slot, each in enumerate(action.tolist())]
        _, *parts, said = zip(*steps, strict=True)
        return Transition({}, *(torch.tensor(part) for part in parts), self.said_by(said))

    def said(self, chance: int) -> tuple[list[int], ...]:
        """A step's entries of the log fields."""
        return ([chance >> 20 & 255, -(chance >> 28)],) if self.frontier.contract.fields else ()

    def said_by(self, steps: Sequence[tuple[list[int], ...]]) -> dict[str, torch.Tensor]:
        if not self.frontier.contract.fields:
            return {}
        rows = [row for step in steps for row in step]
        return {"said": torch.tensor(rows, dtype=torch.int16).reshape(-1, 2)}

    def expand(self) -> None:
        word, model = self.word, self.model
        salt, width, rng = word.take(256), word.one([None, 1, 2, 3]), word.one(["split", "shared"])
        compete, max_depth = word.one([True, False]), word.one([None, 2])
        broken = word.one(
            [*[""] * 20, "order", "place", "kind", "count", "log", "verdict", "raise"]
        )

        def chance(text: object) -> int:
            return crc32(f"{salt}{text}".encode())

        def grown(text: object) -> list[str]:
            return [f"{text}{letter}" for letter in "abc"[: chance(text) % 4]]

        children = []
        for slot in model.live:
            deep = max_depth is not None and model.at(slot).depth + 1 >= max_depth
            for number, text in enumerate(grown(model.at(slot).payload)):
                x = chance(text)
                step = Step({}, x % 7 / 2, x >> 8 & 7 == 0, deep, False, self.said(x))
                passed, score = x >> 12 & 7 == 0, (x >> 16) % 2
                children.append(Child(slot, number, number, step, passed, score, text))

        def env_fn(batch):
            pairs = [(i, text) for i, old in enumerate(batch.payloads) for text in grown(old)]
            rewards = [chance(text) % 7 / 2 for _, text in pairs]
            done = [chance(text) >> 8 & 7 == 0 for _, text in pairs]
            parents = [i for i, _ in pairs]
            if broken == "order" and parents:
                parents[-1] = -1
            if broken == "place" and parents:
                parents[-1] = len(batch)
            if broken == "kind":
                done = [float(one) for one in done]
            if broken == "count":
                rewards = [*rewards, 0.0]
            payloads = [text for _, text in pairs]
            said = self.said_by([self.said(chance(text)) for text in payloads])
            if broken == "log":
                said["heard"] = torch.zeros(len(pairs))
            return Expansion(parents, payloads, rewards, done, said)

        def verifier_fn(batch):
            if broken == "raise":
                raise ArithmeticError
            x = [chance(text) for text in batch.payloads]
            score = [(each >> 16) % 2 for each in x]
            passed = [each >> 12 & 7 == 0 for each in x]
            return Verdicts(passed, score[1:] if broken == "verdict" else score)

        def call():
            policy = Beam(width) if width else None
            more = {"rng": rng, "max_depth": max_depth, "compete_done": compete}
            return branch_step(self.frontier, env_fn, verifier_fn, policy, **more)

        if broken in ("raise", "count", "log") or (broken and children):
            self.refuses(call, ArithmeticError if broken == "raise" else ValueError)
            return
        plan = lambda: model.expand(children, width, rng, compete, lambda held: held.score)  # noqa: E731
        self.compare_expansion(children, self.both(plan, call))

    def keep(self) -> None:
        if any(held and held.payload is not None for held in self.model.slots):
            self.refuses(lambda: Snapshot.take(self.frontier), ValueError, "opaque payloads")
            return
        super().keep()


class OnFields(OnFrontier):
    """Branches under a contract."""

    rules = WEAVE

    def start(self) -> None:
        seeds, frontier = self.seeds(), self.frontier
        self.population.reset(seeds)
        contexts = [root % self.contexts for root in range(self.num_roots)]
        keys = torch.tensor([signed(context_key(seed)) for seed in seeds[: self.contexts]])
        frontier.shared = WEAVE.initial_shared(keys)
        index, key, state = self.tensors(range(self.num_roots), contexts, [0] * self.num_roots)
        frontier.start(torch.tensor(seeds), index, key, state, frontier.shared)

    def begin(self, slot: int, root: int, context: int) -> None:
        self.population.begin(slot, root, context)

    def step_of(self, slot: int, action: int) -> Step:
        return self.population.step_of(self.model.at(slot), action)

    def transition(self, action: torch.Tensor) -> Transition:
        return WEAVE.transition(self.frontier.shared, self.frontier.branches(with_key=True), action)

    def expand(self) -> None:
        word, population = self.word, self.population
        width, rng = word.one([1, 2, 3, None]), word.one(["split", "shared"])
        judged = bool(word.take(2))
        compete, population.max_depth = word.one([True, False]), word.one([None, 2])
        children = population.children(rng, judge if judged else None)
        more = {"rng": rng, "max_depth": population.max_depth, "compete_done": compete}
        population.max_depth = None
        policy, verifier = Beam(width) if width else None, judge_all if judged else None
        found = self.both(
            lambda: self.model.expand(children, width, rng, compete, competes_with(judged)),
            lambda: branch_step(self.frontier, WEAVE, verifier, policy, **more),
        )
        self.compare_expansion(children, found)


def raises(batch):
    raise ArithmeticError


def judge(state):
    return state["tall"] & 7 == 0, state["tall"] >> 40 & 1


def judge_all(batch):
    return Verdicts(batch.state["tall"] & 7 == 0, batch.state["tall"] >> 40 & 1)


def competes_with(judged):
    return (lambda held: held.score) if judged else (lambda held: held.state["score"])
