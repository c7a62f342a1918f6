"""Deliberate mistakes, one for each rule, planted into the real code for certification to catch.

Each changes as little as a real slip would.
"""

from dataclasses import replace
from importlib import import_module

import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from branchrt_gym import BranchingVectorEnv, DeepTree, Frontier, policies, search_eager, vector_env
from branchrt_gym.lineage import NO_ENTRY, Lineage

# The package's attribute of that name is the function.
expansion = import_module("branchrt_gym.branch_step")
frontiers = import_module("branchrt_gym.frontier")

FAULTS = {}


def fault(plant):
    FAULTS[plant.__name__] = plant
    return plant


def wrap(patch, owner, name, wrapper):
    """Replaces `owner.name` by `wrapper(the real one, *arguments)`."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: wrapper(real, *args, **kwargs))


@fault
def children_reversed(patch):
    """`branch_step` gives the children of each parent from the last action to the first."""

    def reverse(real, frontier, env, *rest):
        made = real(frontier, env, *rest)
        count = expansion.num_actions(env)

        def turned(values):
            return values.view(-1, count, *values.shape[1:]).flip(1).view(values.shape)

        columns = ("key", "action", "reward", "terminated", "truncated", "solved")
        return replace(
            made,
            **{name: turned(getattr(made, name)) for name in columns},
            state={name: turned(values) for name, values in made.state.items()},
        )

    wrap(patch, expansion, "_expand", reverse)


@fault
def search_children_reversed(patch):
    """`search` takes the actions of each parent from the last to the first."""

    class Reversed(search_eager._Level):
        def __init__(self, *args):
            super().__init__(*args)
            self.action = self.action.view(-1, self.fanout).flip(1).flatten()

    patch.setattr(search_eager, "_Level", Reversed)


@fault
def last_of_equals_selected(patch):
    """Among equal scores the last candidate wins."""

    def last(real, score, k, valid=None):
        turned = None if valid is None else valid.flip(1)
        index, count = real(score.flip(1), k, turned)
        return torch.where(index < 0, index, score.shape[1] - 1 - index), count

    wrap(patch, search_eager, "top_k_per_root", last)
    wrap(patch, policies, "top_k_per_root", last)


@fault
def compaction_leaves_a_column(patch):
    """Compaction moves every column but one, whose rows stay where they were."""

    def stale(real, frontier, **kwargs):
        before = frontier.state["position"].clone()
        source = real(frontier, **kwargs)
        frontier.state["position"].copy_(before)
        return source

    wrap(patch, Frontier, "compact", stale)


@fault
def step_touches_neighbours(patch):
    """A transition is committed for the slot after each live one too."""

    def wide(real, frontier, mask, action, step, flags):
        real(frontier, mask, action, step, flags)
        frontier.depth += mask.roll(1) & ~mask

    wrap(patch, Frontier, "advance", wide)


@fault
def masked_reset_touches_neighbours(patch):
    """A masked reset puts the slot after each restarted one back to the start too."""

    def wide(real, frontier, *args):
        begun = real(frontier, *args)
        frontier.depth.masked_fill_(begun.roll(1), 0)
        return begun

    wrap(patch, vector_env, "begin_masked", wide)


def wrap_keys(patch, wrapper):
    for module in (frontiers, expansion, search_eager, import_module("branchrt_gym.search_result")):
        wrap(patch, module, "fork_key", wrapper)


@fault
def shared_luck(patch):
    """Children have their parent's future where futures of their own were asked for."""
    wrap_keys(patch, lambda real, key, forks, child, rng: real(key, forks, child, "shared"))


@fault
def key_of_the_next_child(patch):
    """The keys of children are counted from 1."""
    wrap_keys(patch, lambda real, key, forks, child, rng: real(key, forks, child + 1, rng))


@fault
def restart_a_step_early(patch):
    """In NEXT_STEP a root restarts in the step in which it ends."""

    def early(real, envs, actions):
        mode = envs.autoreset_mode
        if mode == AutoresetMode.NEXT_STEP:
            envs.autoreset_mode = AutoresetMode.SAME_STEP
        try:
            return real(envs, actions)
        finally:
            envs.autoreset_mode = mode

    wrap(patch, BranchingVectorEnv, "step", early)


@fault
def restart_a_step_late(patch):
    """Roots restart a step after the one in which they are due."""
    waited = {}

    def late(real, frontier, env, slots, num_contexts):
        due = slots & waited.get(id(frontier), torch.zeros_like(slots))
        waited[id(frontier)] = slots & ~due
        if bool(due.any()):
            real(frontier, env, due, num_contexts)

    wrap(patch, vector_env, "restart", late)


@fault
def lineage_link_off_by_one(patch):
    """An entry of the lineage points to the one before its parent's last."""

    def off(real, lineage, valid, values):
        parent = values["parent_entry"]
        return real(lineage, valid, {**values, "parent_entry": (parent - 1).clamp(min=NO_ENTRY)})

    wrap(patch, Lineage, "append", off)


@fault
def observation_outside_its_space(patch):
    """The space that is declared is narrower than the rules."""

    def narrow(real, rules, *args, **kwargs):
        real(rules, *args, **kwargs)
        whole = rules.single_observation_space
        high = whole.high.copy()
        high[0] = 0.5
        rules.single_observation_space = Box(whole.low, high, dtype=whole.dtype.type)

    wrap(patch, DeepTree, "__init__", narrow)


@fault
def reward_off_in_one_branch(patch):
    """The first of the branches that a transition is given is paid 1 too much, once."""

    def generous(real, rules, shared, branches, action):
        step = real(rules, shared, branches, action)
        reward = step.reward.clone()
        reward[:1] += branches.depth[:1] == 2
        return step._replace(reward=reward)

    wrap(patch, DeepTree, "transition", generous)


@fault
def ids_in_reverse(patch):
    """Branches born together are numbered from the last."""
    wrap(patch, Frontier, "_new_ids", lambda real, *args: real(*args).flip(0))
