"""The frontier as a list of objects in plain Python: what the tensors are held against.

Written from the rules alone. Slots hold a branch or None, entries of the lineage point at each
other, keys are Python ints of 64 bits, and every list is looped over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from frontier_keys import child_key, episode_key
from frontier_records import Branch, Child, Entry, Refused, Root, Step, ends

from branchrt_gym.slots import DONE, LIVE


class Model:
    """`slots` slots, `roots` roots and a lineage of `capacity` entries, 0 for none."""

    def __init__(self, slots: int, roots: int, capacity: int) -> None:
        self.slots: list[Branch | None] = [None] * slots
        self.roots = [Root()] * roots
        self.capacity = capacity
        self.next_id = 0
        self.entries: list[Entry] = []
        self.newest: dict[int, Entry] = {}

    def copy(self) -> Model:
        other = Model(len(self.slots), len(self.roots), self.capacity)
        other.slots, other.roots = [*self.slots], [*self.roots]
        other.next_id = self.next_id
        other.entries, other.newest = [*self.entries], {**self.newest}
        return other

    # What is there ------------------------------------------------------------------------

    def where(self, status: int) -> list[int]:
        return [slot for slot, held in enumerate(self.slots) if held and held.status == status]

    @property
    def live(self) -> list[int]:
        return self.where(LIVE)

    @property
    def done(self) -> list[int]:
        return self.where(DONE)

    @property
    def free(self) -> list[int]:
        return [slot for slot, held in enumerate(self.slots) if held is None]

    def at(self, slot: int) -> Branch:
        held = self.slots[slot]
        assert held is not None
        return held

    # Lineage ------------------------------------------------------------------------------

    def recent(self, entry: Entry, episodes: int = 2) -> bool:
        """Whether it is of the last `episodes` episodes of its root."""
        return entry.generation > self.roots[entry.root].generation - episodes

    def room(self, extra: int, episodes: int = 2) -> None:
        """Reclaims if `extra` more entries do not fit, and refuses if they do not even so."""
        if not self.capacity or len(self.entries) + extra <= self.capacity:
            return
        kept = [entry for entry in self.entries if self.recent(entry, episodes)]
        if len(kept) + extra > self.capacity:
            raise Refused("LineageFullError")
        self.entries = kept

    def write(self, *values: Any, **more: Any) -> Entry:
        entry = Entry(*values, **more)
        self.newest[entry.branch] = entry
        if self.capacity:
            self.entries.append(entry)
        return entry

    def known(self) -> list[int]:
        """The ids whose trajectories can be asked for."""
        return [branch for branch, entry in self.newest.items() if self.recent(entry)]

    def trajectory(self, branch: int) -> tuple[int, list[Any], frozenset[str]]:
        """Root, transitions from the first on, and how it ended."""
        entry: Entry | None = self.newest[branch]
        assert entry is not None
        root, flags, path = entry.root, entry.flags, []
        while entry is not None:
            if entry.taken is not None:
                path.append(entry.taken)
            entry = entry.before
        return root, path[::-1], flags

    # Births -------------------------------------------------------------------------------

    def start(self, seeds: Sequence[int]) -> None:
        """Forgets everything; the roots' first episodes are for `begin`."""
        self.slots = [None] * len(self.slots)
        self.roots = [Root(seed) for seed in seeds]
        self.next_id, self.entries, self.newest = 0, [], {}

    def begin(
        self, slot: int, root: int, context: int, state: dict[str, Any], payload: object = None
    ) -> None:
        """Starts the next episode of a root."""
        old = self.roots[root]
        self.roots[root] = Root(
            old.seed, old.episode + 1, False, old.generation + 1, first=self.next_id
        )
        born = self.write(None, self.next_id, root, old.generation + 1)
        key = episode_key(old.seed, old.episode + 1)
        self.slots[slot] = Branch(
            root, context, self.next_id, -1, 0, key, 0, 0, born, state, payload
        )
        self.next_id += 1

    def fork(self, parents: Sequence[int], counts: Sequence[int], rng: str) -> list[int]:
        family = [slot for slot, n in zip(parents, counts, strict=True) for _ in range(n)]
        if not all(0 <= slot < len(self.slots) for slot in parents):
            raise Refused("SlotError")
        free = self.free
        if len(family) > len(self.slots):
            raise Refused("FrontierFullError")
        if not set(family) <= set(self.live):
            raise Refused("SlotError")
        if len(family) > len(free):
            raise Refused("FrontierFullError")
        self.room(len(family))
        given, made = dict.fromkeys(family, 0), []
        for slot in family:
            parent = self.at(slot)
            child = parent._replace(
                id=self.next_id,
                parent=parent.id,
                key=child_key(parent.key, parent.forks, given[slot], rng),
                forks=parent.forks + 1 if rng == "shared" else 0,
                entry=self.write(parent.entry, self.next_id, *parent.entry[2:4]),
            )
            given[slot] += 1
            self.slots[free[len(made)]] = child
            made.append(free[len(made)])
            self.next_id += 1
        for slot in given:
            self.slots[slot] = self.at(slot)._replace(forks=self.at(slot).forks + 1)
        return made

    # Endings ------------------------------------------------------------------------------

    def prune(self, slots: Sequence[int]) -> None:
        """Stops the live branches in `slots`, in order, and frees these slots."""
        stopped = [slot for slot in sorted(set(slots)) if slot in self.live]
        if stopped:
            self.room(len(stopped))
        for slot in stopped:
            held = self.at(slot).entry
            self.write(held, *self.stamp(slot), flags=held.flags & {"solved"} | {"pruned"})
        self.end(slots)

    def end(self, slots: Sequence[int], status: int | None = None) -> None:
        """Frees the slots, or marks them DONE."""
        for slot in slots:
            self.slots[slot] = None if status is None else self.at(slot)._replace(status=status)

    def compact(self, keep_done: bool) -> list[int]:
        source = sorted(self.live + self.done if keep_done else self.live)
        rest = len(self.slots) - len(source)
        self.slots = [*(self.slots[slot] for slot in source), *[None] * rest]
        return source + [-1] * rest

    # Transitions --------------------------------------------------------------------------

    def stamp(self, slot: int) -> tuple[int, int, int]:
        held = self.at(slot)
        return held.id, held.root, held.entry.generation

    def advance(self, slot: int, action: int, step: Step) -> None:
        held = self.at(slot)
        taken = (action, step.reward, step.log)
        entry = self.write(held.entry, *self.stamp(slot), taken, ends(step))
        self.slots[slot] = held._replace(state=step.state, depth=held.depth + 1, entry=entry)

    def expand(
        self,
        children: Sequence[Child],
        width: int | None,
        rng: str,
        compete: bool,
        old_score: Callable[[Branch], int],
        more: int = 0,
    ) -> None:
        """Replaces every live branch by the children that stay; `width` None keeps all.

        `old_score` says with what a DONE branch competes, if they do; `more`
        entries of the lineage must be free afterwards.
        """
        parents = self.live
        winners = {self.at(child.slot).root for child in children if child.passed}
        stay = [c for c in children if c.passed or self.at(c.slot).root not in winners]
        dropped = []
        if width is not None:
            rivals: list[tuple[int, int, Any]] = [(c.slot, c.score, c) for c in stay]
            rivals += [(s, old_score(self.at(s)), s) for s in self.done if compete]
            rivals.sort(key=lambda rival: rival[0])
            stay = []
            for root in range(len(self.roots)):
                field = [rival for rival in rivals if self.at(rival[0]).root == root]
                field.sort(key=lambda rival: -rival[1])
                stay += [what for _, _, what in field[:width] if isinstance(what, Child)]
                dropped += [what for _, _, what in field[width:] if isinstance(what, int)]
        room = sorted({*self.free, *parents, *dropped})
        if len(stay) > len(room):
            raise Refused("FrontierFullError")
        barren = [slot for slot in parents if slot not in {child.slot for child in children}]
        self.room(len(stay) + len(barren) + more)
        self.prune(barren)
        for root in winners:
            self.roots[root] = self.roots[root]._replace(solved=True)
        kept = [(child, self.at(child.slot)) for child in stay]
        self.end({*parents, *dropped} - {*barren})
        for slot, (child, parent) in zip(room, kept, strict=False):
            self.slots[slot] = self.child_of(parent, child, rng)
            self.next_id += 1

    def child_of(self, parent: Branch, child: Child, rng: str) -> Branch:
        shared, step = rng == "shared", child.step
        taken = (child.action, step.reward, step.log)
        stamp = (self.next_id, parent.root, parent.entry.generation)
        flags = ends(step._replace(solved=child.passed))
        over = step.terminated or step.truncated or child.passed
        return parent._replace(
            id=self.next_id,
            parent=parent.id,
            depth=parent.depth + 1,
            key=child_key(parent.key, parent.forks, child.number, rng),
            forks=parent.forks + 1 if shared else 0,
            score=child.score,
            entry=self.write(parent.entry, *stamp, taken, flags),
            state=step.state,
            payload=child.payload,
            status=DONE if over else LIVE,
        )
