"""`check_branching_env` on environments that are wrong in whole episodes."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from test_testing import Wrong, expect_failure

from branchrt_gym import DONE, FREE, testing

NEXT, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED


class StaleAtRestart(Wrong):
    """Shows the last observation once more where the first of the next episode is due."""

    def step(self, actions):
        waits = (self.frontier.status == DONE).numpy() & (self.autoreset_mode == NEXT)
        last = self.observe()
        result = super().step(actions)
        result[0][waits] = last[waits]
        return result


class FirstAsFinal(Wrong):
    """`final_obs` is the next episode's first observation."""

    def after(self, result):
        if "final_obs" in result[4]:
            for slot in np.flatnonzero(result[4]["_final_obs"]):
                result[4]["final_obs"][slot] = result[0][slot]


class LongerLimit(Wrong):
    def step(self, actions):
        self.max_episode_steps += 1
        result = super().step(actions)
        self.max_episode_steps -= 1
        return result


class HighestSlot(Wrong):
    """A root waits in the highest of the slots that ended last."""

    def after(self, result):
        status, root = self.frontier.status, self.frontier.root
        for slot in (status == DONE).nonzero().flatten().tolist():
            ended = torch.from_numpy(result[2] | result[3]) & (root == root[slot])
            if self.autoreset_mode != DISABLED and ended.any():
                status[slot] = FREE
                status[ended.nonzero().max()] = DONE


class KeepsEndedBranches(Wrong):
    def after(self, result):
        ended = torch.from_numpy(result[2] | result[3])
        if self.autoreset_mode == NEXT and self.num_roots < self.num_envs:
            self.frontier.release(ended, DONE)


WRONG = [
    (StaleAtRestart, "modes_agree", r"episode 1, after 0 steps of it: in NEXT_STEP .*SAME_STEP"),
    (FirstAsFinal, "modes_agree", r"episode 0, after \d steps of it: in NEXT_STEP .*observation"),
    (LongerLimit, "time_limit", r"slot \d has truncated False in step 6, at the limit 6"),
    (HighestSlot, "roots_restart", r"step \d, root \d has slots \[\d\], against \[\d\]"),
    (KeepsEndedBranches, "roots_restart", r"NEXT_STEP, step \d, root \d has slots"),
]


@pytest.mark.parametrize(("wrong", "check", "text"), WRONG)
def test_a_wrong_environment_fails_the_check_of_its_rule(wrong, check, text, monkeypatch):
    expect_failure(wrong, check, text, monkeypatch)


def test_every_check_of_episodes_has_a_wrong_environment():
    checks = {check.__name__ for check in testing.episodes.CHECKS}
    assert {check for _, check, _ in WRONG} == checks
