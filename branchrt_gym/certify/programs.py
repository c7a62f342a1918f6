"""Programs: sequences of operations on a population, scripted for the edges or random by seed.

A program is a generator that looks at the model before each operation it yields, so that what it
asks for is always allowed. The driver in `compare` applies each operation to the environment and
to the model; an operation list that was recorded there replays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from gymnasium.vector import AutoresetMode

from branchrt_gym.certify.operations import (
    Chance,
    Compact,
    Fork,
    Operations,
    Prune,
    Reset,
    RoundTrip,
)
from branchrt_gym.certify.population import ScalarPopulation

__all__ = ["PROGRAMS", "Program"]

Program = Callable[[ScalarPopulation, Chance], Operations]


def plain(model: ScalarPopulation, chance: Chance) -> Operations:
    """Operations through several episodes without a fork, as a Gymnasium loop does."""
    yield Reset(chance.seed)
    while chance.budget:
        yield from chance.steps(1)
        yield from chance.revive()


def full_frontier(model: ScalarPopulation, chance: Chance) -> Operations:
    """Keeps every slot in use: what ends is replaced by forks at once."""
    yield Reset(chance.seed)
    while chance.budget:
        yield from chance.fill()
        yield from chance.steps(1)
        yield from chance.revive()


def crowd(model: ScalarPopulation, chance: Chance) -> Operations:
    """Fills the free slots by one call of `fork`, and closes the holes that a step leaves."""
    yield Reset(chance.seed)
    while chance.budget:
        free = len(model.free_slots())
        live = model.live_slots()[:free]
        if live:
            each, more = divmod(free, len(live))
            counts = tuple(each + (place < more) for place in range(len(live)))
            yield Fork(tuple(live), counts, chance.rng)
        yield from chance.steps(1)
        yield Compact()
        yield from chance.revive()
        if not model.live_slots() and not model.reserved:
            yield Reset()


def all_pruned(model: ScalarPopulation, chance: Chance) -> Operations:
    """Prunes every branch, steps an empty population, and starts again."""
    yield Reset(chance.seed)
    for by_mask in (False, True, True):
        yield from chance.fork()
        yield from chance.steps(2)
        if model.live_slots():
            yield Prune(tuple(model.live_slots()), by_mask)
        yield from chance.steps(3)
        yield Compact()
        yield Reset()
    yield from chance.steps(3)


def fork_then_end(model: ScalarPopulation, chance: Chance) -> Operations:
    """Lets siblings run to their ends, together or apart, over several restarts."""
    yield Reset(chance.seed)
    while chance.budget:
        yield from chance.fork()
        yield from chance.steps(6)
        yield from chance.fork(1)
        yield from chance.steps(6)
        if model.mode == AutoresetMode.DISABLED and model.done_slots():
            yield Prune(chance.some(model.done_slots(), 0.3))
        yield from chance.revive()


def restart_while_others_live(model: ScalarPopulation, chance: Chance) -> Operations:
    """Ends one root after another by pruning, in the middle of the others' episodes."""
    yield Reset(chance.seed)
    root = 0
    while chance.budget:
        yield from chance.fork(2)
        yield from chance.steps(1)
        slots = [slot for slot in model.root_slots(root) if slot in model.live_slots()]
        if slots:
            yield Prune(tuple(slots), by_mask=root % 2 == 1)
        yield from chance.fork(1)
        yield from chance.steps(1)
        yield from chance.revive()
        if not model.live_slots() and not model.reserved:
            yield Reset()
        root = (root + 1) % model.num_roots


def compaction(model: ScalarPopulation, chance: Chance) -> Operations:
    """Tears holes, closes them, and forks into what became free."""
    yield Reset(chance.seed)
    while chance.budget:
        yield from chance.fill()
        yield from chance.steps(1)
        if model.live_slots()[1::2]:
            yield Prune(tuple(model.live_slots()[1::2]))
        yield Compact()
        yield from chance.fork()
        yield from chance.steps(2)
        yield Compact()
        if not model.live_slots() and not model.reserved:
            yield Reset()


def masked_resets(model: ScalarPopulation, chance: Chance) -> Operations:
    """Resets by mask at every stage, with and without seeds, beside untouched rows."""
    yield Reset(tuple(chance.seed + 7 * root for root in range(model.num_roots)))
    while chance.budget:
        yield from chance.fork()
        yield from chance.steps(2)
        yield from chance.masked()
        yield from chance.steps(1)
        yield from chance.masked(seed=chance.seed + chance.budget)
    yield Reset()
    yield from chance.masked(share=1.0)


def expansions(model: ScalarPopulation, chance: Chance) -> Operations:
    """Alternates `branch_step` with steps, forks and prunes."""
    yield Reset(chance.seed)
    while chance.budget:
        yield from chance.branch_step()
        yield from chance.branch_step()
        yield from chance.steps(1)
        yield from chance.fork(1)
        yield from chance.revive()
        if not model.live_slots() and not model.reserved:
            yield Reset()


def snapshots(model: ScalarPopulation, chance: Chance) -> Operations:
    """Takes a snapshot at every stage, spoils the state, and puts it back."""
    yield Reset(chance.seed)
    while chance.budget:
        yield from chance.fork()
        yield RoundTrip(chance.step().actions)
        yield from chance.steps(2)
        yield RoundTrip(chance.step().actions)
        if model.live_slots():
            yield Prune(chance.some(model.live_slots(), 0.3))
        yield RoundTrip(chance.step().actions)
        yield from chance.revive()
        if not model.live_slots() and not model.reserved:
            yield Reset()


def random_walk(model: ScalarPopulation, chance: Chance) -> Operations:
    """Draws every operation at random, in every order."""
    yield Reset(chance.seed)
    while chance.budget:
        kind = int(chance.draw.integers(20))
        live = model.live_slots()
        if kind < 3:
            yield from chance.fork()
        elif kind < 6 and live:
            yield Prune(chance.some(live, 0.3), by_mask=kind == 5)
        elif kind == 6:
            yield Compact()
        elif kind == 7:
            yield from chance.masked(chance.seed if chance.draw.random() < 0.3 else None)
        elif kind == 8:
            yield from chance.branch_step()
        elif kind == 9:
            yield RoundTrip(chance.step().actions)
        elif kind == 10 and (not live or chance.draw.random() < 0.2):
            yield Reset(chance.seed + 1 if chance.draw.random() < 0.5 else None)
        else:
            yield from chance.steps(2)


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        plain,
        full_frontier,
        crowd,
        all_pruned,
        fork_then_end,
        restart_while_others_live,
        compaction,
        masked_resets,
        expansions,
        snapshots,
        random_walk,
    )
}
