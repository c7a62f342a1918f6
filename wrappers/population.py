"""Ordinary Gymnasium environments as the rules of a population: one object for each branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor

from branchrt_gym.contract import BranchEnv, Branches, Contract, Transition, branch
from branchrt_gym.frontier import Frontier
from branchrt_gym.slots import FREE
from branchrt_gym.structure import map_leaves, rest_observation
from branchrt_gym.wrappers.branch_wrapper import BranchWrapper
from branchrt_gym.wrappers.pickling import dumps
from branchrt_gym.wrappers.snapshots import SnapshotProvider

__all__ = ["SCORE_UNIT", "ObjectRules", "Objects"]

SCORE_UNIT = 1 << 16  # the score of a return of 1
WORD = (1 << 64) - 1

Objects = dict[int, tuple[BranchWrapper[Any, Any], dict[str, Any]]]


class ObjectRules(BranchEnv):
    """Steps, copies and restarts the objects of an `ObjectVectorEnv`; of one such alone.

    A branch's state is a `place`, which says what object it is. A fork copies the number: the
    object is copied when one of those that share it steps, with the luck that its key gives, and
    for a child that is pruned first never. An object in a snapshot is not stepped again, but
    copied first too.

    Args:
        make_env: Makes an environment, with wrappers or without; called for each root.
        provider: See `BranchWrapper`.
        share: See `BranchWrapper`.
    """

    contract = Contract(
        {
            "place": branch((), torch.int64),
            "returns": branch((), torch.float64),
            "score": branch((), torch.int64),
        }
    )
    reward_dtype = torch.float64
    uses_key = False  # luck is part of the objects; `uses_branch_key` says where it forks
    uses_branch_key = True

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        provider: str | SnapshotProvider | None = None,
        share: Sequence[object] = (),
    ) -> None:
        """Makes the first environment, whose spaces and metadata are everyone's."""
        self.make_env = make_env
        self.provider = provider
        self.share = tuple(share)
        self._shared: SnapshotProvider | None = None
        first = self._make()
        # Copies: a draw from a space would count among the first environment's random sources.
        self.single_observation_space = deepcopy(first.observation_space)
        self.single_action_space = deepcopy(first.action_space)
        self._rest = rest_observation(self.single_observation_space)
        self.metadata = dict(first.metadata)  # type: ignore[misc]
        self.render_mode = first.render_mode
        self.snapshot_provider = first.snapshot_provider
        self.objects: Objects = {}
        self.first: BranchWrapper[Any, Any] | None = first  # until it is a root's
        self._next = 0
        self._frozen: set[int] = set()
        self._frontier: Frontier | None = None
        self._stepping: Tensor | None = None  # the slots of a step of all, else an expansion
        self._pure = False

    def again(self) -> ObjectRules:
        """Returns rules for another population of such environments."""
        return ObjectRules(self.make_env, self.provider, self.share)

    def attach(self, frontier: Frontier, pure: bool) -> None:
        """Serves a frontier; `pure` leaves every object that it has as it is."""
        self._frontier = frontier
        self._pure = pure
        frontier.elsewhere = "environment objects"

    def __getstate__(self) -> dict[str, Any]:
        """Objects go by their attributes: Gymnasium's own pickles forget their state."""
        state = {**self.__dict__, "objects": None, "first": None, "_shared": None}
        return {**state, "_pickled": dumps(self.objects)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See `__getstate__`."""
        import pickle

        objects = pickle.loads(state.pop("_pickled"))
        self.__dict__.update(state, objects=objects)

    # The hooks ----------------------------------------------------------------------------

    def initial_shared(self, keys: Tensor) -> dict[str, Tensor]:
        """Nothing: what objects share is found by their snapshot provider."""
        return {}

    def initial(
        self, shared: Mapping[str, Tensor], context_index: Tensor, keys: Tensor
    ) -> dict[str, Tensor]:
        """Refuses: these rules cannot make states without a population."""
        raise TypeError(
            "these are ordinary environments, whose state is in objects; `search` and `make_roots` "
            "need a contract. Use `branchrt_gym.wrappers.TreeSearch`, or `branch_step` of the "
            "population"
        )

    def begin(
        self,
        shared: Mapping[str, Tensor],
        context_index: Tensor,
        keys: Tensor,
        *,
        roots: Tensor,
        slots: Tensor | None,
        seeds: Tensor | None,
    ) -> dict[str, Tensor]:
        """Resets each root's last object, with a seed or to go on with its luck, as Gymnasium."""
        places = []
        given = [None] * len(keys) if seeds is None else seeds.tolist()
        for last, key, seed in zip(self._last(roots, slots), keys.tolist(), given, strict=True):
            place, env = self._renewed(last)
            if last is None and seed is None:  # no luck of its own to go on with
                seed = key & 0x7FFF_FFFF
            _, info = env.reset(seed=seed)
            self._shared = env.provider  # chosen for good now; the next roots share what it keeps
            env.rekey(key & WORD)
            self.objects[place] = env, info
            places.append(place)
        zero = torch.zeros(len(places), dtype=torch.float64)
        return {"place": torch.tensor(places), "returns": zero, "score": zero.to(torch.int64)}

    def transition(
        self, shared: Mapping[str, Tensor], branches: Branches, action: Tensor
    ) -> Transition:
        """Steps the objects: in a step of the whole population its live ones, else all rows."""
        frontier = self._frontier
        assert frontier is not None
        count = len(action)
        place = branches.state["place"].clone()
        reward = np.zeros(count)
        flags = np.zeros((2, count), dtype=bool)
        if self._stepping is None:
            assert branches.key is not None
            rows, keys = list(range(count)), branches.key
            free: set[int] = set()
        else:
            rows, keys = self._stepping.nonzero().squeeze(1).tolist(), frontier.key
            free = self._free(place[rows])
        places, own, choices = place.tolist(), keys.tolist(), action.numpy()
        # All copies are made before any object steps.
        moved = [self._for_step(places[row], own[row] & WORD, free) for row in rows]
        for row, (here, env) in zip(rows, moved, strict=True):
            choice = choices[row]
            _, gain, terminated, truncated, info = env.step(
                choice.copy() if choice.ndim else choice
            )
            self.objects[here] = env, info
            place[row] = here
            reward[row] = gain
            flags[:, row] = terminated, truncated
        rewards = torch.from_numpy(reward)
        returns = branches.state["returns"] + rewards
        terminated, truncated = torch.from_numpy(flags)
        return Transition(
            {"place": place, "returns": returns, "score": _score(returns)},
            reward=rewards,
            terminated=terminated,
            truncated=truncated,
            solved=torch.zeros(count, dtype=torch.bool),
        )

    def observation(self, shared: Mapping[str, Tensor], branches: Branches) -> Any:
        """Returns what the objects last showed, without a step."""
        space, rest = self.single_observation_space, self._rest
        shown = [
            self.objects[place][0].observation if place in self.objects else rest
            for place in branches.state["place"].tolist()
        ]
        empty: Any = create_empty_array(space, len(shown))
        return map_leaves(torch.from_numpy, concatenate(space, shown, empty))

    # The objects --------------------------------------------------------------------------

    @contextmanager
    def step_of(self, live: Tensor) -> Iterator[None]:
        """Around a step of the whole population, which may change its objects in place."""
        self._stepping = live
        try:
            yield
        finally:
            self._stepping = None

    def infos(self, places: Tensor) -> list[dict[str, Any]]:
        """Returns what the objects last told, by place."""
        return [self.objects[place][1] for place in places.tolist()]

    def environments(self, places: Sequence[int]) -> list[BranchWrapper[Any, Any]]:
        """Returns objects by place; not to be stepped."""
        return [self.objects[place][0] for place in places]

    def freeze(self) -> Objects:
        """Returns all objects that branches have, from now on left as they are."""
        self.sweep()
        self._frozen |= set(self.objects)
        return dict(self.objects)

    def thaw(self, objects: Objects) -> None:
        """Takes the objects of a snapshot in the place of all others."""
        self.objects = dict(objects)
        self._frozen = set(objects)
        self._next = max(self._next, *(place + 1 for place in objects), 0)

    def part(self) -> None:
        """Gives each branch an object of its own, which is in no snapshot."""
        frontier = self._frontier
        assert frontier is not None
        held = (frontier.status != FREE).nonzero().squeeze(1)
        free = self._free(frontier.state["place"][held])
        for slot in held.tolist():
            place = int(frontier.state["place"][slot])
            here, env = self._for_step(place, int(frontier.key[slot]) & WORD, free)
            self.objects[here] = env, self.objects[place][1]
            frontier.state["place"][slot] = here
        self.sweep()

    def sweep(self) -> None:
        """Lets go of the objects of branches that are gone."""
        held = self._uses()
        if len(held) != len(self.objects):
            self.objects = {place: self.objects[place] for place in held}
            self._frozen &= held.keys()

    def close(self) -> None:
        """Closes every environment."""
        for env, _ in self.objects.values():
            env.close()
        if self.first is not None:
            self.first.close()

    def _make(self) -> BranchWrapper[Any, Any]:
        env = self.make_env()
        return BranchWrapper(env, provider=self._shared or self.provider, share=self.share)

    def _uses(self) -> Counter[int]:
        """Returns how many branches have each object."""
        assert self._frontier is not None
        held = self._frontier.status != FREE
        return Counter(self._frontier.state["place"][held].tolist())

    def _last(self, roots: Tensor, slots: Tensor | None) -> list[int | None]:
        """Returns the place of each root's last branch, the lowest slot's where all start."""
        frontier = self._frontier
        assert frontier is not None
        place = frontier.state["place"].tolist()
        if slots is not None:
            return [place[slot] for slot in slots.tolist()]
        lowest: dict[int, int] = {}
        held = (frontier.status != FREE).nonzero().squeeze(1).tolist()
        for slot, root in zip(held, frontier.root[held].tolist(), strict=True):
            lowest.setdefault(root, place[slot])
        return [lowest.get(root) for root in roots.tolist()]

    def _renewed(self, place: int | None) -> tuple[int, BranchWrapper[Any, Any]]:
        """Returns an object to reset: the one of a place, or a copy, or one that is made now."""
        if place is None:
            env, self.first = self.first or self._make(), None
            return self._new_place(), env
        env = self.objects[place][0]
        if self._pure or place in self._frozen:
            return self._new_place(), env.twin(None)
        return place, env

    def _free(self, stepping: Tensor) -> set[int]:
        """Returns the places whose objects nobody needs as they are after this step."""
        if self._pure:
            return set()
        uses, steps = self._uses(), Counter(stepping.tolist())
        return {place for place, number in steps.items() if number == uses[place]} - self._frozen

    def _for_step(
        self, place: int, key: int, free: set[int]
    ) -> tuple[int, BranchWrapper[Any, Any]]:
        """Returns an object that may step for a branch: the one of its place, or a copy."""
        env = self.objects[place][0]
        same = env.key == key
        if same and place in free:
            free.remove(place)
            return place, env
        return self._new_place(), env.twin(None if same else key)

    def _new_place(self) -> int:
        self._next += 1
        return self._next - 1


def _score(returns: Tensor) -> Tensor:
    """Returns the returns in units of 1 / 65,536, as far as 64 bits reach."""
    scaled = (returns * SCORE_UNIT).round().nan_to_num(0.0)
    return scaled.clamp(-(2.0**62), 2.0**62).to(torch.int64)
