"""A verifier that does as it is told, and the oracle of what a journal says."""

from itertools import groupby

import numpy as np

from branchrt_gym.evaluation.attempts import Verdict
from branchrt_gym.evaluation.host_controller import HostController


class Scripted:
    """Answers in a random order, after random failures; deterministic for equal calls."""

    version = "1"

    def __init__(self, passes, seed=0, capacity=4, failures=0.0, paid=None, late=True):
        self.passes, self.capacity, self.failures = passes, capacity, failures
        self.paid = np.zeros(passes.shape) if paid is None else paid
        self.chance = np.random.default_rng(seed)
        self.late = late  # whether what was cancelled is reported all the same
        self.held, self.evaluated, self.most = [], [], 0

    def submit(self, attempts):
        self.held += attempts
        self.most = max(self.most, len(self.held))
        assert len(self.held) <= self.capacity
        assert len({attempt[:2] for attempt in self.held}) == len(self.held)

    def poll(self, timeout):
        count = int(self.chance.integers(1, len(self.held) + 1)) if self.held else 0
        chosen = [self.held[i] for i in self.chance.permutation(len(self.held))[:count]]
        for attempt in chosen:
            self.held.remove(attempt)
        return [(attempt, self.verdict(attempt)) for attempt in chosen]

    def verdict(self, attempt):
        pair = attempt[:2]
        self.evaluated.append(pair)
        if self.chance.random() < self.failures:
            return Verdict(False, infrastructure="lost")
        return Verdict(bool(self.passes[pair]), 0.5, float(self.paid[pair]), 0.25)

    def cancel(self, attempts):
        if not self.late:
            self.held = [each for each in self.held if each not in attempts]
        else:
            self.capacity += sum(each in self.held for each in attempts)

    def close(self):
        pass


def oracle_of(events, *shape, learner=None, **rules):
    """The plain loop, fed what a journal says happened asynchronously, in its order."""
    oracle = HostController(*shape, **rules)
    wanted = groupby(events, lambda each: (each.verdict is None, each.again, each.wave))
    for (issue, again, _), group in wanted:
        group = list(group)
        pairs = [event.attempt[:2] for event in group]
        if issue and not again:
            found = oracle.wave(len(pairs))
            assert list(zip(*found, strict=True)) == pairs
        elif not issue:
            for (root, candidate), event in zip(pairs, group, strict=True):
                passed, _, cost, seconds, cause = event.verdict
                lost = {0} if cause is not None else set()
                oracle.commit([root], [candidate], [passed], [cost], [seconds], lost)
    return oracle


def round_by_round(passes, order, target):
    """Attempts up to the target, and the solved roots, by the rule as it is written down."""
    solved, attempts = set(), 0
    for candidate in order:
        for root in range(len(passes)):
            if root not in solved:
                attempts += 1
                if passes[root, candidate]:
                    solved.add(root)
                    if len(solved) == target:
                        return attempts, solved
    return attempts, solved
