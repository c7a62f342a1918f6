"""Observations and infos by rows."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from branchrt_gym.integrations.rows import RowInfos, flatten_batch, is_flat, split_infos

BOX = spaces.Box(-1, 1, (2, 3), np.float32)
DIGITS = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-2, 7]])

ROUGH = [
    spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))),
    spaces.Discrete(5, start=-2),
    DIGITS,
    spaces.MultiDiscrete([3, 4], start=[0, 1]),
    spaces.Tuple((BOX, spaces.Tuple((spaces.MultiBinary(4), DIGITS)))),
    spaces.Dict({"b": spaces.Dict({"x": BOX}), "a": spaces.Discrete(3)}),
    spaces.Dict({"t": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary((2, 2))))}),
]


@pytest.mark.parametrize("space", ROUGH, ids=str)
def test_flattened_as_gymnasium_does_one_by_one(space):
    assert not is_flat(space)
    space.seed(3)
    seen = [space.sample() for _ in range(6)]
    batch = concatenate(space, seen, create_empty_array(space, n=6))
    assert batch in batch_space(space, 6)
    flat = flatten_batch(space, batch, 6)
    expected = np.stack([spaces.flatten(space, one) for one in seen])
    assert flat.dtype == expected.dtype == spaces.flatten_space(space).dtype
    assert np.array_equal(flat, expected)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary((2, 2)),
        spaces.Dict({"a": BOX, "b": spaces.Discrete(3)}),
    ],
    ids=str,
)
def test_what_is_flat_is_left(space):
    assert is_flat(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(4),
        spaces.Sequence(BOX),
        spaces.Tuple((BOX, spaces.Text(4))),
        spaces.Dict({"a": spaces.Dict({"b": spaces.Text(4)})}),
    ],
    ids=str,
)
def test_spaces_without_a_width_are_refused(space):
    with pytest.raises(TypeError, match=r"single_observation_space.* is (Text|Sequence)"):
        is_flat(space)


def test_infos_taken_apart():
    infos = {
        "a": np.array([1, 0, 3]),
        "_a": np.array([True, False, True]),
        "b": {"c": np.array([0.5, 1.5, 2.5]), "_c": np.array([False, True, False])},
        "_b": np.array([False, True, False]),
        "all": np.arange(3),
        "_own": np.array([7, 8, 9]),
    }
    assert split_infos(infos, 3) == [
        {"a": 1, "all": 0, "_own": 7},
        {"b": {"c": 1.5}, "all": 1, "_own": 8},
        {"a": 3, "all": 2, "_own": 9},
    ]


class Reports(gymnasium.Env):
    """Gives the same dict again and again, as environments may."""

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, number):
        self.info = {"number": number, "inner": {"deep": {"list": [0]}}}

    def reset(self, *, seed=None, options=None):
        return 0, self.info

    def step(self, action):
        self.info["inner"]["deep"]["list"][0] += 1
        return 0, 0.0, False, False, self.info


def test_each_row_keeps_its_own_infos_beside_the_batch():
    numbers = (1, 0.25, 2.5)
    envs = gymnasium.vector.SyncVectorEnv([lambda n=n: Reports(n) for n in numbers])
    alone = gymnasium.vector.SyncVectorEnv([lambda n=n: Reports(n) for n in numbers[:1] * 3])
    kept = RowInfos(envs)
    envs.reset()
    before = kept.take()
    batch = envs.step(np.zeros(3, dtype=np.int64))[4]
    after = kept.take()
    assert [row["number"] for row in after] == list(numbers)
    assert [row["inner"]["deep"]["list"] for row in before] == [[0]] * 3
    assert [row["inner"]["deep"]["list"] for row in after] == [[1]] * 3
    assert kept.take() == [{}, {}, {}]
    alone.reset()
    expected = alone.step(np.zeros(3, dtype=np.int64))[4]
    assert str(batch["inner"]) == str(expected["inner"])  # Gymnasium's batch is as without us
