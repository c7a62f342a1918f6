"""Ten thousand random programs on frontiers and vector envs, against the model in plain Python.

They are the same in every run; `HYPOTHESIS_PROFILE=default` or `--hypothesis-seed` varies them.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from field_programs import WEAVE, OnFields, OnPayloads, competes_with, judge, judge_all, raises
from frontier_programs import Program
from hypothesis import given, settings
from hypothesis import strategies as st
from population_model import Population
from weave import ACTIONS
from words import Word

from branchrt_gym import Beam, BranchingVectorEnv, Snapshot
from branchrt_gym.errors import OptionsError, SlotError


class OnVectorEnv(Program):
    """The population of a vector env."""

    operations = (
        *("compact", "prune", "make_room", "reset", "reset_some", "keep", "wrong"),
        *("step", "step", "expand", "fork") * 3,
    )

    def __init__(self, header: Word) -> None:
        super().__init__(header)
        mode, depth = header.one(["NextStep", "SameStep", "Disabled"]), header.one([None, 3])
        self.population = Population(self.model, self.contexts, mode, depth)
        self.envs = BranchingVectorEnv(
            WEAVE,
            self.size,
            num_roots=self.num_roots,
            num_contexts=self.contexts,
            autoreset_mode=mode,
            max_episode_steps=depth,
            output=header.one(["numpy", "torch"]),
            record_lineage=self.capacity > 0,
            lineage_capacity=self.capacity,
        )
        self.frontier = self.envs.frontier
        self.population.reset([*range(5, 5 + self.num_roots)])
        self.observed(self.envs.reset(seed=5)[0], self.population.observe())

    @property
    def owner(self) -> BranchingVectorEnv:
        return self.envs

    def observed(self, seen, wanted) -> None:
        assert seen.tolist() == wanted

    def compact(self) -> None:
        source = self.model.compact(self.waits)
        assert self.envs.compact().tolist() == source

    def reset(self) -> None:
        seeds = self.word.one([None, [3, 1, 4, 1][: self.num_roots]])
        if seeds is None:
            plan = self.population.next_episodes
        else:
            plan = lambda: self.population.reset(seeds)  # noqa: E731
        found = self.both(plan, lambda: self.envs.reset(seed=seeds))
        if found is not None:
            self.observed(found[1][0], self.population.observe())
            live = [slot in self.model.live for slot in range(self.size)]
            assert found[1][1]["live"].tolist() == live

    def reset_some(self) -> None:
        mask = np.array([bool(self.word.take(2)) for _ in range(self.size)])
        if self.word.take(2):
            theirs = {self.model.at(s).root for s in self.model.live if mask[s]}
            mask |= [held is not None and held.root in theirs for held in self.model.slots]
        seeds = self.word.one([None, [6, 2, 6, 9][: self.num_roots]])
        found = self.both(
            lambda: self.population.reset_masked(mask.tolist(), seeds),
            lambda: self.envs.reset(seed=seeds, options={"reset_mask": mask}),
        )
        if found is not None:
            self.observed(found[1][0], self.population.observe())
            assert found[1][1]["_solved"].tolist() == found[0]

    def step(self) -> None:
        actions = [self.word.one(ACTIONS) for _ in range(self.size)]
        for slot in self.model.free:
            actions[slot] = 99  # not looked at
        named = self.word.shaped(actions)
        found = self.both(lambda: self.population.step(actions), lambda: self.envs.step(named))
        if found is not None:
            wanted, (seen, reward, terminated, truncated, info) = found
            self.observed(seen, wanted.observation)
            given = (reward, terminated, truncated, info["solved"], info["live"])
            assert [each.tolist() for each in given] == [*wanted[1:]]

    def expand(self) -> None:
        word, population = self.word, self.population
        width, rng = word.one([1, 2, 3, None]), word.one(["split", "shared"])
        judged = bool(word.take(2))
        children = population.children(rng, judge if judged else None)
        policy, verifier = Beam(width) if width else None, judge_all if judged else None
        found = self.both(
            lambda: population.expand(children, width, rng, competes_with(judged)),
            lambda: self.envs.branch_step(verifier, policy, rng),
        )
        self.compare_expansion(children, found)

    def put_back(self, snapshot: Snapshot) -> None:
        self.observed(self.envs.restore(snapshot), self.population.observe())

    def wrong_calls(self):
        size, envs = self.size, self.envs
        fine = np.zeros(size, np.int64)
        yield lambda: envs.step(fine[1:]), ValueError
        yield lambda: envs.step(fine + 0.5), ValueError
        yield lambda: envs.step(None), TypeError
        if self.model.live:
            yield lambda: envs.step(fine + 2), ValueError
        yield lambda: envs.reset(seed=-1), ValueError
        yield lambda: envs.reset(seed=[0] * (self.num_roots + 1)), ValueError
        yield lambda: envs.reset(options={"mask": fine}), OptionsError
        yield lambda: envs.reset(options={"reset_mask": fine}), OptionsError
        yield lambda: envs.reset(options={"reset_mask": fine == 1}), OptionsError
        yield lambda: envs.restore(None), TypeError
        yield lambda: envs.fork([size]), SlotError
        yield lambda: envs.fork([0], rng="both"), ValueError
        yield lambda: envs.prune([-1]), SlotError
        yield lambda: envs.branch_step(judge_all, rng="both"), ValueError
        yield lambda: envs.branch_step(raises), ArithmeticError

    def wrong(self) -> None:
        self.refuses(*self.word.one([*self.wrong_calls()]))


PROGRAMS = st.tuples(
    st.binary(min_size=8, max_size=8),
    st.lists(st.binary(min_size=12, max_size=12), min_size=4, max_size=15),
)
PROFILE = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


SHARES = {OnPayloads: 40, OnFields: 35, OnVectorEnv: 25}


@pytest.mark.parametrize("programs", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SHARES)
def test_a_program_does_as_the_model_says(kind, programs, pytestconfig):
    fixed = PROFILE.derandomize and pytestconfig.getoption("hypothesis_seed", None) is None
    share = programs * SHARES[kind] // 100

    @settings(PROFILE, max_examples=share, derandomize=fixed, deadline=None, database=None)
    @given(PROGRAMS)
    def play(program):
        header, words = program
        kind(Word(header)).run(words)

    play()
