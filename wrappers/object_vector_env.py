"""`make_branching`: a branching vector environment over ordinary Gymnasium environments."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from branchrt_gym.branch_step import Policy, Verifier
from branchrt_gym.frontier import Frontier
from branchrt_gym.saving import Snapshot
from branchrt_gym.seeding import Rng
from branchrt_gym.slots import FREE, Slots
from branchrt_gym.vector_env import BranchingVectorEnv
from branchrt_gym.wrappers.branch_wrapper import BranchWrapper
from branchrt_gym.wrappers.infos import batch_infos
from branchrt_gym.wrappers.pickling import dumps
from branchrt_gym.wrappers.population import ObjectRules, Objects
from branchrt_gym.wrappers.snapshots import SnapshotProvider

__all__ = ["ObjectSnapshot", "ObjectVectorEnv", "make_branching"]

POPULATION = frozenset(  # arguments of the population, not of its environments
    {"num_roots", "num_contexts", "autoreset_mode", "output", "debug"}
    | {"record_lineage", "lineage_capacity"}
)


@dataclass(frozen=True)
class ObjectSnapshot(Snapshot):
    """A population of objects at one moment; they are copied when somebody steps them again."""

    objects: Objects = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the objects by their attributes: Gymnasium's own way forgets their state."""
        return _loads, (self.header, self.tensors, dumps(self.objects))


def _loads(header: dict[str, Any], tensors: dict[str, Tensor], objects: bytes) -> ObjectSnapshot:
    return ObjectSnapshot(header, tensors, pickle.loads(objects))


class ObjectVectorEnv(BranchingVectorEnv):
    """A `BranchingVectorEnv` whose branches are ordinary Gymnasium environments.

    Without forks it is Gymnasium's `SyncVectorEnv`, step for step: root `r` is an environment of
    its own, seeded with `seed + r`, and an episode that follows is begun by `reset()` without a
    seed. `fork` copies nothing by itself: a branch's object is copied when the first of those that
    share it steps. `branch_step` steps a copy for each action, so it needs Discrete actions.

    `frontier.state` has, for verifiers and policies, each branch's `place` (see `environments`),
    its `returns` (float64) and its `score`, the returns in units of 1 / 65,536. The environments'
    own infos are beside `live` and `solved`, batched as Gymnasium does it, except that rows of
    ints and floats are floats together. An empty slot's picture is black.

    Actions of a Box are given to the environments as they are. A step that raises leaves other
    branches stepped, unless `debug=True`, which steps copies only. The population cannot be saved
    to a file; its snapshots can be pickled where its environments can.

    Args:
        env: The rules; those of another population are used for their arguments alone.
        num_envs: `N`, slots.
        **options: Those of `BranchingVectorEnv`.

    Raises:
        SnapshotUnsupportedError: If these environments cannot be copied exactly.
    """

    env: Any

    def __init__(self, env: ObjectRules, num_envs: int = 1, **options: Any) -> None:
        """Makes the first environment; the others when they are reset."""
        if not isinstance(env, ObjectRules):
            raise TypeError(f"`env` is {type(env).__name__}; expected ObjectRules")
        device = torch.device(options.get("device", "cpu"))
        if device.type != "cpu":
            raise ValueError(
                f'`device` is "{device}"; expected "cpu", where ordinary environments are'
            )
        rules = env.again()
        options.setdefault("render_mode", rules.render_mode)
        super().__init__(rules, num_envs, **options)
        rules.attach(self.frontier, pure=self.env.debug)
        if isinstance(rules.single_action_space, gymnasium.spaces.Box):
            self._bounds = self._range = None

    @property
    def rules(self) -> ObjectRules:
        """What holds the objects."""
        rules: ObjectRules = self.env.rules
        return rules

    @property
    def snapshot_provider(self) -> str:
        """Name of the provider that copies the environments."""
        return self.rules.snapshot_provider

    @property
    def envs(self) -> list[BranchWrapper[Any, Any] | None]:
        """Each slot's environment, from now on its own; None of an empty slot."""
        if self._ready:
            self.rules.part()
        return self._each()

    def environments(self, places: Any) -> list[BranchWrapper[Any, Any]]:
        """Returns branches' objects, to be looked at: not stepped, reset or written to.

        Args:
            places: Out of `frontier.state["place"]`, or of a batch's.
        """
        return self.rules.environments(np.asarray(places).tolist())

    # Gymnasium's interface ----------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts roots; see `BranchingVectorEnv`."""
        result = super().reset(seed=seed, options=options)
        self.rules.sweep()
        return result

    def _step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with self.rules.step_of(self.frontier.live):
            result = super()._step(actions)
        self.rules.sweep()
        return result

    def render(self) -> tuple[Any, ...] | None:
        """Draws every slot: a tuple of `N` frames or texts; a black one of an empty slot."""
        self._require_reset("render")
        if self.render_mode is None:
            return None
        held = (self.frontier.status != FREE).tolist()
        places = self.frontier.state["place"].tolist()
        frames = [
            self.rules.objects[place][0].render() if there else None
            for place, there in zip(places, held, strict=True)
        ]
        shown: Any = next((frame for frame in frames if frame is not None), None)
        empty = "" if isinstance(shown, str) else np.zeros_like(shown)
        return tuple(empty if frame is None else frame for frame in frames)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments."""
        self.rules.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each slot's environment, or takes an attribute; None if it is empty."""
        results = []
        for env in self.envs:
            found = None if env is None else env.get_wrapper_attr(name)
            results.append(found(*args, **kwargs) if callable(found) else found)
        return tuple(results)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of each slot's environment; None for an empty slot."""
        return tuple(None if env is None else env.get_wrapper_attr(name) for env in self._each())

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of the slots' environments: a value each, or one for all."""
        given = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(given) != self.num_envs:
            raise ValueError(
                f"`values` has {len(given)} entries; expected {self.num_envs}, one for each slot"
            )
        for env, value in zip(self.envs, given, strict=True):
            if env is not None:
                env.set_wrapper_attr(name, value)

    # Branching ----------------------------------------------------------------------------

    def prune(self, which: Slots | Sequence[bool]) -> None:
        """Stops branches and frees their slots and objects; see `BranchingVectorEnv`."""
        super().prune(which)
        self.rules.sweep()

    def branch_step(
        self, verifier_fn: Verifier | None = None, policy: Policy | None = None, rng: Rng = "split"
    ) -> tuple[Frontier, Tensor, Tensor]:
        """Expands every live branch by every action; see `BranchingVectorEnv`."""
        try:
            return super().branch_step(verifier_fn, policy, rng)
        finally:
            self.rules.sweep()

    def snapshot(self) -> ObjectSnapshot:
        """Takes the whole population; its objects by reference, to be copied at the next step."""
        taken = super().snapshot()
        return ObjectSnapshot(taken.header, taken.tensors, self.rules.freeze())

    def restore(self, snapshot: Snapshot) -> Any:
        """Puts a snapshot back and returns the observations, without a step.

        Raises:
            SaveFormatError: If it was taken of a population of another size.
        """
        if not isinstance(snapshot, ObjectSnapshot):
            raise TypeError(
                f"`snapshot` is {type(snapshot).__name__}; expected an ObjectSnapshot, of a "
                "population of ordinary environments"
            )
        before = self.rules.objects
        self.rules.objects = {**before, **snapshot.objects}
        try:
            observations = super().restore(snapshot)
        except BaseException:
            self.rules.objects = before
            raise
        self.rules.thaw(snapshot.objects)
        return observations

    # Details ------------------------------------------------------------------------------

    def _each(self) -> list[BranchWrapper[Any, Any] | None]:
        if not self._ready:  # attributes are asked for before the first reset
            return [self.rules.first] * self.num_envs
        held = (self.frontier.status != FREE).tolist()
        places = self.frontier.state["place"].tolist()
        objects = self.rules.objects
        return [objects[p][0] if there else None for p, there in zip(places, held, strict=True)]

    def _info(self, solved: Tensor, stepped: Tensor) -> dict[str, Any]:
        return {**self._told(stepped), **super()._info(solved, stepped)}

    def _final(self, reserved: Tensor, solved: Tensor, live: Tensor) -> dict[str, Any]:
        final = super()._final(reserved, solved, live)
        if final:
            final["final_info"] = {**self._told(reserved), **final["final_info"]}
        return final

    def _told(self, which: Tensor) -> dict[str, Any]:
        """The environments' own infos of the slots in `which`, batched."""
        rows = which.nonzero().squeeze(1)
        told = self.rules.infos(self.frontier.state["place"][rows])
        return batch_infos(dict(zip(rows.tolist(), told, strict=True)), self.num_envs)


def make_branching(
    env: str | gymnasium.envs.registration.EnvSpec | Callable[[], gymnasium.Env[Any, Any]],
    num_envs: int = 1,
    *,
    provider: str | SnapshotProvider | None = None,
    share: Sequence[object] = (),
    vector_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> ObjectVectorEnv:
    """Makes a population of ordinary Gymnasium environments that can fork and prune.

        >>> envs = make_branching("CartPole-v1", num_envs=8, num_roots=2)
        >>> observations, infos = envs.reset(seed=1)
        >>> envs.fork([0, 1], counts=2).tolist()
        [2, 3, 4, 5]

    Args:
        env: An id or spec for `gymnasium.make`, or what makes an environment.
        num_envs: `N`, slots.
        provider: Who copies the environments; see `BranchWrapper`.
        share: Objects that all branches hold in common; see `BranchWrapper`.
        vector_kwargs: More of `BranchingVectorEnv`'s arguments; not needed but for
            `max_episode_steps`, which in `kwargs` is `gymnasium.make`'s.
        **kwargs: `BranchingVectorEnv`'s `num_roots`, `autoreset_mode`, `output`, `debug`,
            `record_lineage` and `lineage_capacity`; all others are `gymnasium.make`'s.

    Raises:
        SnapshotUnsupportedError: If these environments cannot be copied exactly.
    """
    options = {name: kwargs.pop(name) for name in POPULATION if name in kwargs}
    options |= dict(vector_kwargs or {})
    if isinstance(env, str | gymnasium.envs.registration.EnvSpec):
        make: Callable[[], gymnasium.Env[Any, Any]] = partial(gymnasium.make, env, **kwargs)
    elif kwargs:
        raise TypeError(
            f"`make_branching` got {', '.join(sorted(kwargs))} beside a callable, which takes no "
            "arguments; expected them in the callable"
        )
    elif not callable(env):
        raise TypeError(
            f"`env` is {type(env).__name__}; expected an id, a spec, or a callable that makes an "
            "environment"
        )
    else:
        make = env
    return ObjectVectorEnv(ObjectRules(make, provider, share), num_envs, **deepcopy(options))
