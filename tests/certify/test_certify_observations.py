"""Observations are compared with the model's and with the space that declares them."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from branchrt_gym.certify.difference import Disagreement, Ledger
from branchrt_gym.certify.observations import compare_observations, leaves, stacked_rows

NAN = float("nan")
SPACES = {
    "box": Box(np.array([0, -2], np.int32), np.array([3, 5], np.int32), dtype=np.int32),
    "real": Box(-1.0, np.inf, (2,), np.float32),
    "choice": Discrete(4, start=1),
    "choices": MultiDiscrete([2, 3], start=[5, 0]),
    "bits": MultiBinary(2),
}
INSIDE = {
    "box": [[0, -2], [3, 5]],
    "real": [[-1, 1e30], [0, np.inf]],
    "choice": [1, 4],
    "choices": [[5, 2], [6, 0]],
    "bits": [[0, 1], [1, 1]],
}
OUTSIDE = [
    ("box", [[0, -2], [4, 5]], 1, "observation[0]", "0 … 3", "4"),
    ("box", [[0, -3], [3, 5]], 0, "observation[1]", "-2 … 5", "-3"),
    ("real", [[-1.5, 0], [0, 0]], 0, "observation[0]", "-1.0 … inf", "-1.5"),
    ("real", [[0, 0], [0, NAN]], 1, "observation[1]", "-1.0 … inf", "nan"),
    ("choice", [1, 5], 1, "observation", "1 … 4", "5"),
    ("choice", [0, 1], 0, "observation", "1 … 4", "0"),
    ("choices", [[5, 2], [7, 0]], 1, "observation[0]", "5 … 6", "7"),
    ("bits", [[0, 1], [2, 1]], 1, "observation[0]", "0 … 1", "2"),
]


def compare(space, values, got=None):
    """Both sides hold `values`, unless the environment holds `got`."""
    rows = np.array(values, space.dtype)
    batch = rows if got is None else got
    ledger = Ledger()
    compare_observations(
        ledger, space, "observation", list(rows), {"observation": batch}, [None] * len(rows)
    )
    return ledger.compared


@pytest.mark.parametrize("name", SPACES)
def test_members_pass_and_are_counted_once(name):
    assert compare(SPACES[name], INSIDE[name]) == np.size(INSIDE[name])


@pytest.mark.parametrize(("name", "values", "slot", "field", "inside", "got"), OUTSIDE)
def test_what_is_outside_is_a_difference_though_both_agree(name, values, slot, field, inside, got):
    with pytest.raises(Disagreement) as caught:
        compare(SPACES[name], values)
    found = caught.value.difference
    assert (found.field, found.expected) == (field, f"{inside}, as its space says")
    assert found.got == got
    assert found.slot == slot


def test_a_dtype_is_the_spaces_not_only_the_models():
    values = [[0.5, 0], [0, 0]]
    with pytest.raises(Disagreement, match=r"`observation \(dtype\)`.*float32, got float64"):
        compare(SPACES["real"], values, np.array(values))


def test_parts_of_nested_spaces_are_named():
    space = Dict(pair=Tuple((Discrete(3), SPACES["box"])))
    model = [{"pair": (2, np.array([1, 1], np.int32))}, {"pair": (1, np.array([9, 1], np.int32))}]
    got = {"pair": (torch.tensor([2, 1]), torch.tensor([[1, 1], [9, 1]], dtype=torch.int32))}
    parts = dict(leaves(got, "observation"))
    assert list(parts) == ["observation.pair.0", "observation.pair.1"]
    with pytest.raises(Disagreement, match=r"`observation.pair.1\[0\]` at slot 7: .*got 9"):
        compare_observations(Ledger(), space, "observation", model, parts, [None, None], [4, 7])
    with pytest.raises(Disagreement, match=r"`observation.pair.1`.*expected present, got missing"):
        del parts["observation.pair.1"]
        compare_observations(Ledger(), space, "observation", model, parts, [None, None])


def test_rows_are_taken_from_batches_and_from_arrays_of_objects():
    batch = {"a": torch.tensor([[1], [2], [3]]), "b": (np.array([4, 5, 6]),)}
    objects = np.full(3, None, dtype=object)
    for slot in (0, 2):
        objects[slot] = {"a": np.array([slot + 1]), "b": (slot + 4,)}
    for given in (batch, objects):
        rows = stacked_rows(given, [2, 0], "last")
        assert {name: values.tolist() for name, values in rows.items()} == {
            "last.a": [[3], [1]],
            "last.b.0": [6, 4],
        }
