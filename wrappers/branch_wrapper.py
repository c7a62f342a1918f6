"""BranchWrapper: fork, snapshot and restore for any Gymnasium environment, exactly."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper

from branchrt_gym.errors import SnapshotUnsupportedError
from branchrt_gym.oracle import EPISODE, child_key, fold, root_key
from branchrt_gym.seeding import Rng, check_rng
from branchrt_gym.wrappers.snapshots import Snapshot, SnapshotProvider, choose

__all__ = ["BranchVectorWrapper", "BranchWrapper"]

ObsT = TypeVar("ObsT")
ActT = TypeVar("ActT")


class _Branching:
    """What both wrappers do; the bases that Gymnasium gives them differ."""

    env: Any
    observation: Any = None

    def _start(self, provider: str | SnapshotProvider | None, share: Sequence[object]) -> None:
        self._provider = choose(self.env, provider, share)
        self.env = self._provider.prepare(self.env)
        # A constructor may leave to the first reset what cannot be copied: then it is chosen again.
        self._asked: tuple[Any, ...] | None = (provider, tuple(share))
        self._root = secrets.randbits(64)
        self._key = self._root
        self._episode = self._forks = 0

    @property
    def snapshot_provider(self) -> str:
        """Name of the provider that takes this environment's snapshots."""
        return self._provider.name

    @property
    def provider(self) -> SnapshotProvider:
        """The provider itself, with the emulators and the like that it keeps for later copies."""
        return self._provider

    @property
    def key(self) -> int:
        """Key of this branch, 64 bits, from which the luck of its split children is made."""
        return self._key

    def _begin(self, seed: Any, again: Any) -> tuple[Any, dict[str, Any]]:
        result: tuple[Any, dict[str, Any]] = again()
        if self._asked is not None:
            chosen = choose(self.env, *self._asked)
            if chosen.name != self._provider.name:
                self._provider = chosen
                self.env = chosen.prepare(self.env)
                result = again()
            self._asked = None
        if seed is None:
            self._episode += 1
        else:
            self._episode = 0
            self._root = root_key(seed) if isinstance(seed, int) else _root_of_seeds(seed)
        self._key = fold(self._root, EPISODE + self._episode)
        self._forks = 0
        self.observation = result[0]
        return result

    def fork(self, n: int = 1, rng: Rng = "split") -> list[Self]:
        """Copies this branch; it goes on undisturbed itself.

        A copy is independent in everything: every wrapper's state, random state, counters, the last
        observation. What is immutable is shared: specs, bounds of spaces, models, tables.

        Args:
            n: How many copies to return, at least 1.
            rng: `"split"` gives each copy luck of its own, drawn from its key, which is a function
                of this branch's key, the number of forks before and the copy's number, and so
                the same in every run with the same seed. `"shared"` copies all luck: the same
                actions lead to the same future.

        Raises:
            ValueError: For `n` or `rng` outside what they may be.
            SnapshotUnsupportedError: For a part that cannot be copied exactly.
        """
        if operator.index(n) < 1:
            raise ValueError(f"`n` is {n}; expected at least 1 copy")
        split = check_rng(rng) == "split"
        number = self._forks
        self._forks += 1
        children = []
        try:
            for j in range(n):
                key = child_key(self._key, number, j) if split else None
                children.append(self.twin(key))
        except BaseException:
            self._forks = number
            raise
        return children

    def twin(self, key: int | None = None) -> Self:
        """Copies this branch as `fork` does, without counting it as one.

        Args:
            key: The copy's key, 64 bits, from which its luck is drawn; None for this branch's
                luck and key.

        Raises:
            SnapshotUnsupportedError: For a part that cannot be copied exactly.
        """
        copy = self._provider.copy(self, key)
        if key is not None:
            copy.rekey(key)
        return copy  # type: ignore[no-any-return]

    def rekey(self, key: int) -> None:
        """Gives this branch another key for its children; its own luck stays."""
        self._root = self._key = key
        self._episode = self._forks = 0

    def snapshot(self) -> Snapshot:
        """Returns this branch at this moment, luck included; later steps do not change it.

        Raises:
            SnapshotUnsupportedError: For a part that cannot be copied exactly.
        """
        return self._provider.take(self)

    def restore(self, snapshot: Snapshot) -> Any:
        """Goes back to a snapshot of this branch, or of another of the same layers.

        The layers stay the objects they are. A snapshot can be restored any number of times; each
        time the future, luck included, is the same (`fork` is for others).

        Returns:
            The observation at that moment, without a step.

        Raises:
            ValueError: If the snapshot is of other layers, or by another provider.
        """
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"`snapshot` is {type(snapshot).__name__}; expected a Snapshot")
        provider = self._provider
        provider.put(self, snapshot)
        self._provider = provider
        return self.observation


def _root_of_seeds(seeds: Sequence[int | None]) -> int:
    root = 0
    for seed in seeds:
        root = fold(root, secrets.randbits(64) if seed is None else seed)
    return root


class BranchWrapper(_Branching, gymnasium.Wrapper[ObsT, ActT, ObsT, ActT], RecordConstructorArgs):
    """Adds `fork`, `snapshot` and `restore` to an environment; the outermost wrapper of a stack.

        >>> import gymnasium
        >>> env = BranchWrapper(gymnasium.make("CartPole-v1"))
        >>> observation, info = env.reset(seed=1)
        >>> left, right = env.fork(2)
        >>> left.step(0)[0][1] < 0 < right.step(1)[0][1]
        True

    Args:
        env: A single environment, with wrappers or without.
        provider: A name out of `PROVIDERS`, or a provider of your own, in place of the first that
            fits; `snapshot_provider` says which one is used.
        share: Objects that all branches hold in common, and names of attributes whose values are
            such: large tables that nobody writes to, a network that is trained outside.
        verify: Whether to compare copies with untouched environments first (`verify`, at three
            points); takes a few hundred steps of environments made by `gymnasium.make(env.spec)`.

    Raises:
        SnapshotUnsupportedError: If no provider copies this environment exactly; with the reasons.
        ValueError: If `verify` is asked for an environment whose spec does not make it again.

    Attributes:
        observation: What the last `reset`, `step` or `restore` returned.
    """

    def __init__(
        self,
        env: gymnasium.Env[ObsT, ActT],
        provider: str | SnapshotProvider | None = None,
        share: Sequence[object] = (),
        verify: bool = False,
    ) -> None:
        """Chooses the provider."""
        if isinstance(env, VectorEnv):
            raise TypeError(
                f"`env` is the vector environment {env}; expected a single one. For one branch "
                "that is a whole vector environment use `BranchVectorWrapper`"
            )
        if not isinstance(env, gymnasium.Env):
            choose(env)  # names the reason, if it is one of those that can never be copied
        given: dict[str, Any] = {"provider": provider, "share": share, "verify": verify}
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **given)
        gymnasium.Wrapper.__init__(self, env)
        if verify:
            _verified(env, provider, share)
        self._start(provider, share)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsT, dict[str, Any]]:
        """Resets the environment; a seed is also the root of its branches' keys."""
        return self._begin(seed, lambda: self.env.reset(seed=seed, options=options))

    def step(self, action: ActT) -> tuple[ObsT, Any, bool, bool, dict[str, Any]]:
        """Steps the environment."""
        result = self.env.step(action)
        self.observation = result[0]
        return result  # type: ignore[no-any-return]


def _verified(env: Any, provider: str | SnapshotProvider | None, share: Sequence[object]) -> None:
    from branchrt_gym.wrappers.verify import verify

    spec = env.spec
    try:
        told = str(gymnasium.make(spec))
    except Exception as error:  # a wrapper or a constructor may refuse in any way
        told = str(error)
    if told != str(env):
        raise ValueError(
            f"`verify` needs more environments like {env}, and `gymnasium.make(env.spec)` does not "
            f"make them ({told}); call `branchrt_gym.wrappers.verify(make_env)` instead"
        )
    result = verify(
        lambda: gymnasium.make(spec), points=3, steps=50, provider=provider, share=share
    )
    if not result.exact:
        raise SnapshotUnsupportedError(
            f"copies of {env} by the provider {result.provider!r} are not exact: "
            f"{result.differences[0]}"
        )


class BranchVectorWrapper(_Branching, VectorWrapper):
    """The same for a vector environment that is forked as a whole, all of its rows at once.

    See `BranchWrapper` for the arguments.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        provider: str | SnapshotProvider | None = None,
        share: Sequence[object] = (),
    ) -> None:
        """Chooses the provider."""
        super().__init__(env)
        self._start(provider, share)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environment; a seed is also the root of its branches' keys."""
        return self._begin(seed, lambda: self.env.reset(seed=seed, options=options))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environment."""
        result = self.env.step(actions)
        self.observation = result[0]
        return result  # type: ignore[no-any-return]
