"""Rows over the slots of a population: where episodes begin after branches."""

import numpy as np
import pytest
from gymnasium.wrappers.vector import ClipReward
from tally import TURN, tallies

from branchrt_gym import NO_ROOT
from branchrt_gym.integrations.places import Places

ROWS = 5


def begin(places, seed=1):
    return places.envs.reset(seed=seed)[0]


def check_places(places):
    """Each row has a live slot of its own, and each root a slot to start again in."""
    slots, envs = places.slots, places.envs
    assert len(set(slots.tolist())) == len(slots) == places.rows
    assert envs.live[slots].all()
    assert set(envs.roots.tolist()) - {-1} == set(range(places.rows))


def play(places, seen, rng, steps):
    """Steps, restarts and checks each row; returns the last observations and how many ended."""
    envs, number = places.envs, 0
    for _ in range(steps):
        actions = rng.integers(3, size=places.rows)
        batch, _, terminated, truncated, _ = envs.step(places.spread(actions))
        last = batch[places.slots]
        assert np.array_equal(last[:, 0], seen[:, 0])
        assert np.array_equal(last[:, 1], seen[:, 1] + 1)
        assert np.array_equal(last[:, 2], (seen[:, 2] * 3 + actions) % TURN)
        done = (terminated | truncated)[places.slots]
        if done.any():
            mask = places.begin_again(np.flatnonzero(done).tolist())
            batch, _ = envs.reset(seed=places.seeds(), options={"reset_mask": mask})
        seen = batch[places.slots]
        assert np.array_equal(seen[~done], last[~done])
        assert (seen[done, 1:] == 0).all()
        number += done.sum()
        check_places(places)
    return seen, number


@pytest.mark.parametrize("spare", [1, 3, 5, 8])
def test_rows_play_on_and_start_again_whatever_was_branched(spare):
    places = Places(tallies(ROWS, spare), spare)
    rng, luck = np.random.default_rng(spare), np.random.default_rng(0)
    seen, saved, ended = begin(places)[:ROWS], [], 0
    for _ in range(60):
        seen, number = play(places, seen, rng, int(rng.integers(1, 9)))
        ended += number
        if rng.random() < 0.5:
            saved.append((places.save(), seen))
        if saved and rng.random() < 0.7:
            at = int(rng.integers(len(saved)))
            kept, then = saved[at]
            left, distinct = np.unique(kept.roots, return_index=True)
            distinct = distinct[left != NO_ROOT]
            choice = rng.permutation(distinct)[: int(rng.integers(1, 3))]
            number = int(rng.integers(1, min(spare, ROWS) + 1))
            parents = np.resize(choice, number).tolist()
            batch, again = places.branch(kept, parents, luck)
            assert np.array_equal(np.flatnonzero(again.roots != NO_ROOT), np.unique(parents))
            saved[at] = again, then
            seen = batch[places.slots]
            assert np.array_equal(seen[:number], then[parents])
            assert (seen[number:, 1:] == 0).all()
            check_places(places)
    assert ended > 50


def test_children_have_luck_of_their_own_each_time():
    places = Places(tallies(ROWS, ROWS), ROWS)
    begin(places)
    saved, luck = places.save(), np.random.default_rng(3)
    words, births = [], []
    for _ in range(6):
        batch, saved = places.branch(saved, [2, 2, 2], luck)
        births += batch[places.slots[3:], 0].tolist()
        seen = places.envs.step(places.spread(np.zeros(ROWS, dtype=np.int64)))[0]
        words += seen[places.slots[:3], 3].tolist()
    assert len(set(words)) == len(words) == 18
    assert len(set(births)) == len(births) == 12


def test_the_same_luck_gives_the_same_branches():
    ends = []
    for _ in range(2):
        places = Places(tallies(ROWS, 2), 2)
        seen = begin(places)[:ROWS]
        seen, _ = play(places, seen, np.random.default_rng(1), 5)
        saved, luck = places.save(), np.random.default_rng(9)
        batch, saved = places.branch(saved, [0, 0], luck)
        ends.append(play(places, batch[places.slots], np.random.default_rng(2), 40)[0])
    assert np.array_equal(*ends)


def test_populations_without_room_for_branches_are_refused():
    with pytest.raises(ValueError, match="in DISABLED mode"):
        Places(tallies(3, 2, autoreset_mode="SameStep"), 2)
    with pytest.raises(ValueError, match="expected the BranchingVectorEnv itself"):
        Places(ClipReward(tallies(3, 2), 0, 1), 2)
    with pytest.raises(ValueError, match="5 slots for 3 roots; expected 2"):
        Places(tallies(3, 2), 3)
    places = Places(tallies(3, 1), 1)
    begin(places)
    saved = places.save()
    for parents in ([0, 0], [3], [-1]):
        with pytest.raises(
            ValueError, match=r"`parents` is .*expected at most 1 of the rows \[0, 1, 2\]"
        ):
            places.branch(saved, parents, np.random.default_rng(0))
    assert places.envs.live.sum() == 3
    _, again = places.branch(saved, [1], np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"of the rows \[1\]"):
        places.branch(again, [0], np.random.default_rng(0))
