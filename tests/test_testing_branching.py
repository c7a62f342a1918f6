"""`check_branching_env` on environments that are wrong in fork, prune, compact and branch_step."""

import numpy as np
import pytest
from test_testing import Wrong, expect_failure

from branchrt_gym import FREE, testing


class HighFork(Wrong):
    def fork(self, parents, counts=1, rng="split"):
        slots = super().fork(parents, counts, rng)
        for low, high in zip(slots, range(self.num_envs - 1, 0, -1), strict=False):
            if self.frontier.status[high] == FREE:
                for column in [self.frontier.status, *self.frontier.columns]:
                    column[high] = column[low]
                self.frontier.status[low] = FREE
        return slots


class OldIds(Wrong):
    def fork(self, parents, counts=1, rng="split"):
        self.frontier.next_id -= 1
        return super().fork(parents, counts, rng)


class NoParents(Wrong):
    def fork(self, parents, counts=1, rng="split"):
        slots = super().fork(parents, counts, rng)
        self.frontier.parent_id[slots] = self.frontier.branch_id[slots] - 1
        return slots


class YoungChildren(Wrong):
    def fork(self, parents, counts=1, rng="split"):
        slots = super().fork(parents, counts, rng)
        self.frontier.depth[slots] = 0
        return slots


class ChildInParent(Wrong):
    """A fork writes into the parent's row."""

    def fork(self, parents, counts=1, rng="split"):
        slots = super().fork(parents, counts, rng)
        self.frontier.state["score"][parents] = 0
        return slots


class NewLuckForParent(Wrong):
    def fork(self, parents, counts=1, rng="split"):
        slots = super().fork(parents, counts, rng)
        self.frontier.key[parents] += 1
        return slots


class PruneShifts(Wrong):
    """A prune disturbs the slot after."""

    def prune(self, which):
        super().prune(which)
        if np.asarray(which).dtype != bool:
            self.frontier.key[(np.max(which) + 1) % self.num_envs] += 1


class PruneByMaskOnly(Wrong):
    def prune(self, which):
        super().prune(which if np.asarray(which).dtype == bool else [])


class PruneForgetsRoots(Wrong):
    def prune(self, which):
        self.frontier.prune(which)


class CompactBackwards(Wrong):
    def compact(self):
        return super().compact()[::-1].copy()


class CompactRenames(Wrong):
    def compact(self):
        source = super().compact()
        self.frontier.branch_id += 1
        return source


class CompactLeavesLuck(Wrong):
    def compact(self):
        key = self.frontier.key.clone()
        source = super().compact()
        self.frontier.key.copy_(key)
        return source


class ExpandsBackwards(Wrong):
    def branch_step(self, *args, **kwargs):
        frontier, rewards, done = super().branch_step(*args, **kwargs)
        return frontier, rewards.flip(0), done


class KeepsParents(Wrong):
    def branch_step(self, *args, **kwargs):
        frontier, rewards, done = super().branch_step(*args, **kwargs)
        frontier.depth.sub_(1)
        return frontier, rewards, done


WRONG = [
    (HighFork, "fork_places", r"fork 1, of slots \[1, 0\] .*slot \d"),
    (OldIds, "fork_places", r"slot 2 has id 1, no new one"),
    (NoParents, "fork_places", r"slot \d has parent id \d, against \d, the branch in slot"),
    (YoungChildren, "fork_places", r"child of slot \d: depth is 0, against 1 of its parent"),
    (ChildInParent, "parent_undisturbed", r"slot 0's observation is .* without the fork"),
    (NewLuckForParent, "parent_undisturbed", r"slot 0 forked .* against no fork: in step \d"),
    (PruneShifts, "prune_isolates", r"slots \[3, 6\] pruned, or not: in step \d, slot 7"),
    (PruneByMaskOnly, "prune_isolates", r"slot 3's live is True, against False when pruned by a"),
    (PruneForgetsRoots, "prune_restarts", r"NEXT_STEP, slots 1 to 3, .*pruned: roots are"),
    (CompactBackwards, "compaction", r"slot 0's source is -1, against 0"),
    (CompactRenames, "compaction", r"slot 0's branch_id is 1, against 0 before the move"),
    (CompactLeavesLuck, "compaction", r"compacted or not: in step \d, slot \d and slot \d"),
    (ExpandsBackwards, "expansion", r"slot \d, action \d in slot \d, earned \d+; child \d has"),
    (KeepsParents, "expansion", r"slot \d has branch id .* and depth 0; the parents' ids are"),
]


@pytest.mark.parametrize(("wrong", "check", "text"), WRONG)
def test_a_wrong_environment_fails_the_check_of_its_rule(wrong, check, text, monkeypatch):
    expect_failure(wrong, check, text, monkeypatch)


def test_every_check_of_branching_has_a_wrong_environment():
    checks = {check.__name__ for check in testing.branching.CHECKS}
    assert {check for _, check, _ in WRONG} == checks
