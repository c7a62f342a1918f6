"""`check_branching_env` on environments that are wrong in resets and autoreset modes."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from test_testing import Wrong, expect_failure

from branchrt_gym import DONE, FREE, testing
from branchrt_gym.autoreset import restart

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


class OneRootMore(Wrong):
    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if not options and self.num_envs > self.num_roots:
            self.fork([0])
            self.relive(result[1])
        return result


class Early(Wrong):
    """NEXT_STEP, but roots restart in the step that ends them."""

    def after(self, result):
        done = self.frontier.status == DONE
        if self.autoreset_mode == NEXT and done.any():
            restart(self.frontier, self.env, done, self.num_contexts)
            self.relive(result[4])


class Late(Wrong):
    """Not before the second step after it."""

    def step(self, actions):
        self.held = getattr(self, "held", torch.zeros_like(self.frontier.live))
        wait = (self.frontier.status == DONE) & ~self.held & (self.autoreset_mode == NEXT)
        self.frontier.release(wait, FREE)
        result = super().step(actions)
        self.frontier.release(wait, DONE)
        self.held = wait
        return result


class RewardAtRestart(Wrong):
    def step(self, actions):
        waits = (self.frontier.status == DONE).numpy() & (self.autoreset_mode == NEXT)
        result = super().step(actions)
        result[1][waits] = 1
        return result


class SameAsNext(Wrong):
    """SAME_STEP, but roots restart in the next step."""

    def step(self, actions):
        mode, self.autoreset_mode = self.autoreset_mode, NEXT
        result = super().step(actions)
        self.autoreset_mode = mode
        return result if mode == SAME else super().step(actions)


class NoFinal(Wrong):
    def after(self, result):
        for name in ("final_obs", "_final_obs", "final_info", "_final_info"):
            result[4].pop(name, None)


class DisabledFrees(Wrong):
    def after(self, result):
        if self.autoreset_mode == DISABLED:
            self.frontier.release(self.frontier.status == DONE, FREE)


class DisabledForgets(Wrong):
    def after(self, result):
        if self.autoreset_mode == DISABLED:
            self.frontier.state["score"][self.frontier.status == DONE] = 0


class MaskTouchesOthers(Wrong):
    """As a functional vector env that starts a masked reset from an older state."""

    def reset(self, *, seed=None, options=None):
        if options:
            others = ~torch.from_numpy(options["reset_mask"])
            self.frontier.state["score"][others] = 3
        return super().reset(seed=seed, options=options)


class MaskTouchesLater(Wrong):
    """Only the keys of the others change, so that it shows in a later step."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if options:
            self.frontier.key[~torch.from_numpy(options["reset_mask"])] += 1
        return result


class MaskRepeats(Wrong):
    """A masked reset starts the same episode again."""

    def reset(self, *, seed=None, options=None):
        if options:
            self.frontier.episode -= 1
        result = super().reset(seed=seed, options=options)
        if options:
            self.frontier.episode += 1
        return result


class PopsOptions(Wrong):
    def reset(self, *, seed=None, options=None):
        mask = options.pop("reset_mask", None) if options else None
        return super().reset(seed=seed, options=None if mask is None else {"reset_mask": mask})


class ClearsMask(Wrong):
    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if options:
            options["reset_mask"][:] = False
            options["reset_mask"][0] = True
        return result


class WritesActions(Wrong):
    def step(self, actions):
        result = super().step(actions)
        actions[:] = 0
        return result


class PaysTheDead(Wrong):
    def after(self, result):
        result[1][(self.frontier.status == FREE).numpy()] += 1


class ShowsTheDead(Wrong):
    def after(self, result):
        shown = self.env.observation(self.frontier.shared, self.frontier.branches()).numpy()
        free = (self.frontier.status == FREE).numpy() & ~(result[2] | result[3])
        result[0][free] = shown[free]


class ReadsAllActions(Wrong):
    def step(self, actions):
        if np.max(actions) > 2:
            raise ValueError("an action is outside the space")
        return super().step(actions)


class MovesTheDead(Wrong):
    def after(self, result):
        self.frontier.depth[self.frontier.status == DONE] += self.autoreset_mode == DISABLED


WRONG = [
    (OneRootMore, "reset_layout", "slot 2's live is True, against False"),
    (Early, "next_step", r"step \d, slot \d: ended is True, and live after it True"),
    (Late, "next_step", r"ended in the last step: live is False"),
    (RewardAtRestart, "next_step", r"ended in the last step: reward is 1"),
    (SameAsNext, "same_step", r"step \d: slot \d's info\['live'\] is False"),
    (NoFinal, "same_step", r"info\['_final_obs'\] is False, against True of the slots that"),
    (DisabledFrees, "disabled", r"without a reset: slot \d's roots is -1, against"),
    (DisabledForgets, "disabled", r"`observe` is .* its last observation"),
    (MaskTouchesOthers, "masked_reset", r"rows \[1, 3\] masked: slot \d's observation .*without"),
    (MaskTouchesLater, "masked_reset", r"in step \d after it slot [024]'s .* without the reset"),
    (MaskRepeats, "masked_reset", r"slot [13]'s observation is .* by `reset\(\)`"),
    (PopsOptions, "arguments_unchanged", r"`options` holds \[\] after `reset`"),
    (ClearsMask, "arguments_unchanged", "slot 2's reset_mask is False, against True before"),
    (WritesActions, "arguments_unchanged", r"after `step`: slot \d's action is 0, against"),
    (PaysTheDead, "not_live", r"slot \d, not live, has reward 1.0"),
    (ShowsTheDead, "not_live", r"slot \d, not live: observation is .*, against \[1 1\]"),
    (ReadsAllActions, "not_live", "ValueError: an action is outside the space"),
    (MovesTheDead, "not_live", r"slot \d's depth is .*before the step, though it has ended"),
]


@pytest.mark.parametrize(("wrong", "check", "text"), WRONG)
def test_a_wrong_environment_fails_the_check_of_its_rule(wrong, check, text, monkeypatch):
    expect_failure(wrong, check, text, monkeypatch)


def test_every_check_of_resets_has_a_wrong_environment():
    checks = {check.__name__ for check in testing.resets.CHECKS}
    assert {check for _, check, _ in WRONG} == checks
