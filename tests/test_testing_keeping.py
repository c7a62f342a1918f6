"""`check_branching_env` on environments that are wrong in errors and trajectories."""

import numpy as np
import pytest
from test_testing import Wrong, expect_failure

from branchrt_gym import testing


class CountsFailedForks(Wrong):
    def fork(self, parents, counts=1, rng="split"):
        try:
            return super().fork(parents, counts, rng)
        except ValueError:
            self.frontier.forks += 1
            raise


class ClampsActions(Wrong):
    def step(self, actions):
        return super().step(np.clip(actions, 0, 2))


class RaisesOtherErrors(Wrong):
    def prune(self, which):
        try:
            super().prune(which)
        except ValueError as error:
            raise RuntimeError("no such slot") from error


class ShortPaths(Wrong):
    """Trajectories without their first step."""

    def trajectories(self, branch_ids):
        paths = super().trajectories(branch_ids)
        shift = {"length": (paths.length - 1).clamp(min=0)}
        shift |= {name: getattr(paths, name)[:, 1:] for name in ("action", "reward", "mask")}
        return type(paths)(**{**vars(paths), **shift})


class LatePaths(Wrong):
    """Rewards stand one step too late."""

    def trajectories(self, branch_ids):
        paths = super().trajectories(branch_ids)
        return type(paths)(**{**vars(paths), "reward": paths.reward.roll(1, dims=1)})


class OtherActions(Wrong):
    def trajectories(self, branch_ids):
        paths = super().trajectories(branch_ids)
        return type(paths)(**{**vars(paths), "action": paths.action + 1})


class PrunedIsTerminated(Wrong):
    def trajectories(self, branch_ids):
        paths = super().trajectories(branch_ids)
        return type(paths)(**{**vars(paths), "terminated": paths.terminated | paths.pruned})


WRONG = [
    (CountsFailedForks, "errors_change_nothing", r"a fork of slot 3, .*column.forks.* before"),
    (ClampsActions, "errors_change_nothing", r"action 3 in slot 4, .* raised nothing"),
    (RaisesOtherErrors, "errors_change_nothing", "a prune of slot 3.* raised RuntimeError"),
    (ShortPaths, "trajectories", r"branch 0 of root 0, of 1 steps: length 0, mask"),
    (LatePaths, "trajectories", r"step 1 of 2: reward is .* as earned"),
    (OtherActions, "trajectories", r"step 1 of 1: action is \d, against \d as taken"),
    (PrunedIsTerminated, "trajectories", r"pruned\) \(True, True, True\), not \(False, True"),
]


@pytest.mark.parametrize(("wrong", "check", "text"), WRONG)
def test_a_wrong_environment_fails_the_check_of_its_rule(wrong, check, text, monkeypatch):
    expect_failure(wrong, check, text, monkeypatch)


def test_every_check_of_keeping_has_a_wrong_environment():
    checks = {check.__name__ for check in testing.keeping.CHECKS}
    assert {check for _, check, _ in WRONG} == checks
