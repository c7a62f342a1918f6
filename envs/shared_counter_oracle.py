"""The scalar oracle of branchrt/SharedCounter-v0, in plain Python and NumPy."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from branchrt_gym.envs.shared_counter_render import draw, text
from branchrt_gym.errors import NotResetError
from branchrt_gym.oracle import Oracle, bounded, fold, hashed_entries, within

__all__ = ["SharedCounterContext", "SharedCounterOracle"]

MASK32 = 2**32 - 1
INT31 = 2**31 - 1
PACE = 0x9E3779B1  # odd, so that no two counters meet by it
GOALS = 8  # values of a counter's upper three bits


@dataclass(frozen=True, eq=False)
class SharedCounterContext:
    """What the branches of a context share.

    Attributes:
        table: `[width] int32`, what each place adds to a counter; read-only.
        goal: The upper three bits of a counter that scores, in `0 .. 7`.
    """

    table: NDArray[np.int32]
    goal: int

    def __post_init__(self) -> None:
        """Copies the table if somebody could still write to it."""
        if self.table.dtype != np.int32 or self.table.ndim != 1:
            raise ValueError(
                f"`table` is {self.table.dtype} of shape {self.table.shape}; "
                "expected int32 of shape (width,)"
            )
        if self.table.flags.writeable:
            table = self.table.copy()
            table.flags.writeable = False
            object.__setattr__(self, "table", table)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by constructor, since arrays come out of a pickle writeable."""
        return type(self), (self.table, self.goal)


class SharedCounterOracle(Oracle[NDArray[np.int32], int | np.int64]):
    """A counter that an action and an entry of a wide shared table advance.

    The plainest environment with a shared state, to start from. A branch has a counter of 32 bits
    and a score. A step adds the action, multiplies, and adds the entry of the context's table at
    the place that the counter pointed to. It scores 1 if the counter's upper three bits are then
    the context's goal. The episode is solved when the score reaches `target`. With four actions
    and 32 steps, a random branch scores about 4, the best action at each step 16, a beam of four
    branches 22.

    Actions, `Discrete(actions)`: what to add.

    Observations, `int32[5]`: the context's goal, the counter (the same bits, signed), the entry of
    the table that it points to, the score and the depth.

    With `mutation`, each branch has a table of its own, the context's to begin with. Each step
    writes over `mutation` percent of it, one run, rounded up, and later steps read what is there
    then: the measure of how a large state is kept of which branches write a little.

    Rewards: 1 for a step that scores, else 0. Terminated when the score reaches `target`, which is
    `info["solved"]`; truncated after `depth` steps without it.

    The rules, exactly. Integers are unsigned 32-bit and wrap; the table and the observation have
    the same bits, signed. `mix32` is "lowbias32" (Wellons, "Prospecting for hash functions", 2018);
    `fold` and `bounded` are those of `branchrt_gym.oracle`; `k` is the context's 64-bit key, `lo`
    and `hi` its lower and upper halves.

        entry i  = mix32(mix32(i + lo) + hi)                              i = 0 .. width - 1
        goal     = bounded(fold(k, 0), 8)
        place(c) = (c * width) >> 32                                      in 64 bits
        an episode starts with counter = low 32 bits of fold(episode key, 0), score = 0
        counter' = (counter + action) * 0x9E3779B1 + entry[place(counter)]
        reward   = 1 if counter' >> 29 == goal else 0;  score' = score + reward
        mutation : run = ceil(width * mutation / 100);
                   first = (mix32(counter') * (width - run + 1)) >> 32    in 64 bits
                   then entry[i] = mix32(i * 0x9E3779B1 + counter')       first <= i < first + run

    Args:
        width: Entries of the table, in `1 .. 2**31 - 1`.
        actions: In `1 .. 2**31 - 1`.
        depth: Steps of an episode, in `1 .. 2**31 - 1`.
        target: Score that solves a root, in `1 .. 2**31 - 1`: the difficulty.
        mutation: Percent of the table that a step writes over for its branch, in `0 .. 100`.
        render_mode: None, `"rgb_array"` or `"ansi"`.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}  # noqa: RUF012
    branch_fields = ("counter", "score")

    context: SharedCounterContext
    counter: int
    score: int
    own: NDArray[np.int32]  # with `mutation`; replaced, never written, so forks share it

    def __init__(
        self,
        width: int = 65_536,
        actions: int = 4,
        depth: int = 32,
        target: int = 20,
        mutation: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """Checks the parameters; a context is made at the first reset."""
        self.width = within("width", width, 1, INT31)
        self.actions = within("actions", actions, 1, INT31)
        self.depth_limit = within("depth", depth, 1, INT31)
        self.target = within("target", target, 1, INT31)
        self.mutation = within("mutation", mutation, 0, 100)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"`render_mode` is {render_mode!r}; expected None, 'rgb_array' or 'ansi'"
            )
        self.render_mode = render_mode
        self.action_space = Discrete(self.actions)
        low = np.array([0, -(2**31), -(2**31), 0, 0], np.int32)
        high = np.array([GOALS - 1, INT31, INT31, self.target, self.depth_limit], np.int32)
        self.observation_space = Box(low, high, dtype=np.int32)

    def make_context(self, key: int) -> SharedCounterContext:
        """Makes the table, by two hashes an entry, and draws the goal."""
        table = hashed_entries(key, self.width).view(np.int32)
        table.flags.writeable = False
        return SharedCounterContext(table, bounded(fold(key, 0), GOALS))

    def check_context(self, context: object) -> None:
        """Refuses what is not a `SharedCounterContext` of this width."""
        if not isinstance(context, SharedCounterContext):
            raise ValueError(
                f"`context` is a {type(context).__name__}; expected a SharedCounterContext"
            )
        if len(context.table) != self.width:
            raise ValueError(
                f"`context` has {len(context.table)} entries; expected {self.width}, as this "
                "environment was made with"
            )

    def start(self) -> None:
        """Draws the counter by the episode's key."""
        self.counter = fold(self.key, 0) & MASK32
        self.score = 0
        if self.mutation:
            self.own = self.context.table

    def advance(self, action: int, key: int) -> tuple[int, bool, bool, bool]:
        """Advances the counter; no chance is involved."""
        self.counter = (self.counter + action) * PACE + self._entry() & MASK32
        reward = int(self.counter >> 29 == self.context.goal)
        self.score += reward
        if self.mutation:
            self._mutate()
        solved = self.score >= self.target
        return reward, solved, not solved and self.depth + 1 >= self.depth_limit, solved

    def observe(self) -> NDArray[np.int32]:
        """Returns goal, counter, the entry it points to, score and depth."""
        signed = self.counter - (self.counter >> 31 << 32)
        return np.array(
            (self.context.goal, signed, self._entry(), self.score, self.depth), np.int32
        )

    def render(self) -> Any:
        """Returns a `[200, 320, 3] uint8` picture, a text, or None, as `render_mode` says."""
        if self.render_mode is None:
            return None
        if not self._was_reset:
            raise NotResetError("`render` before the first reset; call `reset` first")
        picture = draw if self.render_mode == "rgb_array" else text
        return picture(
            self.counter,
            self.score,
            self.depth,
            goal=self.context.goal,
            target=self.target,
            depth_limit=self.depth_limit,
        )

    def _entry(self) -> int:
        table = self.own if self.mutation else self.context.table
        return table.item(self.counter * self.width >> 32)

    def _mutate(self) -> None:
        """Writes one run over a copy of the branch's table."""
        run = math.ceil(self.width * self.mutation / 100)
        bits = _mix32(np.array([self.counter], np.uint32)).item()
        first = bits * (self.width - run + 1) >> 32
        places = np.arange(first, first + run, dtype=np.uint32)
        places *= np.uint32(PACE)
        places += np.uint32(self.counter)
        self.own = self.own.copy()
        self.own[first : first + run] = _mix32(places).view(np.int32)


def _mix32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Scrambles 32 bits, one to one: Wellons' lowbias32."""
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)
