"""A vector env's population over the plain model: which branches end, and when roots restart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from frontier_keys import CONTEXT, bounded, child_key, episode_key, fold
from frontier_model import Model
from frontier_records import Branch, Child, Refused, Step
from weave import ACTIONS, scalar_initial, scalar_observation, scalar_table, scalar_transition

from branchrt_gym.slots import DONE


class Seen(NamedTuple):
    """What a step returns, per slot."""

    observation: list[list[int]]
    reward: list[float]
    terminated: list[bool]
    truncated: list[bool]
    solved: list[bool]
    live: list[bool]


class Population:
    """Weave for `model`; `mode` is an autoreset mode's value, None for a frontier by itself."""

    def __init__(
        self, model: Model, contexts: int, mode: str | None = None, max_depth: int | None = None
    ) -> None:
        self.model = model
        self.contexts = contexts
        self.mode = mode
        self.max_depth = max_depth
        self.tables: list[list[int]] = []

    def step_of(self, held: Branch, action: int, key: int | None = None) -> Step:
        drawn = fold(held.key if key is None else key, held.depth)
        step = scalar_transition(self.tables[held.context], held.state, held.depth, drawn, action)
        over = self.max_depth is not None and held.depth + 1 >= self.max_depth
        return step._replace(truncated=step.truncated or over)

    # Starts -------------------------------------------------------------------------------

    def reset(self, seeds: Sequence[int]) -> None:
        self.model.start(seeds)
        self.tables = [scalar_table(seed) for seed in seeds[: self.contexts]]
        for root in range(len(seeds)):
            self.begin(root, root, root % self.contexts)

    def begin(self, slot: int, root: int, context: int | None = None) -> None:
        """Starts a root's next episode; None draws its context."""
        old = self.model.roots[root]
        key = episode_key(old.seed, old.episode + 1)
        if context is None:
            context = bounded(fold(key, CONTEXT), self.contexts)
        self.model.begin(slot, root, context, scalar_initial(self.tables[context], key))

    def next_episodes(self) -> None:
        model = self.model
        model.room(len(model.slots) + len(model.roots), episodes=1)
        model.prune(model.live + model.done)
        for root in range(len(model.roots)):
            self.begin(root, root)

    def reset_masked(self, mask: Sequence[bool], seeds: Sequence[int] | None) -> list[bool]:
        """Returns where roots were restarted."""
        model = self.model
        held = model.live + model.done
        members = sorted(slot for slot in held if mask[slot])
        first: dict[int, int] = {}
        for slot in members:
            first.setdefault(model.at(slot).root, slot)
        theirs = [slot for slot in held if model.at(slot).root in first]
        if not any(mask) or {*theirs} & {*model.live} - {*members}:
            raise Refused("OptionsError")
        model.room(len(model.slots) + len(model.roots))
        model.prune(theirs)
        for root, slot in first.items():
            if seeds is not None:
                fresh = model.roots[root]._replace(seed=seeds[root], episode=-1)
                model.roots[root] = fresh
            self.begin(slot, root)
        return [slot in first.values() for slot in range(len(model.slots))]

    def restart(self, slots: Iterable[int]) -> None:
        for slot in sorted(slots):
            self.begin(slot, self.model.at(slot).root)

    # Ends ---------------------------------------------------------------------------------

    def settle(self, ended: Iterable[int]) -> list[int]:
        """Frees the slots of what ended but one for each root that ended; returns these."""
        model, ended = self.model, sorted(ended)
        going = {model.at(slot).root for slot in model.live if slot not in ended}
        reserved: dict[int, int] = {}
        for slot in ended:
            root = model.at(slot).root
            if root not in going and root not in reserved:
                reserved[root] = slot
                model.end([slot], DONE)
            else:
                model.end([slot])
        return [*reserved.values()]

    def prune(self, slots: Sequence[int]) -> None:
        """Prunes branches; outside DISABLED mode a root that ends so keeps a slot."""
        model = self.model
        if self.mode in (None, "Disabled"):
            model.prune(slots)
            return
        live = {slot for slot in slots if slot in model.live}
        model.room(len(live))
        roots = {slot: model.at(slot) for slot in live}
        model.prune([*live])
        for slot, held in roots.items():  # for `settle` to see where they were
            model.slots[slot] = held._replace(status=DONE)
        self.settle(live)

    # Steps --------------------------------------------------------------------------------

    def step(self, actions: Sequence[int]) -> Seen:
        model, size = self.model, len(self.model.slots)
        live, waiting = model.live, [] if self.mode == "Disabled" else model.done
        model.room(len(live) + len(model.roots))
        steps = {slot: self.step_of(model.at(slot), actions[slot]) for slot in live}
        for slot, step in steps.items():
            model.advance(slot, actions[slot], step)
        ended = [slot for slot, step in steps.items() if step.terminated or step.truncated]
        observation = self.observe({*live, *waiting})
        final: list[int] = []
        if self.mode == "Disabled":
            model.end(ended, DONE)
        else:
            reserved = self.settle(ended)
            final = reserved if self.mode == "SameStep" else []
            again = [*waiting, *final]
            self.restart(again)
            restarted = self.observe(again)
            for slot in again:
                observation[slot] = restarted[slot]
        return Seen(
            observation,
            [steps[slot].reward if slot in steps else 0.0 for slot in range(size)],
            *(
                [slot in steps and getattr(steps[slot], name) for slot in range(size)]
                for name in ("terminated", "truncated")
            ),
            [slot in steps and steps[slot].solved and slot not in final for slot in range(size)],
            [slot in model.live for slot in range(size)],
        )

    def observe(self, visible: Iterable[int] | None = None) -> list[list[int]]:
        """Observations of the visible slots (those not free if None), zeros elsewhere."""
        model = self.model
        shown = {*model.live, *model.done} if visible is None else {*visible}
        rows = [[0, 0] for _ in model.slots]
        for slot in shown:
            held = model.at(slot)
            rows[slot] = scalar_observation(held.state, held.depth)
        return rows

    def children(self, rng: str, verdict=None) -> list[Child]:
        """Every action of every live branch; `verdict` judges a child's state."""
        made = []
        for slot in self.model.live:
            held = self.model.at(slot)
            for number, action in enumerate(ACTIONS):
                step = self.step_of(held, action, child_key(held.key, held.forks, number, rng))
                passed, score = step.solved, step.state["score"]
                if verdict is not None:
                    passed, score = verdict(step.state)
                made.append(Child(slot, number, action, step, passed, score))
        return made

    def expand(self, children: Sequence[Child], width: int | None, rng: str, old_score) -> None:
        """Expansion in a vector env: ended roots restart as in a step."""
        model = self.model
        disabled = self.mode == "Disabled"
        waiting = [] if disabled else model.done
        more = 0 if disabled else len(model.slots)
        model.expand(children, width, rng, disabled, old_score, more)
        if not disabled:
            reserved = self.settle({*model.done} - {*waiting})
            self.restart(waiting + (reserved if self.mode == "SameStep" else []))
