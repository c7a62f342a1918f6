"""`check_branching_env` on environments that are wrong in a branch's luck."""

import pytest
from test_testing import Dice, Wrong, expect_failure, wrong_env

from branchrt_gym import testing
from branchrt_gym.kernels import fold
from branchrt_gym.testing import check_branching_env


class AlwaysSplit(Wrong):
    def fork(self, parents, counts=1, rng="split"):
        return super().fork(parents, counts, "split")


class AlwaysShared(Wrong):
    def fork(self, parents, counts=1, rng="split"):
        return super().fork(parents, counts, "shared")


class SeedAndNumber(Wrong):
    def reset(self, *, seed=None, options=None):
        if seed is not None:
            seeds = seed if isinstance(seed, list) else range(seed, seed + self.num_roots)
            seed = [one + 7 * root for root, one in enumerate(seeds)]
        return super().reset(seed=seed, options=options)


class OneLuck(Wrong):
    """Siblings have one luck, apart from their parent's, though their keys differ."""

    def fork(self, parents, counts=1, rng="split"):
        slots = super().fork(parents, counts, rng)
        if rng == "split":
            luck = self.frontier.state["luck"]
            luck[slots] = fold(luck[slots], 7)
        return slots


WRONG = [
    (AlwaysSplit, "fork_shared", r"`frontier.key` of slots 0 … 8 .*against one key"),
    ("slot", "fork_shared", r"slot 1, child of slot 0, differs from it in step 1"),
    (AlwaysShared, "fork_split", r"`frontier.key` of slots 0 … 8 is .*, not all apart"),
    ("no chance", "fork_split", r"`chance` is True, and in 12 families 8 children all agree"),
    ("size", "placement", r"8 slots against 11: in step 1, slot 0, observation is"),
    (SeedAndNumber, "roots_by_seed", "these reversed: slot 0's first observation is"),
]


@pytest.mark.parametrize(("wrong", "check", "text"), WRONG)
def test_a_wrong_environment_fails_the_check_of_its_rule(wrong, check, text, monkeypatch):
    expect_failure(wrong, check, text, monkeypatch)


def test_every_check_of_futures_has_a_wrong_environment():
    checks = {check.__name__ for check in testing.futures.CHECKS}
    assert {check for _, check, _ in WRONG} == checks


def test_split_forks_that_agree_but_not_with_their_parent():
    envs = OneLuck(Dice("own luck"), 6, num_roots=2)
    with pytest.raises(AssertionError, match=r"^`fork_split`.* agree with each other, not their"):
        check_branching_env(envs)


def test_a_claim_of_no_chance_is_tried():
    with pytest.raises(AssertionError, match=r"^`fork_split`: .*`chance` is False, and in 12 of"):
        check_branching_env(wrong_env(""), chance=False)


def test_rules_without_chance_pass_when_nothing_is_claimed():
    check_branching_env(wrong_env("no chance"))
