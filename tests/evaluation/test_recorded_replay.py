"""Replays of real outcomes against an independent replay and figures on record."""

import re
from functools import cache

import numpy as np
import pytest
from plain_replay import (
    CHOICES,
    DATA,
    PLAIN_ORDERS,
    needs_data,
    plain_choice,
    plain_replay,
)

from branchrt_gym.evaluation import orderings
from branchrt_gym.evaluation.bandit import Bandit
from branchrt_gym.evaluation.eval_frontier import EvalFrontier
from branchrt_gym.evaluation.replay import Replay, replay
from branchrt_gym.wrappers.swebench import SweBenchReplay

IN_FILE = {
    "current_chronological": "chronological",
    "low_empty_first": "low_empty(proxy)",
    "low_cost_first": "low_cost",
    "oracle_best": "ORACLE best_first",
}


@cache
def load(choice: str) -> SweBenchReplay:
    return SweBenchReplay.load(DATA, [choice])


def run(source: SweBenchReplay, name: str, target: float = 0.8) -> Replay:
    ordering = (
        orderings.oracle_best(source.resolved)
        if name == "oracle_best"
        else getattr(orderings, name)
    )
    return replay(source.table, source, ordering, target)


@needs_data
@pytest.mark.parametrize("name", PLAIN_ORDERS)
@pytest.mark.parametrize("choice", CHOICES)
def test_a_replay_equals_the_plain_one_and_the_figures_on_record(choice: str, name: str) -> None:
    found = run(load(choice), name)
    sequence = PLAIN_ORDERS[name](plain_choice(choice))
    assert found.order == tuple(each.name for each in sequence)
    attempts, full, dollars, full_dollars, solved = plain_replay(sequence, 0.8)
    assert (found.attempts, found.attempts_full_rounds, found.solved) == (attempts, full, solved)
    assert (found.cost, found.cost_full_rounds) == pytest.approx((dollars, full_dollars))
    assert found.budget_share == attempts / (500 * len(sequence))
    text = (DATA / "natural_choices.txt").read_text()
    part = re.split(r"^## ", text, flags=re.MULTILINE)
    (section,) = [each for each in part if each.startswith(CHOICES[choice] + ":")]
    (line,) = [each for each in section.splitlines() if each.strip().startswith(IN_FILE[name])]
    figures = re.search(r"full +(\d+) .*\$(\d+) \| mid +(\d+)", line)
    assert figures is not None
    recorded = tuple(map(int, figures.groups()))
    assert (found.attempts_full_rounds, round(full_dollars), found.attempts) == recorded


@needs_data
@pytest.mark.parametrize("choice", CHOICES)
def test_64000_roots_are_128_copies(choice: str) -> None:
    source = load(choice).repeated(64_000)
    assert source.tasks[499:502:2] == (source.instances[499], f"{source.instances[1]}#1")
    for name in ("low_empty_first", "low_cost_first"):
        found = run(source, name)
        plain = plain_replay(PLAIN_ORDERS[name](plain_choice(choice)), 0.8, copies=128)
        assert (found.attempts, found.attempts_full_rounds) == plain[:2]
        assert found.cost == pytest.approx(plain[2])


@needs_data
def test_a_target_out_of_reach_pays_for_everything_open() -> None:
    found = run(load("latest:7"), "low_cost_first", 0.9)
    plain = plain_replay(PLAIN_ORDERS["low_cost_first"](plain_choice("latest:7")), 0.9)
    assert not found.reached
    assert (found.attempts, found.solved) == (plain[0], plain[4])
    assert found.solved == 429 < found.target


@needs_data
@pytest.mark.parametrize("choice", CHOICES)
def test_the_bandit_equals_a_plain_loop(choice: str) -> None:
    source = load(choice)
    found = replay(source.table, source, Bandit(3), 0.8)
    bandit = Bandit(3)
    order = bandit.order(source.table).tolist()
    resolved, cost = source.resolved.tolist(), source.table.cost.tolist()
    tried: list[list[int]] = [[] for _ in order]
    solved: set[int] = set()
    attempts, dollars, counts = 0, 0.0, np.zeros(len(source.table.names), int)
    while len(solved) < 400:
        ready = sorted((len(tried[r]), r) for r in range(500) if r not in solved)
        wave = [r for turn, r in ready if turn == ready[0][0]][: bandit.wave]
        # A wave goes on in the next round where there is room, once for each root.
        wave += [r for turn, r in ready if turn > ready[0][0]][: bandit.wave - len(wave)]
        chosen = [next(c for c in order[r] if c not in tried[r]) for r in wave]
        for r, c in zip(wave, chosen, strict=True):
            tried[r].append(c)
            if len(solved) < 400:
                attempts, dollars = attempts + 1, dollars + cost[r][c]
                counts[c] += 1
                if resolved[r][c]:
                    solved.add(r)
        roots, candidates = np.array(wave), np.array(chosen)
        new = bandit.update(roots, candidates, source.verify(roots, candidates))
        order = order if new is None else new.tolist()
    assert (found.attempts, found.solved) == (attempts, 400)
    assert found.cost == pytest.approx(dollars)
    assert found.attempts_by_candidate.tolist() == counts.tolist()


@needs_data
@pytest.mark.parametrize("ordering", [orderings.low_cost_first, Bandit(1)])
def test_an_evaluation_decides_the_same(ordering: orderings.Ordering) -> None:
    source = load("best:7:345")
    frontier = EvalFrontier(
        source.tasks,
        source.table.names,
        source,
        ordering=ordering,
        table=source.table,
        target=0.8,
        content=source.content,
    )
    result = frontier.run()
    found = replay(source.table, source, ordering, 0.8)
    assert result.attempts_to_target == found.attempts
    assert result.attempts_full_rounds == found.attempts_full_rounds
    assert int(result.solved.sum()) >= 400 == found.solved


@needs_data
@pytest.mark.parametrize("choice", ["best:7:345", "all"])
def test_the_bandit_is_within_a_tenth_of_both(choice: str) -> None:
    source = load(choice)
    found = [replay(source.table, source, Bandit(seed), 0.8) for seed in range(20)]
    assert all(each.reached and not each.needs_labels for each in found)
    attempts, dollars = (
        sum(getattr(each, name) for each in found) / len(found) for name in ("attempts", "cost")
    )
    assert attempts <= 1.1 * run(source, "low_empty_first").attempts
    assert dollars <= 1.1 * run(source, "low_cost_first").cost


@needs_data
@pytest.mark.parametrize("choice", CHOICES)
def test_no_ordering_beats_the_bound(choice: str) -> None:
    source = load(choice)
    bound = replay(source.table, source, orderings.oracle_each_root(source.resolved), 0.8)
    solvable = np.flatnonzero(source.resolved.any(1))
    assert bound.attempts == solvable[399] + 1  # the first round, up to the 400th that can be
    others = [run(source, name) for name in PLAIN_ORDERS]
    others += [replay(source.table, source, Bandit(seed), 0.8) for seed in range(3)]
    assert all(bound.attempts < each.attempts for each in others)
