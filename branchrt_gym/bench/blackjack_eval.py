"""`branchrt bench blackjack`: a target share of Blackjack roots, by several controllers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from branchrt_gym.bench.blackjack_figures import (
    FRONTIER,
    FRONTIER_GPU,
    HOST,
    RUN_ALL,
    BlackjackComparison,
    BlackjackSizes,
    Outcome,
)
from branchrt_gym.bench.blackjack_hands import (
    BatchedHands,
    GymnasiumHands,
    Hands,
    compare_with_oracle,
)
from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.measure import clock
from branchrt_gym.evaluation.attempts import Verdicts
from branchrt_gym.evaluation.eval_frontier import EvalFrontier
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.profile import Profile, layer

__all__ = ["attempts_to_target", "compare_blackjack"]

CHECKED = 512  # hands that the scalar oracle plays too


class Record:
    """Passes a wave on to an environment, and keeps what was asked and answered."""

    def __init__(self, hands: Hands) -> None:
        """Has asked nothing yet."""
        self.hands, self.version = hands, hands.version
        self.episodes = 0
        self.asked: list[tuple[Any, Any, Any]] = []

    def verify(self, roots: Any, candidates: Any) -> Verdicts:
        """Plays and keeps."""
        verdicts = self.hands.verify(roots, candidates)
        self.asked.append((_host(roots), _host(candidates), _host(verdicts.passed)))
        return verdicts

    def play(self, roots: Any, candidates: Any) -> list[bool]:
        """Plays and keeps."""
        won = self.hands.play(roots, candidates)
        self.asked.append((np.array(roots), np.array(candidates), np.array(won)))
        return won

    def columns(self) -> NDArray[np.int64]:
        """Returns `[3, M]`: root, candidate, won, in the order asked."""
        return np.concatenate([np.stack(each).astype(np.int64) for each in self.asked], axis=1)


def _host(values: Any) -> NDArray[Any]:
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values)


def attempts_to_target(won: NDArray[np.bool_], needed: int) -> int | None:
    """Counts attempts up to the target, from all verdicts, without a controller.

    Args:
        won: `[R, C]`. Candidates are tried in their order, round by round, roots ascending; a root
            that is won is tried no more.
        needed: Roots to be won.
    """
    roots, candidates = won.shape
    last = np.where(won.any(1), won.argmax(1), candidates)  # the candidate that ends each root
    ends = np.sort((last * roots + np.arange(roots))[last < candidates])
    if len(ends) < needed:
        return None
    turn, root = divmod(int(ends[needed - 1]), roots)
    tried = np.minimum(last + 1, turn)  # in the rounds before
    return int(tried.sum()) + int((last[: root + 1] >= turn).sum())


def run_all(hands: Hands, sizes: BlackjackSizes, device: torch.device) -> Outcome:
    """Plays everything in one batch, and looks afterwards."""
    shape = sizes.candidates, sizes.roots
    roots = torch.arange(sizes.roots, device=device).expand(shape).reshape(-1)
    candidates = torch.arange(sizes.candidates, device=device)[:, None].expand(shape).reshape(-1)
    won = hands.verify(roots, candidates).passed.view(shape)
    return Outcome(won.numel(), None, int(won.any(0).sum()))


def run_host(hands: Hands, sizes: BlackjackSizes, device: torch.device) -> Outcome:
    """Plays wave by wave as the plain loop says."""
    with layer("frontier"):
        host = HostController(sizes.roots, sizes.candidates, target=sizes.target)
    while host.done is None:
        with layer("frontier"):
            roots, candidates = host.wave()
        won = hands.play(roots, candidates)
        with layer("frontier"):
            host.commit(roots, candidates, won)
    return Outcome(host.attempts, host.attempts_to_target, host.solved_count)


def run_frontier(hands: Hands, sizes: BlackjackSizes, device: torch.device) -> Outcome:
    """Plays as `EvalFrontier` says, which decides on that device."""
    frontier = EvalFrontier(
        sizes.roots, sizes.candidates, hands, target=sizes.target, device=device
    )
    result = frontier.run()
    return Outcome(result.attempts, result.attempts_to_target, int(result.solved.sum()))


def compare_blackjack(
    sizes: BlackjackSizes,
    *,
    repetitions: int = 7,
    device: str = "cpu",
    progress: Progress = lambda stage, done, total: None,
) -> BlackjackComparison:
    """Compares decisions and verdicts with their oracles, then times all controllers by turns."""
    if repetitions < 1:
        raise ValueError(f"`repetitions` is {repetitions}; expected 1 or more")
    where, cpu = torch.device(device), torch.device("cpu")
    stages = 3 + repetitions
    progress("Dealing", 0, stages)
    hands: Hands
    if sizes.env == "gpu":
        hands = BatchedHands(sizes.roots, sizes.seed, where)
    elif sizes.env == "gymnasium":
        hands = GymnasiumHands(sizes.roots, sizes.seed)
    else:
        raise ValueError(f"`env` is {sizes.env!r}; a server is measured by `compare_served`")
    calls: dict[str, Callable[[Hands], Outcome]] = {
        RUN_ALL: lambda hands: run_all(hands, sizes, where),
        HOST: lambda hands: run_host(hands, sizes, cpu),
        FRONTIER: lambda hands: run_frontier(hands, sizes, cpu),
    }
    if where.type == "cuda":
        calls[FRONTIER_GPU] = lambda hands: run_frontier(hands, sizes, where)
    comparison = BlackjackComparison(sizes, device)
    progress("Comparing", 1, stages)
    _compare(comparison, hands, calls)
    if not comparison.equal:
        return comparison
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repetition in range(repetitions):
        progress(f"Timing, repetition {repetition + 1} of {repetitions}", 2 + repetition, stages)
        turns = list(calls.items())[:: -1 if repetition % 2 else 1]  # what comes later gains none
        for name, call in turns:
            times[name].append(clock(lambda: call(hands), where))  # noqa: B023 - called here
    comparison.summarize(times)
    progress("Profiling", 2 + repetitions, stages)
    for name, call in calls.items():
        with Profile(where) as comparison.profiles[name]:
            call(hands)
    progress("Done", stages, stages)
    return comparison


def _compare(
    comparison: BlackjackComparison, hands: Hands, calls: dict[str, Callable[[Hands], Outcome]]
) -> None:
    """Compares who asked for what, in which order, and what came of it."""
    sizes, differ = comparison.sizes, comparison.differ
    records = {name: Record(hands) for name in calls}
    found = {name: call(records[name]) for name, call in calls.items()}
    comparison.outcomes = found
    everything = records[RUN_ALL].columns()
    won = everything[2].reshape(sizes.candidates, sizes.roots).T.astype(bool)
    oracle, host = records[HOST].columns(), found[HOST]
    # The plain loop is itself checked: by all verdicts, and by a count without any controller.
    differ("verdicts of the host controller's", won[oracle[0], oracle[1]], oracle[2])
    differ("its attempts", attempts_to_target(won, sizes.needed), host.attempts_to_target)
    for name in calls:
        if name in (FRONTIER, FRONTIER_GPU):
            differ(f"attempts and verdicts of {name}", oracle, records[name].columns())
            differ(
                f"outcome of {name}",
                list(asdict(host).values()),
                list(asdict(found[name]).values()),
            )
    if isinstance(hands, BatchedHands):
        chance = np.random.default_rng(sizes.seed)
        picked = chance.integers([sizes.roots, sizes.candidates], size=(CHECKED, 2)).tolist()
        count, first = compare_with_oracle(hands, sizes.seed, [(r, c) for r, c in picked])
        comparison.compared += CHECKED
        comparison.mismatches += count
        comparison.first = comparison.first or first
