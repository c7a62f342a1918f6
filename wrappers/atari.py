"""Atari: emulator states with their random sources, the sticky action and the last frame.

What ale-py's own states leave out is put back here. The action that a sticky step repeats: an act
that is taken for certain, between two restores, sets it. The screen, which would show the frame
from before the restore: kept beside the state until the next act. Whether the game was stepped at
all since its reset, which shows in Qbert and Tetris: an emulator is brought there by an act, or by
a reset, before the restore. Another emulator takes 0.1 s to make, so that those of branches that
are gone are used again.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from importlib import import_module
from typing import Any

from branchrt_gym.wrappers.atari_luck import taken, with_luck, with_next_taken
from branchrt_gym.wrappers.kinds import Refusal, full_name
from branchrt_gym.wrappers.snapshots import SnapshotProvider, environments
from branchrt_gym.wrappers.structural import Copying, Handler, Saved
from branchrt_gym.wrappers.values import same

__all__ = ["Atari", "Emulator"]

Kept = tuple[Any, Any, tuple[Any, ...], bool]
"""A state, the action in force, the pictures, and whether the game was stepped since its reset."""

PICTURES = ("getScreen", "getScreenRGB", "getScreenGrayscale")
SETTINGS = {
    "Float": ("repeat_action_probability",),
    "Int": ("max_num_frames_per_episode",),
    "Bool": ("sound_obs", "color_averaging"),
}


class Emulator:
    """An `ALEInterface` whose acts are remembered; it has all of its calls.

    Attributes:
        game: What it runs: game, mode, difficulty and settings; equal ones stand in for each other.
        acts: The last actions and strengths since the reset, the newest first.
    """

    def __init__(self, ale: Any, game: tuple[Any, ...]) -> None:
        """Takes over an emulator, which may have been used before."""
        self.ale = ale
        self.game = game
        self.sticky: float = ale.getFloat("repeat_action_probability")
        self.acts: deque[tuple[Any, float] | None] = deque(maxlen=64)
        self._fresh = ale.getEpisodeFrameNumber() == 0
        self._stepped = not self._fresh
        self._before: Any = None  # the action in force before these acts
        self._kept = False
        for name in dir(ale):
            if not name.startswith("__") and not hasattr(type(self), name):
                setattr(self, name, getattr(ale, name))

    def act(self, action: Any, paddle_strength: float = 1.0) -> Any:
        """Steps one frame."""
        self.acts.appendleft((action, paddle_strength))
        self._stepped = True
        if self._kept:
            self._see()
        return self.ale.act(action, paddle_strength)

    def reset_game(self) -> None:
        """Starts a game; no action is in force."""
        self.ale.reset_game()
        self.acts.clear()
        self._fresh, self._stepped, self._before = True, False, None
        if self._kept:
            self._see()

    def loadROM(self, path: Any) -> None:
        """Loads a game; no action is in force."""
        self.ale.loadROM(path)
        self.acts.clear()
        self._fresh, self._stepped, self._before = True, False, None

    def save(self) -> Kept:
        """Returns the state with its random sources, and what it leaves out."""
        state = self.ale.cloneState(include_rng=True)
        force = None
        if self.sticky > 0:
            force = taken(state, self.acts, self.sticky) or self._before
            if force is None and not self._fresh:
                raise Refusal(
                    "was stepped before it was watched: the action that its sticky steps repeat is "
                    "unknown; wrap it first, or reset it"
                )
        return state, force, tuple(getattr(self, name)() for name in PICTURES), self._stepped

    def load(self, state: Any, force: Any, pictures: tuple[Any, ...], stepped: bool) -> None:
        """Goes to a state, and puts back what it leaves out."""
        if self.sticky > 0:
            self.ale.restoreState(with_next_taken(state))
        if self.sticky > 0 or (stepped and not self._stepped):
            self.ale.act(*(force or (sys.modules["ale_py"].Action.NOOP, 1.0)))
            self._stepped = True
        if self._stepped and not stepped:
            self.ale.reset_game()
        self._stepped = stepped
        self.ale.restoreState(state)
        self.acts.clear()
        self._before = force
        self._fresh = True
        self._kept = True
        for name, picture in zip(PICTURES, pictures, strict=True):
            setattr(self, name, picture.copy)

    def _see(self) -> None:
        self._kept = False
        for name in PICTURES:
            setattr(self, name, getattr(self.ale, name))


class Emulators:
    """The emulators that nobody uses any more, by game."""

    def __init__(self) -> None:
        """Starts empty."""
        self._kept: dict[tuple[Any, ...], list[Emulator]] = {}
        self._owned: dict[weakref.ref[Any], Emulator] = {}

    def loaded(self, game: tuple[Any, ...], saved: Kept) -> Emulator:
        """Returns an emulator in a state, a kept one if there is one."""
        kept = self._kept.setdefault(game, [])
        emulator = None
        for _ in range(len(kept)):
            candidate = kept.pop()
            if sys.getrefcount(candidate) == 2:  # this name, and the argument
                emulator = candidate
                break
            kept.insert(0, candidate)
        if emulator is None:
            emulator = _made(game)
        emulator.load(*saved)
        return emulator

    def keep_after(self, owner: Any, emulator: Emulator) -> None:
        """Keeps an emulator for others as soon as its owner goes."""
        self._owned[weakref.ref(owner, self._give_back)] = emulator

    def _give_back(self, owner: weakref.ref[Any]) -> None:
        emulator = self._owned.pop(owner)
        self._kept.setdefault(emulator.game, []).append(emulator)


class SavedEmulator(Saved):
    """A snapshot's emulator state."""

    def __init__(self, game: tuple[Any, ...], saved: Kept, pool: Emulators) -> None:
        """Keeps the state, and where to get an emulator for it."""
        self.game, self.saved, self.pool = game, saved, pool

    def fits(self, part: object) -> bool:
        """Whether a part runs the same game."""
        return isinstance(part, Emulator) and part.game == self.game

    def into(self, part: Any, run: Copying) -> None:
        """Loads the state into a running emulator."""
        part.load(*self.saved)

    def new(self, run: Copying) -> Any:
        """Returns another emulator in this state."""
        return self.pool.loaded(self.game, self.saved)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the state without the emulators."""
        return _saved_emulator, (self.game, self.saved)


def _saved_emulator(game: tuple[Any, ...], saved: Any) -> SavedEmulator:
    return SavedEmulator(game, saved, Emulators())


class Atari(SnapshotProvider):
    """Environments of `ale_py`, in Gymnasium's wrappers and yours."""

    name = "atari"

    def foreign(self) -> dict[type, Handler]:
        """Emulators by their states; actions are immutable."""
        ale_py = sys.modules.get("ale_py")
        if ale_py is None:
            return {}
        self._pool = pool = Emulators()

        def emulator(value: Emulator, run: Copying) -> Any:
            state, *others = value.save()
            if run.key is not None:
                state = with_luck(state, (run.draw_seed(), run.draw_seed()))
            saved: Any = SavedEmulator(value.game, (state, *others), pool)
            twin = run.memo[id(value)] = saved if run.saving else saved.new(run)
            return twin

        return {
            Emulator: emulator,
            ale_py.ALEInterface: _unwatched,
            ale_py.ALEState: same,
            ale_py.Action: same,
        }

    def fits(self, env: Any) -> str | None:
        """Returns why not: it is no Atari environment, or a wrapper has no copy."""
        if not all(map(_is_atari, environments(env))):
            return "it is no environment of `ale_py`"
        return super().fits(env)

    def prepare(self, env: Any) -> Any:
        """Puts an `Emulator` in the place of each environment's `ALEInterface`."""
        for each in environments(env):
            if not isinstance(each.ale, Emulator):
                each.ale = Emulator(each.ale, _game(each))
        return env

    def copy(self, env: Any, key: int | None = None) -> Any:
        """Copies, and sees to it that the copy's emulator is kept when the copy goes."""
        twin = super().copy(env, key)
        for each in environments(twin):
            self._pool.keep_after(each, each.ale)
        return twin


def _is_atari(env: Any) -> bool:
    return any(full_name(kind) == "ale_py.env.AtariEnv" for kind in type(env).__mro__)


def _game(env: Any) -> tuple[Any, ...]:
    settings = tuple(
        (kind, name, getattr(env.ale, f"get{kind}")(name))
        for kind, names in SETTINGS.items()
        for name in names
    )
    return env._game, env._game_mode, env._game_difficulty, settings


def _made(game: tuple[Any, ...]) -> Emulator:
    ale_py: Any = import_module("ale_py")
    rom, mode, difficulty, settings = game
    ale = ale_py.ALEInterface()
    ale.setLoggerMode(ale_py.LoggerMode.Error)
    for kind, name, value in settings:
        getattr(ale, f"set{kind}")(name, value)
    ale.loadROM(ale_py.roms.get_rom_path(rom))
    if mode is not None:
        ale.setMode(mode)
    if difficulty is not None:
        ale.setDifficulty(difficulty)
    return Emulator(ale, game)


def _unwatched(value: Any, run: Copying) -> Any:
    if run.trial:
        return value
    raise Refusal("is an emulator that nobody watches")
