"""An environment's own protocol, and how an innermost environment is made again.

An environment that keeps state where Python cannot see it may define

    get_branch_state() -> object        a copy of all its state, luck included
    set_branch_state(state) -> None     back to such a state; it may be set many times

on its innermost class. Wrappers around it are copied by structure as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium.envs.registration import load_env_creator

from branchrt_gym.wrappers.kinds import Refusal
from branchrt_gym.wrappers.snapshots import SnapshotProvider, environments
from branchrt_gym.wrappers.structural import Copying, Saved

__all__ = ["Own", "maker"]


def maker(base: Any) -> Callable[[], Any]:
    """Returns what makes another innermost environment, by the same constructor's arguments.

    Raises:
        Refusal: If nothing recorded them: the class is no `EzPickle`, and `spec` is not set.
    """
    kind, spec = type(base), base.spec
    if hasattr(base, "_ezpickle_args"):
        arguments, options = base._ezpickle_args, base._ezpickle_kwargs
        return lambda: _dressed(kind(*arguments, **options), spec)
    if spec is not None and spec.entry_point is not None:
        create = (
            load_env_creator(spec.entry_point)
            if isinstance(spec.entry_point, str)
            else spec.entry_point
        )
        kwargs = dict(spec.kwargs)
        return lambda: _dressed(create(**kwargs).unwrapped, spec)
    raise Refusal(
        "cannot be made again: nothing recorded its constructor's arguments; make it by "
        "`gymnasium.make`, or derive it from `gymnasium.utils.EzPickle`"
    )


def _dressed(base: Any, spec: Any) -> Any:
    base.spec = spec
    return base


def reseed(base: Any, run: Copying) -> None:
    """Gives the random source of a new innermost environment luck from the branch's key."""
    if run.key is not None:
        base._np_random = run.copy(base.np_random)
        base._np_random_seed = -1


class SavedState(Saved):
    """What an environment's own protocol gave."""

    def __init__(self, kind: type, make: Callable[[], Any], state: Any, spaces: Any) -> None:
        """Keeps the state, and how to make an environment for it."""
        self.kind, self.make, self.state, self.spaces = kind, make, state, spaces

    def fits(self, part: object) -> bool:
        """Whether a part is of the same class."""
        return type(part) is self.kind

    def into(self, part: Any, run: Copying) -> None:
        """Sets the state, by the environment's own call."""
        part.set_branch_state(run.copy(self.state))
        part.action_space, part.observation_space = map(run.copy, self.spaces)

    def new(self, run: Copying) -> Any:
        """Makes an environment and sets its state."""
        base = self.make()
        self.into(base, run)
        return base


class Own(SnapshotProvider):
    """Environments with `get_branch_state` and `set_branch_state`."""

    name = "own"

    def fits(self, env: Any) -> str | None:
        """Returns why not: an innermost environment lacks the calls, or a wrapper has no copy."""
        for base in environments(env):
            for call in ("get_branch_state", "set_branch_state"):
                if not callable(getattr(base, call, None)):
                    return f"`{type(base).__name__}` has no `{call}`"
            self.table[type(base)] = _base
        return super().fits(env)


def _base(base: Any, run: Copying) -> Any:
    make = maker(base)
    run.memo[id(base)] = base
    spaces = (run.copy(base.action_space), run.copy(base.observation_space))
    twin: Any = SavedState(type(base), make, base.get_branch_state(), spaces)
    if not run.saving:
        twin = twin.new(run)
        reseed(twin, run)
    run.memo[id(base)] = twin
    return twin
