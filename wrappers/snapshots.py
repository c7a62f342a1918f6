"""Snapshots of an environment, the ways to take them, and the choice of one that fits."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
from gymnasium.vector import VectorEnv

from branchrt_gym.errors import SnapshotUnsupportedError
from branchrt_gym.wrappers.kinds import Refusal
from branchrt_gym.wrappers.restoring import put
from branchrt_gym.wrappers.structural import Copying, Handler, Table, layers

__all__ = ["PROVIDERS", "Snapshot", "SnapshotProvider", "choose", "environments"]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An environment at one moment, independent of every later step; what is in it is private.

    Attributes:
        provider: Name of the provider that took it.
        payload: Its own; a wrapper stack that nobody steps.
    """

    provider: str
    payload: Any

    @property
    def observation(self) -> Any:
        """The last observation at that moment; a copy."""
        return copy.deepcopy(self.payload.observation)

    def __repr__(self) -> str:
        """Names the provider and the environment."""
        return f"<Snapshot by {self.provider} of {self.payload}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the layers by their attributes: Gymnasium's own way forgets their state."""
        from branchrt_gym.wrappers.pickling import dumps, loads

        return loads, (dumps((self.provider, self.payload)),)


class SnapshotProvider:
    """Copies wrapper stacks exactly, or says why it cannot.

    One is shared by all branches of an environment. This base copies by structure; a subclass adds
    the parts that live outside Python, by `foreign`.

    Args:
        share: Objects that all branches hold in common, and names of attributes whose values are
            such: large tables that nobody writes to.
    """

    name: ClassVar[str] = "structural"

    def __init__(self, share: Sequence[object] = ()) -> None:
        """Starts with no kinds looked into but Python's own."""
        self.table = Table(self.foreign() | {type(self): _itself}, share)

    def foreign(self) -> dict[type, Handler]:
        """Returns the handlers of parts that live outside Python."""
        return {}

    def fits(self, env: Any) -> str | None:
        """Returns why this provider cannot copy an environment; None if it can."""
        try:
            Copying(self.table, trial=True).copy(env)
        except Refusal as refusal:
            refusal.close(type(env).__name__)
            return str(refusal)
        return None

    def prepare(self, env: Any) -> Any:
        """Returns the environment with what this provider needs to watch it; once, at the start."""
        return env

    def copy(self, env: Any, key: int | None = None) -> Any:
        """Returns an independent copy of a stack; with a key, with luck of its own.

        Raises:
            SnapshotUnsupportedError: For a part that cannot be copied exactly.
        """
        return self._pass(env, key, False)

    def take(self, env: Any) -> Snapshot:
        """Returns a snapshot of a stack.

        Raises:
            SnapshotUnsupportedError: For a part that cannot be copied exactly.
        """
        return Snapshot(self.name, self._pass(env, None, True))

    def put(self, env: Any, snapshot: Snapshot) -> None:
        """Writes a snapshot into a stack of the same layers.

        Raises:
            ValueError: If the snapshot is of other layers, or by another provider.
        """
        if snapshot.provider != self.name:
            raise ValueError(
                f"`snapshot` was taken by the provider {snapshot.provider!r}; this environment's "
                f"is {self.name!r}"
            )
        try:
            put(env, snapshot.payload, self.table)
        except Refusal as refusal:
            raise _unsupported(env, refusal) from refusal

    def _pass(self, env: Any, key: int | None, saving: bool) -> Any:
        try:
            return Copying(self.table, key, saving).copy(env)
        except Refusal as refusal:
            raise _unsupported(env, refusal) from refusal
        except RecursionError as error:
            raise SnapshotUnsupportedError(
                f"{env} holds objects in a chain longer than Python's recursion limit "
                f"({sys.getrecursionlimit()}), which cannot be copied"
            ) from error


def _itself(provider: SnapshotProvider, run: Copying) -> SnapshotProvider | None:
    return None if run.saving else provider


def _unsupported(env: Any, refusal: Refusal) -> SnapshotUnsupportedError:
    refusal.close(type(env).__name__)
    return SnapshotUnsupportedError(
        f"{refusal}; give `share=` what all branches may hold in common, or leave it out of the "
        "environment"
    )


def environments(env: Any) -> Iterator[Any]:
    """Yields the innermost environments: one, or each of a vector environment's."""
    base = layers(env)[-1]
    inner = vars(base).get("envs") if isinstance(base, VectorEnv) else None
    if isinstance(inner, list | tuple) and all(isinstance(e, gymnasium.Env) for e in inner):
        for each in inner:
            yield from environments(each)
    else:
        yield base


def choose(
    env: Any, provider: str | SnapshotProvider | None = None, share: Sequence[object] = ()
) -> SnapshotProvider:
    """Returns the first provider that fits an environment, or the one that is named.

    Args:
        env: The stack.
        provider: A name out of `PROVIDERS`, a provider of your own, or None to try them in order.
        share: See `SnapshotProvider`.

    Raises:
        SnapshotUnsupportedError: If none fits, or the one that is named does not; with the reasons.
        ValueError: For an unknown name.
    """
    if isinstance(provider, SnapshotProvider):
        tried = [provider]
    else:
        kinds = _kinds()
        if provider is not None and provider not in kinds:
            raise ValueError(f"`provider` is {provider!r}; expected one of {', '.join(kinds)}")
        tried = [kind(share) for name, kind in kinds.items() if provider in (None, name)]
    reasons = []
    for each in tried:
        why = each.fits(env)
        if why is None:
            return each
        reasons.append((each.name, why))
    told = "; ".join(f"{name}: {why}" for name, why in reasons)
    raise SnapshotUnsupportedError(f"{env} has no exact snapshot. {told}")


PROVIDERS = ("own", "mujoco", "atari", "structural", "replay")


def _kinds() -> dict[str, type[SnapshotProvider]]:
    from branchrt_gym.wrappers.atari import Atari
    from branchrt_gym.wrappers.mujoco import Mujoco
    from branchrt_gym.wrappers.own import Own
    from branchrt_gym.wrappers.replay import Replay

    kinds = (Own, Mujoco, Atari, SnapshotProvider, Replay)
    return {kind.name: kind for kind in kinds}
