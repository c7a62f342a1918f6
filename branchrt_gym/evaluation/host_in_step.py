"""The plain loop where all open roots stand in one round and one pass is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from branchrt_gym.evaluation.attempts import FAILED, ISSUED, PASSED, UNITS

if TYPE_CHECKING:
    from branchrt_gym.evaluation.host_controller import HostController, Pairs

__all__ = ["commit_in_step", "settle", "wave_in_step"]


def wave_in_step(of: HostController, turn: int, roots: list[int], candidate: int) -> Pairs:
    """Issues one candidate for all roots that are open."""
    roots.sort()
    column = of.columns[candidate]
    for root in roots:
        column[root] = ISSUED
    of.queue = {}
    of.in_flight = len(roots)
    of.in_step = roots, [candidate] * len(roots), turn
    return of.in_step[:2]


def settle(of: HostController) -> None:
    """Writes down, root by root, what is known of roots in step."""
    if of.in_step is not None:
        roots, _, turn = of.in_step
        for root in roots:
            of.position[root], of.left[root] = turn + 1, of.num_candidates - turn
            of.flight[root] = 1
        of.in_step = None
    elif of.plain and not of.in_flight:
        for turn, roots in of.queue.items():
            for root in roots:
                of.position[root], of.left[root] = turn, of.num_candidates - turn
                of.flight[root] = 0


def commit_in_step(
    of: HostController,
    passed: Sequence[bool],
    cost: Sequence[float] | None,
    seconds: Sequence[float] | None,
) -> Pairs:
    """Commits the whole wave, where no budget but that of attempts is set."""
    assert of.in_step is not None
    roots, candidates, turn = of.in_step
    column, solved, is_open = of.columns[candidates[0]], of.solved, of.open
    count, target = of.solved_count, of.target
    after: list[int] = []
    for root, won in zip(roots, passed, strict=True):
        if won:
            column[root] = PASSED
            solved[root] = True
            is_open[root] = False
            count += 1
            if count == target:
                break
        else:
            column[root] = FAILED
            after.append(root)
    tried = len(after) + count - of.solved_count
    if count == target:
        of.done = "target"
        of.attempts_to_target = of.attempts + tried
        of.attempts_full_rounds = of.attempts + len(roots)
        for root, won in zip(roots[tried:], passed[tried:], strict=True):
            column[root] = PASSED if won else FAILED
    of.open_count -= count - of.solved_count
    of.attempts += len(roots)
    of.solved_count, of.in_flight, of.in_step = count, 0, None
    if cost is not None:
        of.cost_units += sum(map(round, [each * UNITS for each in cost]))
    if seconds is not None:
        of.seconds_units += sum(map(round, [each * UNITS for each in seconds]))
    if turn + 1 == of.num_candidates:
        of.open_count -= len(after)
        for root in after:
            is_open[root] = False
    elif after:
        of.queue = {turn + 1: after}
    if of.done is None:
        if of.attempts >= of.max_attempts:
            of.done = "attempts"
        elif of.open_count == 0:
            of.done = "exhausted"
    if of.done is not None:
        of.open = [False] * of.num_roots
    return [], []
