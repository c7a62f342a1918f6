"""What the plain model is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from branchrt_gym.slots import LIVE


class Refused(Exception):
    """The rules forbid the call; named as the library's error is."""


class Entry(NamedTuple):
    """One line of the lineage; `taken` is (action, reward, log) or None."""

    before: Entry | None
    branch: int
    root: int
    generation: int
    taken: tuple[Any, ...] | None = None
    flags: frozenset[str] = frozenset()


class Branch(NamedTuple):
    root: int
    context: int
    id: int
    parent: int
    depth: int
    key: int
    forks: int
    score: int
    entry: Entry
    state: dict[str, Any]
    payload: object = None
    status: int = LIVE


class Root(NamedTuple):
    """`generation` counts the episodes since the start, whatever their numbers."""

    seed: int = 0
    episode: int = -1
    solved: bool = False
    generation: int = -1
    first: int = 0


class Step(NamedTuple):
    """What an environment says of one branch and one action."""

    state: dict[str, Any]
    reward: float
    terminated: bool
    truncated: bool
    solved: bool
    log: tuple[Any, ...] = ()


class Child(NamedTuple):
    """A child of an expansion before it is kept."""

    slot: int
    number: int
    action: int
    step: Step
    passed: bool
    score: int
    payload: object = None


def ends(step: Step) -> frozenset[str]:
    names = ("terminated", "truncated", "solved")
    return frozenset(name for name in names if getattr(step, name))
