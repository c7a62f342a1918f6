"""Writes a saved wrapper stack into a live one, in place."""

from __future__ import annotations

from typing import Any

from branchrt_gym.wrappers.structural import CANVASES, Copying, Saved, Table, copies_layer, layers

__all__ = ["put"]


def put(live: Any, saved: Any, table: Table) -> None:
    """Writes a saved stack into a live one, whose layers stay the objects they are.

    Raises:
        ValueError: If the stacks differ in their layers.
    """
    run = Copying(table, trial=True)
    here, there = layers(live), layers(saved)
    if isinstance(there[-1], Saved):
        here = here[: len(there)]
    if len(here) != len(there) or not all(map(_matches, here, there)):
        raise ValueError(
            f"`snapshot` is of {saved}; expected one of the same layers as this environment, {live}"
        )
    writes: list[tuple[Saved, Any]] = []
    for old, kept in zip(here, there, strict=True):
        run.memo[id(kept)] = old
        if isinstance(kept, Saved):
            run.memo.update(kept.stands_for(old))
            writes.append((kept, old))
            continue
        for name, value in vars(kept).items():
            part = vars(old).get(name)
            if name != "env" and isinstance(value, Saved) and value.fits(part):
                run.memo[id(value)] = part
                writes.append((value, part))
    filled: list[tuple[Any, dict[str, Any]]] = []
    for old, kept in zip(here, there, strict=True):
        if isinstance(kept, Saved):
            continue
        if copies_layer(table, type(kept)):
            attributes = run.layer_attributes(kept)
        else:
            attributes = dict(vars(table[type(kept)](kept, run)))
        for name in CANVASES & vars(old).keys():
            if attributes.get(name) is None:
                attributes[name] = vars(old)[name]
        filled.append((old, attributes))
    for state, part in writes:
        state.into(part, run)
    for old, attributes in filled:
        vars(old).clear()
        vars(old).update(attributes)


def _matches(live: Any, kept: Any) -> bool:
    return kept.fits(live) if isinstance(kept, Saved) else type(kept) is type(live)
