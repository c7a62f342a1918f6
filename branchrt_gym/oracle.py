"""The oracle: the scalar, independent implementation that batched rules are certified against.

An oracle is an ordinary `gymnasium.Env`, one branch at a time, in plain Python and NumPy. It is
what `gymnasium.make` returns, and what `branchrt certify` compares every transition with. It shares
no code with the batched rules: write it from the rules' text, not from their tensors.

To write one, subclass `Oracle`, set the two spaces in `__init__`, name the state of a branch in
`branch_fields`, and define the hooks:

    >>> import numpy as np
    >>> from gymnasium.spaces import Box, Discrete
    >>> class Walk(Oracle[np.ndarray, int | np.int64]):
    ...     branch_fields = ("place",)
    ...     def __init__(self):
    ...         self.observation_space = Box(0, 100, (1,), np.int64)
    ...         self.action_space = Discrete(2)
    ...     def make_context(self, key):        # once per context; immutable
    ...         return {"goal": 1 + bounded(fold(key, 0), 5)}
    ...     def start(self):                    # a fresh episode
    ...         self.place = 50
    ...     def advance(self, action, key):     # one transition
    ...         slip = bounded(fold(key, 0), 8) == 0
    ...         self.place += 0 if slip else (-1, 1)[action]
    ...         solved = self.place == 50 + self.context["goal"]
    ...         return float(solved), solved, self.depth + 1 == 50, solved
    ...     def observe(self):                  # new data at every call
    ...         return np.array([self.place])
    >>> walk = Walk()
    >>> observation, info = walk.reset(seed=7)
    >>> left, right = walk.fork(2)
    >>> left.context is walk.context
    True

Three rules keep an oracle exact:

*   The context is immutable. Branches share it by reference; forks and deep copies do not copy it.
*   All chance comes from the `key` that a hook is given, through `fold` and `bounded`, never from
    `np_random` or a clock. Draw number `i` of a transition is `fold(key, i)`.
*   Python's integers do not wrap. Mask where the batched dtype would (`& 0xFFFF_FFFF`).

Keys are SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)
used as a counter-based generator, here on Python ints in `0 .. 2**64 - 1`.
"""

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Self, SupportsIndex, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from branchrt_gym.errors import NotResetError, OptionsError

__all__ = [
    "Oracle",
    "bounded",
    "child_key",
    "context_key",
    "episode_key",
    "fold",
    "hashed_entries",
    "root_key",
    "within",
]

ObsT = TypeVar("ObsT")
ActT = TypeVar("ActT")

MASK64 = 2**64 - 1
DOMAIN = 0x6272616E63687274  # "branchrt"
# Words for what is not a draw. Draw numbers, episodes and fork numbers stay below 2**40.
CONTEXT, EPISODE, FORK = 1 << 40, 2 << 40, 3 << 40


def mix64(x: int) -> int:
    """Scrambles 64 bits, one to one: the finaliser of SplitMix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK64
    return x ^ x >> 31


def fold(key: int, word: int) -> int:
    """Returns the key made from a key and a word, or draw number `word` of the key, in 64 bits."""
    return mix64(key + (word + 1) * 0x9E3779B97F4A7C15 & MASK64)


def bounded(x: int, n: int) -> int:
    """Maps 64 random bits onto `0 .. n - 1`, for `n` in `1 .. 2**31 - 1`, from the upper 32."""
    return (x >> 32) * n >> 32


def root_key(seed: int) -> int:
    """Returns the key of a root's seed, a seed in `0 .. 2**63 - 1`."""
    return fold(DOMAIN, seed)


def context_key(seed: int) -> int:
    """Returns the key that the context of a seed is made from."""
    return fold(root_key(seed), CONTEXT)


def episode_key(seed: int, episode: int) -> int:
    """Returns the key of the first branch of an episode; episodes count from 0."""
    return fold(root_key(seed), EPISODE + episode)


def child_key(key: int, forks: int, child: int) -> int:
    """Returns the key of split child number `child` of the parent's fork call number `forks`."""
    return fold(fold(key, FORK + forks), child)


class Oracle(gymnasium.Env[ObsT, ActT], ABC):
    """A scalar environment that can fork; the module's text says how to write one.

    Attributes:
        branch_fields: Names of the attributes that make up the state of one branch. An
            environment that `search` ranks has its score among them, under the contract's name.
        log: The contract's `log` fields of the last transition, if there are any; `advance` sets
            it anew.
        seed: Seed of the root, in `0 .. 2**63 - 1`.
        episode: Number of the episode since that seed, from 0.
        key: The branch's random key, in `0 .. 2**64 - 1`.
        depth: Transitions taken since the start of the episode.
        forks: Calls of `fork` that this branch took part in.
        live: Whether the branch can be stepped.
        context: What branches share; immutable.
    """

    branch_fields: tuple[str, ...] = ()
    log: Mapping[str, Any] = MappingProxyType({})
    seed: int = 0
    episode: int = 0
    key: int = 0
    depth: int = 0
    forks: int = 0
    live: bool = False
    context: object = None
    _was_reset: bool = False
    _choices: range | None = None

    def make_context(self, key: int) -> object:
        """Makes the context of a key; None where an environment has none."""
        return None

    def check_context(self, context: object) -> None:
        """Raises a `ValueError` if a caller's context does not fit this environment."""

    @abstractmethod
    def start(self) -> None:
        """Sets the fields named in `branch_fields` for a new episode, from `context` and `key`."""

    @abstractmethod
    def advance(self, action: Any, key: int) -> tuple[float, bool, bool, bool]:
        """Takes one transition, changing the fields named in `branch_fields`.

        Args:
            action: A member of the action space; a Python int if that is `Discrete`.
            key: The key of this transition. Draw number `i` is `fold(key, i)`.

        Returns:
            Reward, terminated, truncated, and whether the branch has solved its root. `depth` is
            counted up afterwards: inside, it is the number of transitions before this one.
        """

    @abstractmethod
    def observe(self) -> ObsT:
        """Returns the observation, in new memory at every call."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsT, dict[str, Any]]:
        """Starts an episode.

        With a seed: episode 0 in the seed's context. Without: the next episode of the same seed in
        the same context, and at the very first reset a seed drawn from `np_random`.

        Args:
            seed: In `0 .. 2**63 - 1`.
            options: `"context"`, used in place of the one that would be made or kept, and
                `"episode"`, the number to start instead, in `0 .. 2**40 - 1`. Not changed.

        Returns:
            The observation, and `{"solved": False}`.

        Raises:
            OptionsError: For an unknown option, or a seed or episode out of range.
        """
        options = options or {}
        if unknown := options.keys() - {"context", "episode"}:
            raise OptionsError(
                f"`options` has {sorted(map(repr, unknown))}; expected only 'context' and 'episode'"
            )
        if seed is not None:
            seed = within("seed", seed, 0, 2**63 - 1, OptionsError)
        if "episode" in options:
            next_episode = within(
                "options['episode']", options["episode"], 0, (1 << 40) - 1, OptionsError
            )
        else:
            next_episode = self.episode + 1 if seed is None and self._was_reset else 0
        if "context" in options:
            self.check_context(options["context"])

        super().reset(seed=seed)
        if seed is None and not self._was_reset:
            seed = int(self.np_random.integers(2**63))
        if seed is not None:
            self.seed = seed
        if "context" in options:
            self.context = options["context"]
        elif seed is not None:
            self.context = self.make_context(context_key(seed))
        self.episode = next_episode
        self.key = episode_key(self.seed, self.episode)
        self.depth = self.forks = 0
        self.live = self._was_reset = True
        # `Discrete.contains` takes 2 µs; a range takes 0.1.
        space = self.action_space
        if isinstance(space, Discrete):
            self._choices = range(int(space.start), int(space.start) + int(space.n))
        self.start()
        return self.observe(), {"solved": False}

    def step(self, action: ActT) -> tuple[ObsT, float, bool, bool, dict[str, Any]]:
        """Takes one transition, in less than 1 µs beside the hooks.

        Returns:
            Observation, reward, terminated, truncated, and `{"solved": bool}`.

        Raises:
            ValueError: For an action outside the space.
            NotResetError: Before the first reset and after the end of an episode.
        """
        if not self.live:
            raise self._not_live("step")
        reward, terminated, truncated, solved = self.advance(
            self._member(action), fold(self.key, self.depth)
        )
        self.depth += 1
        self.live = not (terminated or truncated)
        return self.observe(), float(reward), terminated, truncated, {"solved": solved}

    def fork(self, n: int = 1, rng: Literal["split", "shared"] = "split") -> list[Self]:
        """Copies this branch, in 2 to 3 µs a child. Of the parent only `forks` changes.

        Children share the context, the spaces and whatever else `branch_fields` does not name;
        the fields named there are copied. A child's `np_random` is a new one, made on first use.

        Args:
            n: How many children to return, at least 1.
            rng: `"split"` gives each child its own future, `"shared"` gives all of them, and the
                parent, the same one.

        Raises:
            ValueError: For `n` or `rng` outside what they may be.
            NotResetError: Before the first reset and after the end of an episode.
        """
        if not self.live:
            raise self._not_live("fork")
        if rng not in ("split", "shared"):
            raise ValueError(f"`rng` is {rng!r}; expected 'split' or 'shared'")
        if operator.index(n) < 1:
            raise ValueError(f"`n` is {n}; expected at least 1 child")
        forks = self.forks
        self.forks += 1
        children = []
        for j in range(n):
            child = type(self).__new__(type(self))
            child.__dict__.update(self.__dict__)
            for name in self.branch_fields:
                setattr(child, name, copy.deepcopy(getattr(self, name)))
            child._np_random = child._np_random_seed = None
            if rng == "split":
                child.key = child_key(self.key, forks, j)
                child.forks = 0
            children.append(child)
        return children

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copies everything but the context, which is immutable and may be large."""
        memo[id(self.context)] = self.context
        memo[id(self)] = twin = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def _member(self, action: Any) -> Any:
        """Returns the action as the rules want it, or raises."""
        if self._choices is None:
            if self.action_space.contains(action):
                return action
        else:
            try:
                index = operator.index(action)
            except TypeError:
                pass
            else:
                if index in self._choices:
                    return index
        raise ValueError(f"`action` is {action!r}; expected a member of {self.action_space}")

    def _not_live(self, call: str) -> NotResetError:
        why = "the episode has ended" if self._was_reset else "there was no reset yet"
        return NotResetError(f"`{call}` on a branch that is not live: {why}; call `reset` first")


def hashed_entries(key: int, count: int) -> NDArray[np.uint32]:
    """Returns `[count] uint32`: two rounds of lowbias32 on each place, with the key's halves.

    Entry `i` is `mix32(mix32(i + low half) + high half)`, modulo 2**32; for large contexts.
    `mix32` is "lowbias32" (Wellons, "Prospecting for hash functions", 2018).
    """
    x = np.arange(count, dtype=np.uint32)
    for half in (key & 0xFFFFFFFF, key >> 32):
        x += np.uint32(half)
        x ^= x >> 16
        x *= np.uint32(0x7FEB352D)
        x ^= x >> 15
        x *= np.uint32(0x846CA68B)
        x ^= x >> 16
    return x


def within(
    name: str,
    value: SupportsIndex,
    least: int,
    most: int,
    error: type[ValueError] = ValueError,
) -> int:
    """Returns an argument as a Python int in `least .. most`, or raises `error`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise error(f"`{name}` is {value!r}; expected an int in {least} .. {most}")
    return number
