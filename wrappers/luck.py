"""Random sources: exact copies of their state, or fresh luck drawn from a branch's key."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.random import BitGenerator, Generator, RandomState, SeedSequence
from numpy.random.bit_generator import ISeedSequence, ISpawnableSeedSequence

from branchrt_gym.oracle import fold

if TYPE_CHECKING:
    from branchrt_gym.wrappers.structural import Copying, Handler

__all__ = ["LUCK", "handlers"]

LUCK = 4 << 40  # beside the words of `branchrt_gym.seeding`: source i of a stack is LUCK + i


class _Blank(ISeedSequence):
    """Seeds a bit generator whose state is overwritten at once: seven times cheaper than a seed."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.zeros(n_words, dtype)


_BLANK = _Blank()


class Seeded(ISpawnableSeedSequence):
    """Words made from a key, in a third of the time that a `SeedSequence` takes."""

    def __init__(self, key: int) -> None:
        """Starts without children."""
        self.key = key
        self.spawned = 0

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """Returns draws number 0 … of the key."""
        shift = 0 if dtype is np.uint64 else 32
        return np.array([fold(self.key, i) >> shift for i in range(n_words)], dtype)

    def spawn(self, n_children: int) -> list[SeedSequence]:  # type: ignore[override]
        """Returns the next children."""
        parent = SeedSequence(self.key, n_children_spawned=self.spawned)
        self.spawned += n_children
        return parent.spawn(n_children)


def _bit_generator(source: BitGenerator, run: Copying) -> BitGenerator:
    kind: Any = type(source)
    if run.key is not None:
        twin = kind(Seeded(run.draw_seed()))
    else:
        twin = kind(_BLANK)
        state = source.__reduce__()[2]
        if isinstance(state, tuple):  # with the seed sequence, whose count of children is state
            twin.__setstate__((state[0], run.copy(state[1])))
        else:
            twin.__setstate__(state)
    run.memo[id(source)] = twin
    return twin  # type: ignore[no-any-return]


def _seed_sequence(source: SeedSequence, run: Copying) -> SeedSequence:
    # A third of what the constructor takes, which mixes the entropy again.
    recipe: Any = source.__reduce_ex__(4)
    make, arguments, state = recipe[:3]
    twin: Any = make(*arguments)
    twin.__setstate__(state)
    run.memo[id(source)] = twin
    return twin  # type: ignore[no-any-return]


def _seeded(source: Seeded, run: Copying) -> Seeded:
    run.memo[id(source)] = twin = Seeded(source.key)
    twin.spawned = source.spawned
    return twin


def _generator(source: Generator, run: Copying) -> Generator:
    run.memo[id(source)] = twin = Generator(run.copy(source.bit_generator))
    return twin


def _random_state(source: RandomState, run: Copying) -> RandomState:
    twin = RandomState(run.copy(source._bit_generator))
    if run.key is None:
        twin.set_state(source.get_state(legacy=False))  # with the normal draw kept for later
    run.memo[id(source)] = twin
    return twin


def _random(source: random.Random, run: Copying) -> random.Random:
    twin = random.Random(0 if run.key is None else run.draw_seed())
    if run.key is None:
        twin.setstate(source.getstate())
    run.memo[id(source)] = twin
    return twin


def _torch_generator(source: torch.Generator, run: Copying) -> torch.Generator:
    twin = torch.Generator(source.device)
    if run.key is None:
        twin.set_state(source.get_state())
    else:
        twin.manual_seed(run.draw_seed())
    run.memo[id(source)] = twin
    return twin


def handlers() -> dict[type, Handler]:
    """Returns how each kind of random source is copied."""
    kinds: dict[type, Handler] = {
        getattr(np.random, name): _bit_generator
        for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    }
    return kinds | {
        SeedSequence: _seed_sequence,
        Seeded: _seeded,
        Generator: _generator,
        RandomState: _random_state,
        random.Random: _random,
        torch.Generator: _torch_generator,
    }
