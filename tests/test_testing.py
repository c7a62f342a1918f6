"""`check_branching_env`: right environments pass; `test_testing_*.py` hold the wrong ones."""

import re

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from test_contract import Maze

from branchrt_gym import (
    BranchEnv,
    BranchingVectorEnv,
    Contract,
    Transition,
    branch,
    registrations,
    testing,
)
from branchrt_gym.kernels import bounded, fold
from branchrt_gym.testing import check_branching_env

SMALL = {
    "branchrt/DeepTree-v0": {"width": 97, "depth": 5, "fanout": 3},
    "branchrt/SharedCounter-v0": {"width": 97},
    "branchrt/Blackjack-v0": {},
    "branchrt/Edit-v0": {"width": 97, "spans": 3, "span": 20, "window": 30},
}
SHAPES = [
    {"num_envs": 1, "autoreset_mode": "NextStep", "output": "torch"},
    {"num_envs": 5, "autoreset_mode": "SameStep"},
    {"num_envs": 37, "num_roots": 3, "autoreset_mode": AutoresetMode.DISABLED},
    {"num_envs": 6, "num_roots": 2, "num_contexts": 1, "output": "torch", "copy": False},
]
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


def test_every_registered_environment_is_checked():
    assert set(SMALL) <= set(registrations())
    assert {name for name in registrations() if name.startswith("branchrt/")} == set(SMALL)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape['num_envs']}-slots")
@pytest.mark.parametrize("name", SMALL)
def test_registered_environments_keep_the_contract(name, shape, device):
    envs = gymnasium.make_vec(name, device=device, **SMALL[name], **shape)
    check_branching_env(envs, chance=name == "branchrt/Blackjack-v0")


class Dice(BranchEnv):
    """Chance in every step; ends by chance; may be cut at depth 9.

    `plant` names what is wrong with it.
    """

    reward_dtype = torch.int32

    def __init__(self, plant=""):
        self.plant = plant
        self.contract = Contract(
            {"score": branch((), torch.int32), "luck": branch((), torch.int64)}
        )
        self.single_observation_space = spaces.Box(1, 200, (2,), np.int64)
        self.single_action_space = spaces.Discrete(3)

    def initial_shared(self, keys):
        return {}

    def initial(self, shared, context_index, keys):
        score = bounded(fold(keys, 0), 9).to(torch.int32)
        return {"score": score, "luck": keys.clone()}

    def transition(self, shared, branches, action):
        state, count = branches.state, branches.depth.shape[0]
        key = state["luck"] if self.plant == "own luck" else branches.key
        draw = bounded(fold(fold(key, branches.depth.to(torch.int64)), 0), 6)
        if self.plant == "no chance":
            draw = torch.ones_like(draw)
        if self.plant == "no seed":
            draw = torch.randint(0, 6, (count,))
        if self.plant == "size":
            draw = draw + (count == 11)
        if self.plant == "slot":
            draw = draw + torch.arange(count) % 2
        reward = (draw + action).to(torch.int32)
        score = (state["score"] + reward) % 100
        end = (draw == 5) & (branches.depth > 0)
        state = {"score": score, "luck": state["luck"]}
        return Transition(state, reward, end, branches.depth >= 8, end & (score > 20))

    def observation(self, shared, branches):
        low = -50 if self.plant == "outside" else 1
        score = branches.state["score"].to(torch.int64)
        return torch.stack([score + low, branches.depth.to(torch.int64) + 1], 1)


class Drift(BranchEnv):
    """Float state, Box actions of two numbers, no chance in a transition, no natural end."""

    uses_key = False

    def __init__(self):
        self.contract = Contract({"place": branch((2,), torch.float32)})
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float32)

    def initial_shared(self, keys):
        return {}

    def initial(self, shared, context_index, keys):
        draw = torch.stack([bounded(fold(keys, word), 1000) for word in (0, 1)], dim=1)
        return {"place": draw.to(torch.float32) / 7}

    def transition(self, shared, branches, action):
        place = (branches.state["place"] * 1.01 + action).sin()
        never = torch.zeros_like(branches.depth, dtype=torch.bool)
        return Transition({"place": place}, place.sum(1), never, never, never)

    def observation(self, shared, branches):
        return branches.state["place"]


@pytest.mark.parametrize(
    ("rules", "chance", "mode"),
    [(Maze, True, "NextStep"), (Dice, True, "SameStep"), (Drift, False, "Disabled")],
)
def test_other_rules_keep_the_contract(rules, chance, mode):
    envs = BranchingVectorEnv(rules(), 7, num_roots=3, autoreset_mode=mode)
    check_branching_env(envs, chance=chance)


def test_the_environment_itself_is_only_looked_at():
    envs = BranchingVectorEnv(Dice(), 4, num_roots=2, max_episode_steps=3)
    envs.reset(seed=5)
    envs.step([0] * 4)
    envs.action_space.seed(3)
    state = envs.action_space.np_random.bit_generator.state
    before = {name: tensor.clone() for name, tensor in envs.snapshot().tensors.items()}
    check_branching_env(envs)
    after = envs.snapshot().tensors
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert envs.action_space.np_random.bit_generator.state == state


def test_a_constructor_that_hides_its_arguments_needs_make():
    class Hidden(BranchingVectorEnv):
        def __init__(self, sides, **more):
            super().__init__(Dice(), **more)

    envs = Hidden(6, num_envs=4)
    with pytest.raises(TypeError, match=r"`make` is None, and Hidden .*'sides'.*Pass make="):
        check_branching_env(envs)
    check_branching_env(envs, lambda **changes: Hidden(6, **({"num_envs": 4} | changes)))


def test_an_error_of_the_rules_is_a_failure_with_its_text():
    def bad(step):
        return step._replace(reward=step.reward.double())

    envs = BranchingVectorEnv(Maze(transition=bad), 4, num_roots=2)
    with pytest.raises(AssertionError, match=r"`observations`: .*ContractError: .*`reward`"):
        check_branching_env(envs)


class Wrong(BranchingVectorEnv):
    """Right, but with a hook on what a step returns; to be made wrong."""

    def step(self, actions):
        result = list(super().step(actions))
        self.after(result)
        return tuple(result)

    def after(self, result):
        """Spoils what a step returns."""

    def relive(self, info):
        info["live"] = self._give(self.frontier.live)


class Renames(Wrong):
    def compact(self):
        source = super().compact()
        self.frontier.branch_id += 1
        return source


def wrong_env(wrong, **more):
    """A population of Dice: of a wrong class, or of rules with a planted fault."""
    kind, plant = (Wrong, wrong) if isinstance(wrong, str) else (wrong, "")
    return kind(Dice(plant), 6, num_roots=2, **more)


def expect_failure(wrong, check, text, monkeypatch):
    """Runs one check by name; its failure must state its rule, and what was seen."""
    one = [each for each in testing.CHECKS if each.__name__ == check]
    monkeypatch.setattr(testing, "CHECKS", one)
    rule = " ".join(one[0].__doc__.split())
    with pytest.raises(AssertionError, match=rf"^`{check}`: {re.escape(rule)} Seen: .*{text}"):
        check_branching_env(wrong_env(wrong), chance=True)


def test_a_whole_run_names_the_first_rule_that_is_broken():
    with pytest.raises(AssertionError, match=r"^`compaction`: `compact` moves branches"):
        check_branching_env(wrong_env(Renames))
