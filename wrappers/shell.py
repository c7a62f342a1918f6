"""`branchrt/Shell-v0`: a shell in a container as an environment that forks.

    >>> env = BranchWrapper(gymnasium.make("branchrt/Shell-v0", image="task:1"))  # doctest: +SKIP
    >>> observation, info = env.reset()  # doctest: +SKIP
    >>> _, _, _, _, info = env.step("cd /testbed && git status")  # doctest: +SKIP
    >>> left, right = env.fork(2)  # doctest: +SKIP

It is an ordinary environment with the calls `get_branch_state` and `set_branch_state`, so that
`BranchWrapper` and `make_branching` fork it, lazily: a branch is committed when the first of those
that share it steps, and a child that is pruned first costs nothing. Expansion and tree search need
actions that can be enumerated, and a batch needs ones of one shape: there an action is the number
of a command out of `commands`, and `run` takes free text. Where a model writes the commands, the
callable form of `branch_step` forks `ContainerBranch` objects, with any number of children each.

There is no oracle of a shell, so `certify` does not apply; that branches are right is shown by
replay: `commands_run` in a fresh container gives the same files, output and exit codes, as far as
the commands themselves do not depend on time, luck or numbers of processes.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

from branchrt_gym.errors import NotResetError
from branchrt_gym.evaluation.docker.container import Outcome
from branchrt_gym.evaluation.docker.container_branch import (
    SESSION_LIMITS,
    ContainerBranch,
    ContainerBranches,
    Layer,
)
from branchrt_gym.wrappers.object_vector_env import POPULATION, ObjectVectorEnv, make_branching

__all__ = ["ShellEnv", "make_shells"]

KILLED = 137  # the exit code of a command that was killed from outside
GAP = 64  # bytes in which the output says how much of it was left out

Action = int | np.integer[Any] | str
Observation = dict[str, Any]


@dataclass(frozen=True)
class ShellState:
    """A session at one moment; it keeps its layer in the engine."""

    branches: ContainerBranches
    layer: Layer
    commands_run: tuple[str, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Is its own copy: nothing in it changes."""
        return self


class ShellEnv(gymnasium.Env[Observation, Action], EzPickle):
    """A shell session; an action is a command.

    The observation is `{"exit_code": int, "output": uint8 [output_bytes]}`, both streams in their
    order, padded with zeros; of a longer output the first and the last half, with a line between.
    The info has the same as `exit_code` and as text, `output`, and beside them `timed_out` and
    `memory_kills`. See `ContainerBranch` for what passes from command to command.

    Args:
        image: The task's image; or `ContainerBranches`, shared with others, which `close` leaves.
        commands: What the actions are; None for free text.
        goal: A command that is run after each action, in a subshell: where it succeeds the episode
            terminates with reward 1. What it writes stays.
        output_bytes: Of an observation, 256 or more.
        **options: Of `ContainerBranches`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium's

    def __init__(
        self,
        image: str | ContainerBranches,
        commands: Sequence[str] | None = None,
        *,
        goal: str | None = None,
        output_bytes: int = 4096,
        **options: Any,
    ) -> None:
        """Checks the arguments; connects to no engine yet."""
        EzPickle.__init__(self, image, commands, goal=goal, output_bytes=output_bytes, **options)
        if isinstance(commands, str) or (commands is not None and not commands):
            raise ValueError(
                f"`commands` is {commands!r}; expected a list of commands, or None for free text"
            )
        if output_bytes < 256:
            raise ValueError(f"`output_bytes` is {output_bytes}; expected 256 or more")
        if isinstance(image, ContainerBranches) and options:
            raise TypeError(
                f"{', '.join(options)} beside ContainerBranches as `image`; expected them there"
            )
        limits = options.get("limits", SESSION_LIMITS)
        self._options = {**options, "limits": replace(limits, output=output_bytes - GAP)}
        self._image, self._goal, self._size = image, goal, output_bytes
        self._branches: ContainerBranches | None = None
        self._session: ContainerBranch | None = None
        self.commands = None if commands is None else tuple(commands)
        self.commands_run: tuple[str, ...] = ()
        text = spaces.Text(1 << 16, min_length=0, charset=string.printable)
        self.action_space: Any = text if commands is None else spaces.Discrete(len(commands))
        self.observation_space = spaces.Dict(
            {
                "exit_code": spaces.Discrete(256),
                "output": spaces.Box(0, 255, (output_bytes,), np.uint8),
            }
        )

    @property
    def session(self) -> ContainerBranch:
        """The session, for verifiers: fork it to look into it and leave it as it is."""
        if self._session is None:
            raise NotResetError("a shell before the first reset; call `reset` first")
        return self._session

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Opens a session from the image; a seed has no effect."""
        super().reset(seed=seed)
        if isinstance(self._image, ContainerBranches):
            self._branches = self._image
        elif self._branches is None:
            self._branches = ContainerBranches(self._image, **self._options)
        if self._session is not None:
            self._session.prune()
        self._session, self.commands_run = self._branches.open(), ()
        return self._seen(Outcome(0, "", 0.0))

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Runs a command."""
        if self.commands is None:
            if not isinstance(action, str):
                raise TypeError(f"`action` is {type(action).__name__}; expected text, a command")
            command = action
        else:
            if not self.action_space.contains(action):
                raise ValueError(
                    f"`action` is {action!r}; expected the number of a command, 0 … "
                    f"{len(self.commands) - 1}; `run` takes free text"
                )
            command = self.commands[int(action)]
        observation, info = self._seen(self.run(command))
        solved = False
        if self._goal is not None:
            solved = self.run(f"(\n{self._goal}\n)").exit_code == 0
        return observation, float(solved), solved, False, info

    def run(self, command: str, seconds: float | None = None) -> Outcome:
        """Runs a command that need not be an action; it counts among `commands_run`."""
        session = self.session
        self.commands_run += (command,)
        return session.run(command, seconds)

    def close(self) -> None:
        """Ends the session, and removes all of its kind with the last of them."""
        if self._session is not None:
            self._session.prune()
        self._session = self._branches = None

    # As `make_branching` and `BranchWrapper` ask for ------------------------------------------

    def get_branch_state(self) -> ShellState | None:
        """Returns the state; commits what was written since the last time."""
        if self._session is None:
            return None
        return ShellState(self._session.branches, self._session.layer(), self.commands_run)

    def set_branch_state(self, state: ShellState | None) -> None:
        """Goes to a state; its container starts with the next command."""
        if self._session is not None:
            self._session.prune()
        if state is None:
            self._session = None
            return
        self._branches, self.commands_run = state.branches, state.commands_run
        self._session = state.branches.open(state.layer)

    def _seen(self, outcome: Outcome) -> tuple[Observation, dict[str, Any]]:
        text = outcome.output.encode()[: self._size]
        shown = np.zeros(self._size, np.uint8)
        shown[: len(text)] = np.frombuffer(text, np.uint8)
        code = KILLED if outcome.exit_code is None else outcome.exit_code
        info = {
            "exit_code": code,
            "output": outcome.output,
            "timed_out": outcome.timed_out,
            "memory_kills": outcome.memory_kills,
        }
        return {"exit_code": np.int64(code), "output": shown}, info


def make_shells(
    image: str | ContainerBranches,
    commands: Sequence[str],
    *,
    num_envs: int = 1,
    goal: str | None = None,
    output_bytes: int = 4096,
    vector_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> ObjectVectorEnv:
    """Makes a population of shells, all over one `ContainerBranches`; see `ShellEnv`.

        >>> envs = gymnasium.make_vec(  # doctest: +SKIP
        ...     "branchrt/Shell-v0", num_envs=8, num_roots=1, image="task:1",
        ...     commands=["git apply /fix", "git checkout .", "/run_tests.sh"],
        ... )

    Args:
        image: See `ShellEnv`.
        commands: The actions.
        num_envs: `N`, slots.
        goal: See `ShellEnv`.
        output_bytes: See `ShellEnv`.
        vector_kwargs: More of `BranchingVectorEnv`'s arguments.
        **kwargs: As `make_branching` takes them for a population; all others are
            `ContainerBranches`'.
    """
    population = {name: kwargs.pop(name) for name in POPULATION if name in kwargs}
    if isinstance(image, str):
        limits = replace(kwargs.pop("limits", SESSION_LIMITS), output=output_bytes - GAP)
        image = ContainerBranches(image, limits=limits, **kwargs)
        kwargs = {}

    def make() -> ShellEnv:
        return ShellEnv(image, commands, goal=goal, output_bytes=output_bytes, **kwargs)

    return make_branching(make, num_envs, provider="own", vector_kwargs=vector_kwargs, **population)
