"""Random forks, steps, prunes and restores; every branch is then made again from scratch.

`BRANCHRT_SOAK=1` runs the whole of it: 10,000 operations over 256 slots of each family.
"""

import gc
import os
import random
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from driving import actions_of, bits, follow, luck, needs
from families import FAMILIES, WHOLE, nothing_left

from branchrt_gym.wrappers import BranchWrapper

RESET = object()


class Branch:
    """An environment and all that was done to it since the seed."""

    def __init__(self, env: Any, done: list[Any]) -> None:
        self.env, self.done = env, done

    def step(self, action: Any) -> None:
        result = self.env.step(action)
        self.done.append(action)
        if result[2] or result[3]:
            self.env.reset()
            self.done.append(RESET)


def from_scratch(make: Callable[[], Any], done: list[Any]) -> Any:
    env = BranchWrapper(make())
    env.reset(seed=11)
    env.action_space.seed(11)
    for action in done:
        env.reset() if action is RESET else env.step(action)
    return env


def operate(
    make: Callable[[], Any],
    operations: int,
    slots: int,
    seed: int = 0,
    half: Callable[[], None] = lambda: None,
) -> tuple[list[Branch], Any]:
    """Returns what lives after so many random operations; and forks, prunes, restores counted."""
    root = from_scratch(make, [])
    actions, counts = actions_of(root, 64), {"fork": 0, "prune": 0, "restore": 0}
    for number in range(operations):
        if number in (0, operations // 2):  # the second time there is room for everything already
            draw, snapshots = random.Random(seed), []
            live = [Branch(root.fork(1, rng="shared")[0], [])]
        if number == operations // 2:
            half()
        branch = draw.choice(live)
        kind = draw.random()
        if kind < 0.3 and len(live) < slots:
            children = branch.env.fork(min(draw.randint(1, 3), slots - len(live)), rng="shared")
            live.extend(Branch(child, branch.done.copy()) for child in children)
            counts["fork"] += len(children)
        elif kind < 0.4 and len(live) > slots // 2:
            live.remove(branch)
            branch.env.close()
            counts["prune"] += 1
        elif kind < 0.45:
            snapshots.append((branch.env.snapshot(), branch.done.copy()))
            snapshots = snapshots[-8:]
        elif kind < 0.55 and snapshots:
            snapshot, done = draw.choice(snapshots)
            branch.env.restore(snapshot)
            branch.done = done.copy()
            counts["restore"] += 1
        else:
            branch.step(draw.choice(actions))
    return live, counts


@pytest.mark.parametrize("name", FAMILIES)
def test_every_branch_is_what_its_history_makes(name: str) -> None:
    family = FAMILIES[name]
    if family.package:
        needs(family.package)
    if family.only_whole and not WHOLE:
        pytest.skip("too costly; BRANCHRT_SOAK=1 runs it")
    family.make().close()  # whatever is loaded once
    with nothing_left(name) as measure:
        live, counts = operate(family.make, family.operations, family.slots, half=measure)
    print(f"{name}: {counts}")
    assert min(counts.values()) > 0
    ahead = actions_of(live[0].env, 5, seed=3)
    for branch in live:
        truth = from_scratch(family.make, branch.done)
        assert luck(branch.env) == luck(truth)
        assert bits(branch.env.observation) == bits(truth.observation)
        assert follow(branch.env, ahead) == follow(truth, ahead)


def test_no_file_and_no_environment_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    live, _ = operate(lambda: gymnasium.make("CartPole-v1"), 300, 16)
    live.clear()
    gc.collect()
    found = [o for o in gc.get_objects() if type(o).__name__ == "CartPoleEnv"]
    assert not found
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
