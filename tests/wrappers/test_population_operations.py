"""Random operations on populations of ordinary environments, against environments without any.

`BRANCHRT_SOAK=1` runs the whole of it: 10,000 operations over 256 slots of each family.
"""

import gc
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from driving import bits, needs
from families import FAMILIES, WHOLE, Family, nothing_left

from branchrt_gym import make_branching

ROOTS, SEED, RESET = 4, 11, object()
BELOW = {"fork": 0.2, "prune": 0.32, "snapshot": 0.37, "restore": 0.42, "compact": 0.5}

# What was done to a branch since its seed: (what came before, the last), shared by its children.
Path_ = tuple[Any, Any]


class Population:
    """A population, and the history of the branch in each slot."""

    def __init__(self, family: Family, seed: int = 9) -> None:
        self.family, self.seed = family, seed
        self.envs = make_branching(
            family.make,
            family.slots,
            num_roots=ROOTS,
            autoreset_mode="NextStep",
            record_lineage=not WHOLE,  # for which there would have to be room
        )
        space = self.envs.single_action_space
        space.seed(9)
        self.actions = [space.sample() for _ in range(64)]
        self.counts: Counter[str] = Counter()
        self.envs.reset(seed=SEED)
        self.start = self.envs.snapshot()
        self.begin()

    def begin(self) -> None:
        self.draw = random.Random(self.seed)
        self.envs.restore(self.start)
        self.history: dict[int, Path_] = {slot: (None, slot) for slot in range(ROOTS)}
        self.snapshots: list[Any] = []

    def operate(self) -> None:
        draw = self.draw.random()
        kind = next((name for name, below in BELOW.items() if draw < below), "step")
        if getattr(self, kind)() is not False:
            self.counts[kind] += 1

    def fork(self) -> Any:
        live = np.flatnonzero(self.envs.live).tolist()
        free = self.family.slots - len(self.history)
        if not live or not free:
            return False
        most = min(max(2, self.family.slots // 8), free)
        parents = [self.draw.choice(live) for _ in range(self.draw.randint(1, most))]
        children = self.envs.fork(parents, rng="shared").tolist()
        for parent, child in zip(parents, children, strict=True):
            assert child not in self.history
            self.history[child] = self.history[parent]
        return None

    def prune(self) -> Any:
        live, roots = np.flatnonzero(self.envs.live), self.envs.roots
        held = Counter(roots[[*self.history]].tolist())
        gone, most = [], max(1, self.family.slots // 16)
        for slot in self.draw.sample(live.tolist(), min(len(live), most)):
            if held[roots[slot]] > 1:
                held[roots[slot]] -= 1
                gone.append(slot)
        if not gone:
            return False
        self.envs.prune(gone)
        for slot in gone:
            del self.history[slot]
        return None

    def snapshot(self) -> None:
        self.snapshots.append((self.envs.snapshot(), dict(self.history), self.seen()))
        self.snapshots = self.snapshots[-3:]

    def restore(self) -> Any:
        if not self.snapshots:
            return False
        snapshot, history, seen = self.draw.choice(self.snapshots)
        self.envs.restore(snapshot)
        self.history = dict(history)
        assert self.seen() == seen
        return None

    def compact(self) -> None:
        before = self.history
        source = self.envs.compact().tolist()
        self.history = {here: before[slot] for here, slot in enumerate(source) if slot >= 0}
        assert len(self.history) == len(before)

    def step(self) -> list[Any]:
        """Steps all branches; returns what each slot of the history was told."""
        live = self.envs.live.copy()
        taken = [self.draw.choice(self.actions) for _ in range(self.family.slots)]
        observations, rewards, terminated, truncated, _ = self.envs.step(np.array(taken))
        roots, told = self.envs.roots, {}
        for slot, before in list(self.history.items()):
            self.history[slot] = (before, taken[slot] if live[slot] else RESET)
            told[slot] = (rewards[slot], terminated[slot], truncated[slot])
            if roots[slot] < 0:
                del self.history[slot]  # it ended, and others of its root live
        self.told, self.shown = told, observations
        return None

    def seen(self) -> dict[int, Any]:
        shown = self.envs.observe()
        return {slot: bits(row(shown, slot)) for slot in self.history}


def row(observations: Any, slot: int) -> Any:
    if isinstance(observations, tuple):
        return tuple(row(part, slot) for part in observations)
    return observations[slot]


def from_scratch(family: Family, history: Path_) -> tuple[Any, Any]:
    """Makes a branch's environment without any other; returns it, and what it last showed."""
    done = []
    while history[0] is not None:
        history, last = history
        done.append(last)
    env = family.make()
    observation, _ = env.reset(seed=SEED + history[1])
    for action in reversed(done):
        observation = env.reset()[0] if action is RESET else env.step(action)[0]
    return env, observation


def like(batch: Any, observation: Any) -> Any:
    """An observation as a batch holds it: a number of a Discrete space is an int64."""
    if isinstance(observation, tuple):
        return tuple(like(part, one) for part, one in zip(batch, observation, strict=True))
    return np.asarray(observation, dtype=batch.dtype)[()]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_branch_is_what_its_history_makes(name: str) -> None:
    family = FAMILIES[name]
    if family.package:
        needs(family.package)
    if family.only_whole and not WHOLE:
        pytest.skip("too costly; BRANCHRT_SOAK=1 runs it")
    population = Population(family)
    with nothing_left(name) as measure:
        for again in range(2):  # the second time there is room for everything already
            population.begin()
            for _ in range(family.population_operations // 2):
                population.operate()
            if not again:
                measure()
    print(f"{name}: {dict(population.counts)}")
    assert min(population.counts[kind] for kind in [*BELOW, "step"]) > 0

    # A few of the branches go on beside environments that had no part in all this.
    chosen = population.draw.sample(sorted(population.history), min(24, len(population.history)))
    truths = {slot: from_scratch(family, population.history[slot]) for slot in chosen}
    shown = population.envs.observe()
    generators = population.envs.get_attr("np_random")
    for slot, (env, observation) in truths.items():
        assert bits(row(shown, slot)) == bits(like(row(shown, slot), observation)), slot
        state = generators[slot].bit_generator.state
        assert bits(state) == bits(env.unwrapped.np_random.bit_generator.state)
    for _ in range(5):
        population.step()
        for slot, (env, _) in list(truths.items()):
            if slot not in population.history:
                del truths[slot]  # it ended; its luck goes on in no other
                continue
            last = population.history[slot][1]
            if last is RESET:
                observation, told = env.reset()[0], (0.0, False, False)
            else:
                observation, *told, _ = env.step(last)
            assert [float(x) for x in population.told[slot]] == [float(x) for x in told]
            got = row(population.shown, slot)
            assert bits(got) == bits(like(got, observation))
    population.envs.close()


def test_no_environment_is_left() -> None:
    population = Population(FAMILIES["CartPole"])
    for _ in range(200):
        population.operate()
    held = sum(type(o).__name__ == "CartPoleEnv" for o in gc.get_objects())
    kept = sum(len(history) for _, history, _ in population.snapshots) + ROOTS  # those at the start
    assert held <= len(population.history) + kept + 1
    population.envs.close()
    del population
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o).__name__ == "CartPoleEnv"]
