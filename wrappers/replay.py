"""Replay: an environment whose state is out of reach is made again and led the same way.

For Box2D, and other C++ that gives its state to nobody. Only the innermost environment is replayed,
the wrappers are copied by structure. A copy costs as much as the steps that it repeats. Those are
all since the environment was made, not since the last reset: BipedalWalker and CarRacing keep their
Box2D world over resets, and its memory of earlier episodes shows in the last bits of later ones.
Where a reset is known to forget everything (LunarLander), the steps since then do.

The last result and the random state are compared with the original's: if they differ, the
environment has luck or memory of its own, and the copy is refused.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np

from branchrt_gym.wrappers.kinds import Refusal, full_name
from branchrt_gym.wrappers.own import maker
from branchrt_gym.wrappers.snapshots import SnapshotProvider, environments
from branchrt_gym.wrappers.structural import CANVASES, Copying, Handler, Saved, layers
from branchrt_gym.wrappers.values import same as shared

__all__ = ["Recorder", "Replay"]

# Classes whose reset makes the whole world anew.
FORGETFUL = frozenset({"gymnasium.envs.box2d.lunar_lander.LunarLander"})


class _Luck:
    """A place in a log where the environment was given another random source."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


class _Reset:
    """A reset in a log, and what it was called with."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


class _Render:
    """A picture in a log: to draw one may change what comes (LunarLander's sparks age by it)."""


class Log:
    """How an innermost environment came to its state.

    Attributes:
        start: Its random source at the start, and the seed known of that.
        entries: Resets, actions, pictures and changes of luck since; they never change.
        last: The last result, of a reset or a step; None before the first.
        luck: The state of the random source after that; a wrapper may draw from it too.
    """

    def __init__(self, base: Any) -> None:
        """Starts at an environment as it is."""
        generator = copy.deepcopy(base.np_random)  # seeds it, if nothing did
        self.start = (generator, base._np_random_seed)
        self.entries: list[Any] = []
        self.last: Any = None
        self.luck = _state(base)

    def copy(self) -> Log:
        """Returns a log that goes on by itself."""
        twin = copy.copy(self)
        twin.entries = self.entries.copy()
        return twin

    def add(self, base: Any, entry: Any) -> None:
        """Adds what is about to happen, and before it the luck that others left it."""
        if _state(base) != self.luck:
            self.entries.append(_Luck(copy.deepcopy(base.np_random)))
        self.entries.append(entry)

    def end(self, base: Any, result: Any) -> None:
        """Adds what came of it."""
        self.last = copy.deepcopy(result)
        self.luck = _state(base)

    def lead(self, base: Any) -> None:
        """Leads an environment, a new one or one whose reset forgets, to where the log ends.

        Raises:
            Refusal: If it does not get there: the last results or the random states differ.
        """
        generator, base._np_random_seed = self.start
        base._np_random = copy.deepcopy(generator)
        result = None
        for entry in self.entries:
            if isinstance(entry, _Reset):
                result = base.reset(**copy.deepcopy(entry.options))
            elif isinstance(entry, _Render):
                base.render()
            elif isinstance(entry, _Luck):
                base._np_random = copy.deepcopy(entry.generator)
            else:
                result = base.step(copy.deepcopy(entry))
        if not _equal(result, self.last) or _state(base) != self.luck:
            raise Refusal(
                f"comes to another state when its {len(self.entries)} steps are replayed from the "
                "same seed: it has luck or memory outside `np_random`"
            )


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes down how the innermost environment is reset and stepped."""

    def __init__(self, env: Any) -> None:
        """Starts before the first reset."""
        super().__init__(env)
        self.log = Log(env)
        self.forgets = any(full_name(kind) in FORGETFUL for kind in type(env).__mro__)

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """The environment's own: `gymnasium.make(spec)` shall not make a recorder."""
        return self.env.spec

    def reset(self, **kwargs: Any) -> Any:
        """Adds a reset, or begins a new log if it forgets what was before."""
        log = Log(self.env) if self.forgets else self.log
        log.add(self.env, _Reset(copy.deepcopy(kwargs)))
        result = self.env.reset(**kwargs)
        log.end(self.env, result)
        self.log = log
        return result

    def step(self, action: Any) -> Any:
        """Adds an action."""
        self.log.add(self.env, copy.deepcopy(action))
        result = self.env.step(action)
        self.log.end(self.env, result)
        return result

    def render(self) -> Any:
        """Adds a picture."""
        self.log.add(self.env, _Render())
        picture = self.env.render()
        self.log.luck = _state(self.env)
        return picture


class _Base(Saved):
    """Stands in a snapshot for the innermost environment, where a closure leads to it."""


class SavedLog(Saved):
    """A snapshot's log, and what makes an environment for it."""

    def __init__(self, recorder: Recorder, run: Copying) -> None:
        """Keeps what is needed without the environment."""
        base = recorder.env
        self.kind = type(base)
        self.make = maker(base)
        self.log = recorder.log.copy()
        self.forgets = recorder.forgets
        self.luck = (base.np_random if run.trial else run.copy(base.np_random), base.np_random_seed)
        self.spaces = (run.copy(base.action_space), run.copy(base.observation_space))
        self.base = _Base()

    def fits(self, part: object) -> bool:
        """Whether a part records the same kind of environment."""
        return isinstance(part, Recorder) and type(part.env) is self.kind

    def stands_for(self, part: Any) -> dict[int, Any]:
        """The live environment takes the place of the one that closures led to."""
        if not self.forgets:
            old = vars(part.env)
            part.env = self.make()
            for name in (CANVASES | {"clock"}) & old.keys():
                setattr(part.env, name, old[name])
        return {id(self.base): part.env}

    def into(self, part: Any, run: Copying) -> None:
        """Leads the live environment here; or, if it does not get here, back."""
        try:
            self.log.lead(part.env)
        except Refusal:
            part.log.lead(part.env)
            raise
        self._dress(part, run)

    def new(self, run: Any) -> Any:
        """Makes an environment and leads it here."""
        base = self.make()
        self.log.lead(base)
        twin = Recorder(base)
        run.memo[id(self.base)] = base
        self._dress(twin, run)
        return twin

    def _dress(self, part: Any, run: Copying) -> None:
        part.log = self.log.copy()
        base = part.env
        base._np_random, base._np_random_seed = run.copy(self.luck[0]), self.luck[1]
        base.action_space, base.observation_space = map(run.copy, self.spaces)


class Replay(SnapshotProvider):
    """Environments that come to the same state by the same seed and actions."""

    name = "replay"

    def foreign(self) -> dict[type, Handler]:
        """Recorders are led; what they need for it is shared."""
        return {Recorder: _recorder, Log: shared}

    def fits(self, env: Any) -> str | None:
        """Returns why not: it cannot be made again, or a wrapper has no copy."""
        already = bool(_recorders(env))
        used = any(base._np_random is not None for base in environments(env))
        stack = _recorded(env, True)
        try:
            recorders = _recorders(stack)
            if not recorders:
                return "there is no single environment to record"
            for recorder in recorders:
                maker(recorder.env)().close()
                if not (already or recorder.forgets) and used:
                    return (
                        f"`{type(recorder.env).__name__}` was reset before anybody wrote "
                        'down its steps; wrap it first, with `provider="replay"`'
                    )
            Copying(self.table, saving=True, trial=True).copy(stack)
        except Refusal as refusal:
            refusal.close(type(layers(env)[-1]).__name__)
            return str(refusal)
        except Exception as error:  # whatever a constructor raises
            return f"`{type(layers(env)[-1]).__name__}` cannot be made again: {error}"
        finally:
            if not already:
                _recorded(stack, False)
        return None

    def prepare(self, env: Any) -> Any:
        """Puts recorders around the innermost environments, under the lowest wrapper."""
        return _recorded(env, True)


def _recorder(recorder: Recorder, run: Copying) -> Any:
    base = recorder.env
    saved = SavedLog(recorder, run)
    if run.saving:
        run.memo[id(base)] = saved.base
        run.memo[id(recorder)] = saved
        return saved
    # The random source and the spaces are copies already.
    twin = saved.new(_Shared(run))
    if run.key is not None:
        twin.env._np_random_seed = -1
    run.memo[id(base)] = twin.env
    run.memo[id(recorder)] = twin
    return twin


class _Shared:
    def __init__(self, run: Copying) -> None:
        self.memo = run.memo

    def copy(self, value: Any) -> Any:
        return value


def _state(base: Any) -> Any:
    return base.np_random.bit_generator.state


def _equal(left: Any, right: Any) -> bool:
    """Whether two results are equal, bit for bit."""
    if isinstance(left, np.ndarray | np.generic):
        left, right = np.asarray(left), np.asarray(right)
        return (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right) or left is right


def _recorded(env: Any, recording: bool) -> Any:
    """Puts a recorder around each innermost environment, or takes it away; returns the stack."""
    found = layers(env)
    base = found.pop()
    if not isinstance(base, gymnasium.Env):
        inner = vars(base).get("envs")
        if isinstance(inner, list | tuple) and all(isinstance(e, gymnasium.Env) for e in inner):
            base.envs = type(inner)(_recorded(each, recording) for each in inner)
        return env
    if found and isinstance(found[-1], Recorder):
        top = found.pop()
    else:
        top = Recorder(base)
    bottom = top if recording else base
    if not found:
        return bottom
    found[-1].env = bottom
    return env


def _recorders(env: Any) -> list[Recorder]:
    found = layers(env)
    if isinstance(found[-1], gymnasium.Env):
        return [layer for layer in found if isinstance(layer, Recorder)]
    inner = vars(found[-1]).get("envs")
    if not isinstance(inner, list | tuple):
        return []
    return [recorder for each in inner for recorder in _recorders(each)]
