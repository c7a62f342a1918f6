"""The scalar oracle of branchrt/DeepTree-v0, in plain Python and NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from branchrt_gym.envs.deep_tree_render import draw, text
from branchrt_gym.errors import NotResetError
from branchrt_gym.oracle import Oracle, bounded, fold, hashed_entries, within

__all__ = ["DeepTreeContext", "DeepTreeOracle"]

MASK32 = 2**32 - 1
INT31 = 2**31 - 1
MAX_POOR = 6


@dataclass(frozen=True, eq=False)
class DeepTreeContext:
    """What the branches of a context share.

    Attributes:
        entries: `[width] int16`, what landing on each position pays; read-only.
        starts: Positions that episodes start from.
        target: Score that solves a root.
    """

    entries: NDArray[np.int16]
    starts: tuple[int, ...]
    target: int

    def __post_init__(self) -> None:
        """Copies the entries if somebody could still write to them."""
        if self.entries.dtype != np.int16 or self.entries.ndim != 1:
            raise ValueError(
                f"`entries` is {self.entries.dtype} of shape {self.entries.shape}; "
                "expected int16 of shape (width,)"
            )
        if self.entries.flags.writeable:
            entries = self.entries.copy()
            entries.flags.writeable = False
            object.__setattr__(self, "entries", entries)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by constructor, since arrays come out of a pickle writeable."""
        return type(self), (self.entries, self.starts, self.target)


class DeepTreeOracle(Oracle[NDArray[np.float32], int | np.int64]):
    """A deep tree over one wide table, whose best leaves lie behind poor first steps.

    The context is a table of `width` integers in `-v .. v` (`v` is `value_range`). A branch stands
    on a position of the table. Each of the `fanout` actions leads to another position, by a hash of
    the position, the action and the depth; the entry there is the reward. After `depth` steps the
    episode ends, and it is solved if the score, the sum of the rewards, is at least the context's
    target.

    The target is one that can be reached. From each start the context plants one path of `depth`
    actions and writes over the entries that it lands on: `-v` for its first few steps, `v` for
    all later ones. How many are poor is drawn per context, from 1 to `min(6, depth)`. So whoever
    ranks branches by score sees the good ones last, and a beam needs to be about `fanout**poor`
    wide to keep them. The target is the lowest score of the planted paths.

    Actions, `Discrete(fanout)`: which child to step to.

    Observations, `float32[2 + window]` in `[-1, 1]`: the depth over `depth`, the score over
    `v * depth`, and the `window` entries around the position over `v`, those beyond an end of the
    table repeating the last one there. All are quotients of two float32.

    Rewards: the entry landed on, an integer. Terminated after `depth` steps, never truncated.
    `info["solved"]` is the verdict.

    The rules, exactly. Integers are unsigned 32-bit and wrap, unless said otherwise; `mix32` is
    "lowbias32" (Wellons, "Prospecting for hash functions", 2018); `fold` and `bounded` are those of
    `branchrt_gym.oracle`; `below(x, n)` is `(x * n) >> 32` in 64 bits; `k` is the context's 64-bit
    key, `lo` and `hi` its lower and upper halves.

        child(position, action, depth) =
            below(mix32(position * 31 + action * 0x9E3779B1 + depth * 0x85EBCA6B), width)
        entry i    = ((mix32(mix32(i + lo) + hi) >> 16) * (2 * v + 1) >> 16) - v
        start s    = below(low 32 bits of fold(k, s), width)              s = 0 .. starts - 1
        poor       = 1 + bounded(fold(k, starts), min(6, depth))
        action t of planted path s = bounded(fold(fold(k, starts + 1 + s), t), fanout)
        planting   : first the entries that any path lands on in its step t >= poor (from 0) become
                     v, then those that any path lands on in its step t < poor become -v
        target     = the lowest sum of the entries that a planted path lands on, after planting
        an episode starts at start number bounded(fold(episode key, 0), starts)

    Args:
        width: Entries of the table, in `1 .. 2**31 - 1`.
        fanout: Actions, in `1 .. 2**31 - 1`.
        depth: Steps of an episode. A score must fit int32: `depth * value_range < 2**31`.
        value_range: Largest absolute value of an entry, in `1 .. 16383`.
        starts: Starts, and planted paths, of a context; in `1 .. 2**31 - 1`.
        window: Entries that an observation shows, an odd number.
        render_mode: None, `"rgb_array"` or `"ansi"`.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}  # noqa: RUF012
    branch_fields = ("position", "score")

    context: DeepTreeContext
    position: int
    score: int

    def __init__(
        self,
        width: int = 262_144,
        fanout: int = 4,
        depth: int = 64,
        value_range: int = 1000,
        starts: int = 8,
        window: int = 9,
        render_mode: str | None = None,
    ) -> None:
        """Checks the parameters; a context is made at the first reset."""
        self.width = within("width", width, 1, INT31)
        self.fanout = within("fanout", fanout, 1, INT31)
        self.value_range = within("value_range", value_range, 1, 16383)
        self.depth_limit = within("depth", depth, 1, INT31 // self.value_range)
        self.starts = within("starts", starts, 1, INT31)
        self.window = within("window", window, 1, INT31)
        if self.window % 2 == 0:
            raise ValueError(f"`window` is {window}; expected an odd number, centred on a position")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"`render_mode` is {render_mode!r}; expected None, 'rgb_array' or 'ansi'"
            )
        self.render_mode = render_mode
        self.action_space = Discrete(self.fanout)
        self.observation_space = Box(-1.0, 1.0, (2 + self.window,), np.float32)
        self._offsets = np.arange(self.window) - self.window // 2
        self._scale = np.full(2 + self.window, self.value_range, np.float32)
        self._scale[:2] = self.depth_limit, self.value_range * self.depth_limit

    def make_context(self, key: int) -> DeepTreeContext:
        """Makes the table, plants the paths and takes their lowest score as the target.

        Cost: two hashes an entry in NumPy, and about 2 µs a planted step.
        """
        entries = _table(key, self.width, self.value_range)
        starts = tuple((fold(key, s) & MASK32) * self.width >> 32 for s in range(self.starts))
        poor = 1 + bounded(fold(key, self.starts), min(MAX_POOR, self.depth_limit))
        paths = []
        for s, position in enumerate(starts):
            actions = fold(key, self.starts + 1 + s)
            path = []
            for t in range(self.depth_limit):
                position = self._child(position, bounded(fold(actions, t), self.fanout), t)
                path.append(position)
            paths.append(path)
        for path in paths:
            entries[path[poor:]] = self.value_range
        for path in paths:
            entries[path[:poor]] = -self.value_range
        target = min(sum(entries[path].tolist()) for path in paths)
        entries.flags.writeable = False
        return DeepTreeContext(entries, starts, target)

    def check_context(self, context: object) -> None:
        """Refuses what is not a `DeepTreeContext` of this width and number of starts."""
        if not isinstance(context, DeepTreeContext):
            raise ValueError(f"`context` is a {type(context).__name__}; expected a DeepTreeContext")
        given = len(context.entries), len(context.starts)
        if given != (self.width, self.starts):
            raise ValueError(
                f"`context` has {given[0]} entries and {given[1]} starts; "
                f"expected {self.width} and {self.starts}, as this environment was made with"
            )

    def start(self) -> None:
        """Stands on one of the context's starts, drawn by the episode's key."""
        self.position = self.context.starts[bounded(fold(self.key, 0), self.starts)]
        self.score = 0

    def advance(self, action: int, key: int) -> tuple[int, bool, bool, bool]:
        """Steps to a child and collects the entry there; no chance is involved."""
        self.position = self._child(self.position, action, self.depth)
        reward = self.context.entries.item(self.position)
        self.score += reward
        ended = self.depth + 1 == self.depth_limit
        return reward, ended, False, ended and self.score >= self.context.target

    def observe(self) -> NDArray[np.float32]:
        """Returns depth, score and the entries around the position, each over its largest value."""
        entries = self.context.entries
        low = self.position - self.window // 2
        observation = np.empty(2 + self.window, np.float32)
        observation[0] = self.depth
        observation[1] = self.score
        if 0 <= low <= self.width - self.window:
            observation[2:] = entries[low : low + self.window]
        else:
            observation[2:] = entries.take(self._offsets + self.position, mode="clip")
        observation /= self._scale
        return observation

    def render(self) -> Any:
        """Returns a `[200, 320, 3] uint8` picture, a text, or None, as `render_mode` says."""
        if self.render_mode is None:
            return None
        if not self._was_reset:
            raise NotResetError("`render` before the first reset; call `reset` first")
        picture = draw if self.render_mode == "rgb_array" else text
        return picture(
            self.context.entries,
            self.position,
            self.score,
            self.depth,
            depth_limit=self.depth_limit,
            value_range=self.value_range,
            target=self.context.target,
        )

    def _child(self, position: int, action: int, depth: int) -> int:
        x = position * 31 + action * 0x9E3779B1 + depth * 0x85EBCA6B & MASK32
        return mix32(x) * self.width >> 32


def mix32(x: int) -> int:
    """Scrambles 32 bits, one to one: Wellons' lowbias32."""
    x = (x ^ x >> 16) * 0x7FEB352D & MASK32
    x = (x ^ x >> 15) * 0x846CA68B & MASK32
    return x ^ x >> 16


def _table(key: int, width: int, value_range: int) -> NDArray[np.int16]:
    """Returns the entries of a context before planting: two rounds of mix32 on each place."""
    x = hashed_entries(key, width)
    x >>= 16
    x *= np.uint32(2 * value_range + 1)
    x >>= 16
    return x.astype(np.int16) - np.int16(value_range)
