"""What the checks work with: fresh environments of the kind under test, actions and runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from branchrt_gym.slots import NO_ROOT
from branchrt_gym.structure import map_leaves
from branchrt_gym.testing.comparison import Record, as_numpy, difference, outcome, pick, picture
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = [
    "LIMIT",
    "MODES",
    "NEXT",
    "SEED",
    "STEPS",
    "Make",
    "Subject",
    "compared_rows",
    "given",
    "remake",
]

SEED = 1
LIMIT = 6  # steps of the longest episode where a check waits for the end of one
STEPS = 2 * LIMIT + 3  # in which every root ends twice, whatever the mode
ACTIONS = 61  # actions drawn beforehand, from which all checks take theirs
NEXT = AutoresetMode.NEXT_STEP
MODES = tuple(AutoresetMode)

Make = Callable[..., BranchingVectorEnv]


@dataclass(frozen=True)
class Subject:
    """The environment under test.

    Attributes:
        envs: As the caller gave it; only looked at, never reset or stepped.
        make: Makes a fresh one of it, with changed arguments.
        chance: Whether the rules use chance; None if that is not known.
        pool: Single actions.
    """

    envs: BranchingVectorEnv
    make: Make
    chance: bool | None
    pool: list[Any]

    @classmethod
    def of(cls, envs: BranchingVectorEnv, make: Make, chance: bool | None) -> Subject:
        """Draws the actions, without touching the environment's own random state."""
        space = deepcopy(envs.single_action_space)
        space.seed(0)
        return cls(envs, make, chance, [space.sample() for _ in range(ACTIONS)])

    def fresh(self, seed: Any = SEED, **changes: Any) -> BranchingVectorEnv:
        """Makes an environment and resets it."""
        envs = self.make(**changes)
        envs.reset(seed=seed)
        return envs

    def flat(self, mode: AutoresetMode) -> BranchingVectorEnv:
        """Makes one of five slots with a root each and short episodes."""
        limit = min(self.envs.max_episode_steps or LIMIT, LIMIT)
        return self.fresh(num_envs=5, num_roots=5, autoreset_mode=mode, max_episode_steps=limit)

    def forked(self, mode: AutoresetMode = NEXT, /, **changes: Any) -> BranchingVectorEnv:
        """Makes one of eight slots for two roots and short episodes."""
        limit = min(self.envs.max_episode_steps or LIMIT, LIMIT)
        arguments = {"num_envs": 8, "num_roots": 2, "max_episode_steps": limit}
        return self.fresh(**{**arguments, "autoreset_mode": mode, **changes})

    def actions(self, words: Any) -> Any:
        """Returns one action for each slot, picked by a word each, as NumPy arrays."""
        space = self.envs.single_action_space
        items = [self.pool[int(word) % ACTIONS] for word in words]
        empty: Any = create_empty_array(space, len(items))
        return concatenate(space, items, empty)

    def step(self, envs: BranchingVectorEnv, words: Any) -> Record:
        """Steps by the actions of `words`, and returns what came of it."""
        return outcome(envs.step(given(envs, self.actions(words))))

    def walk(
        self, envs: BranchingVectorEnv, steps: int, first: int = 0
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Forks, prunes, compacts and steps by a fixed plan.

        Yields:
            The slots that were live before a step, and what `step` returned.
        """
        slots = np.arange(envs.num_envs)
        for turn in range(first, first + steps):
            live, roots = as_numpy(envs.live), as_numpy(envs.roots)
            if not live.any():
                envs.reset()
                live, roots = as_numpy(envs.live), as_numpy(envs.roots)
            branches = np.flatnonzero(live)
            if turn % 3 == 0:
                parents = branches[: min(int((roots == NO_ROOT).sum()), 3)]
                envs.fork(parents.tolist(), rng="split" if turn % 2 else "shared")
            if turn % 5 == 4 and len(branches) > 1:
                envs.prune(branches[-1:].tolist())
            if turn % 7 == 6:
                envs.compact()
            stepped = as_numpy(envs.live)
            yield stepped, envs.step(given(envs, self.actions(7 * turn + 13 * slots)))

    def run(self, envs: BranchingVectorEnv, steps: int = 10, first: int = 0) -> list[Record]:
        """Returns what an environment shows before and during a walk."""
        records = [picture(envs)]
        for _, result in self.walk(envs, steps, first):
            records.append({**outcome(result), **picture(envs)})
        return records


def remake(envs: BranchingVectorEnv) -> Make:
    """Returns what makes environments like `envs`, from its class and its attributes.

    Each constructor parameter is the attribute of its name; one without such an attribute has
    its default.
    """
    names: list[str] = []
    for part in type(envs).__mro__:  # as far as constructors pass `**kwargs` on
        parameters = inspect.signature(part.__init__).parameters  # type: ignore[misc]
        names += parameters
        if all(each.kind != each.VAR_KEYWORD for each in parameters.values()):
            break
    own = {name: getattr(envs, name) for name in names if hasattr(envs, name)}
    if "env" in own:
        own["env"] = getattr(own["env"], "rules", own["env"])

    def make(**changes: Any) -> BranchingVectorEnv:
        arguments = {**own, **changes}
        if "num_contexts" not in changes and "num_contexts" in own:
            arguments["num_contexts"] = min(own["num_contexts"], arguments["num_roots"])
        return type(envs)(**arguments)

    return make


def given(envs: BranchingVectorEnv, actions: Any) -> Any:
    """Returns actions as this environment's users give them: arrays, or tensors on its device."""
    if envs.output == "numpy":
        return actions
    return map_leaves(lambda leaf: torch.as_tensor(leaf, device=envs.device), actions)


def compared_rows(
    subject: Subject,
    one: tuple[BranchingVectorEnv, np.ndarray],
    two: tuple[BranchingVectorEnv, np.ndarray],
    what: str,
    mode: AutoresetMode = NEXT,
) -> Iterator[str]:
    """Steps two populations with the same actions for the same branches until these have ended.

    Args:
        subject: The environment under test.
        one: A population, and the slots of `M` branches in it.
        two: Another, and the slots of the same branches there.
        what: The two in words, "… against …".
        mode: Their autoreset mode: in SAME_STEP a step that ends an episode shows the next one.
    """
    running = np.ones(len(one[1]), bool)
    for turn in range(LIMIT):
        seen = []
        for envs, slots in (one, two):
            words = 31 + 7 * turn + 5 * np.arange(envs.num_envs)
            words[slots] = 11 * turn + 3 * np.arange(len(slots))
            seen.append(pick(subject.step(envs, words), slots))
        ended = seen[1]["terminated"] | seen[1]["truncated"]
        for name, their in seen[1].items():
            restarted = name == "live" or (name == "observation" and mode != NEXT)
            rows = running & ~ended if restarted else running
            places = np.flatnonzero(rows)
            for place in places:
                mine = pick(seen[0][name], place)
                if found := difference(mine, pick(their, place), name=name, slots=False):
                    slot, other = int(one[1][place]), int(two[1][place])
                    where = f"slot {slot}" if slot == other else f"slot {slot} and slot {other}"
                    yield f"{what}: in step {turn + 1}, {where}, {found}"
        running &= ~ended
        if not running.any():
            return
