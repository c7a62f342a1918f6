"""`check_branching_env` on environments that are wrong in spaces, infos, seeds or copies."""

import gymnasium
import numpy as np
import pytest
import torch
from test_testing import Wrong, expect_failure

from branchrt_gym import testing
from branchrt_gym.testing import check_branching_env


class WrongSpace(Wrong):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.observation_space = self.single_observation_space


class WrongMetadata(Wrong):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.metadata["autoreset_mode"] = "NextStep"


class FloatObservation(Wrong):
    def after(self, result):
        result[0] = result[0].astype(np.float32)


class RestOutside(Wrong):
    def after(self, result):
        result[0][~self.live] = 0


class FloatReward(Wrong):
    def after(self, result):
        result[1] = result[1].astype(np.float32)


class ListFlags(Wrong):
    def after(self, result):
        result[2] = result[2].tolist()


class IntFlags(Wrong):
    def after(self, result):
        result[3] = result[3].astype(int)


class LiveBefore(Wrong):
    def step(self, actions):
        before = self.live
        result = super().step(actions)
        result[4]["live"] = before
        return result


class AllSolved(Wrong):
    def after(self, result):
        result[4]["solved"][:] = True


class NoSolved(Wrong):
    def after(self, result):
        del result[4]["solved"]


class KeepsScore(Wrong):
    """A reset adds to the score that was there."""

    def reset(self, *, seed=None, options=None):
        held = self.frontier.state["score"].clone() if self._ready else 0
        super().reset(seed=seed, options=options)
        self.frontier.state["score"].add_(held % 3)
        return self.observe(), self._info(torch.zeros_like(self.frontier.live), self.frontier.live)


class SeedsBackwards(Wrong):
    def reset(self, *, seed=None, options=None):
        seed = seed[::-1] if isinstance(seed, list) else seed
        return super().reset(seed=seed, options=options)


class RicherTorch(Wrong):
    def after(self, result):
        if self.output == "torch":
            result[1] = result[1] + 1


class RestoresNoKeys(Wrong):
    def restore(self, snapshot):
        key = self.frontier.key.clone()
        shown = super().restore(snapshot)
        self.frontier.key.copy_(key)
        return shown


class PicklesNoDepth(Wrong):
    def __setstate__(self, state):
        self.__dict__.update(state)
        self.frontier.depth.zero_()


WRONG = [
    (WrongSpace, "spaces", "`observation_space` is Box"),
    (WrongMetadata, "metadata", "'NextStep', with `autoreset_mode`"),
    ("outside", "observations", r"slot \d, live, has .*outside Box"),
    (FloatObservation, "observations", r"step 1 is float32 .*against int64"),
    (RestOutside, "observations", r"slot \d, not live, has \[0 0\], outside"),
    (FloatReward, "rewards_and_flags", "the reward is float32 .*against float64"),
    (ListFlags, "rewards_and_flags", "`terminated` is a list, against a ndarray"),
    (IntFlags, "rewards_and_flags", "`truncated` is int64 .*against bool"),
    (LiveBefore, "infos", r"slot \d's info\['live'\] is True, against False"),
    (AllSolved, "infos", r"slot \d is solved, and was not live before"),
    (NoSolved, "infos", r'step 1 has no `info\["solved"\]`'),
    ("no seed", "seeds", r"two fresh environments with seed 1: after \d steps slot"),
    (KeepsScore, "seeds", "reset again with seed 1 against a fresh one: after 0 steps"),
    (SeedsBackwards, "seed_list", r"seeds 1, 2, … against seed 1: after 1 steps slot"),
    (RicherTorch, "outputs", r"after 1 steps slot 0's reward is \d"),
    (RestoresNoKeys, "snapshots", r"after `restore` against the run after `snapshot`"),
    (PicklesNoDepth, "pickling", r"the copy against the original: after 0 steps"),
]


@pytest.mark.parametrize(("wrong", "check", "text"), WRONG)
def test_a_wrong_environment_fails_the_check_of_its_rule(wrong, check, text, monkeypatch):
    expect_failure(wrong, check, text, monkeypatch)


def test_every_check_of_interface_has_a_wrong_environment():
    checks = {check.__name__ for check in testing.interface.CHECKS}
    assert {check for _, check, _ in WRONG} == checks - {"specification"}


@pytest.mark.parametrize("change", [{"width": 98}, {"num_envs": 7}, {"autoreset_mode": "SameStep"}])
def test_a_spec_of_another_environment(change):
    envs = gymnasium.make_vec("branchrt/SharedCounter-v0", num_envs=5, width=97)
    envs.unwrapped.spec.kwargs.update(change)
    with pytest.raises(AssertionError, match=r"^`specification`: .*by `envs.spec`"):
        check_branching_env(envs)
