import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym.kernels import NO_ROW, compact_indices, resolve
from branchrt_gym.kernels.compact import _compact_without_waiting


def check(mask, found):
    index, count = found
    expected = [i for i, is_set in enumerate(mask.tolist()) if is_set]
    assert index.dtype == count.dtype == torch.int64
    assert index.shape == mask.shape and count.shape == () and index.is_contiguous()
    assert count.item() == len(expected)
    assert index.tolist() == expected + [NO_ROW] * (mask.shape[0] - len(expected))


def masks(size):
    one_set = torch.zeros(size, dtype=torch.bool)
    if size:
        one_set[size * 2 // 3] = True
    return (
        torch.ones(size, dtype=torch.bool),
        torch.zeros(size, dtype=torch.bool),
        one_set,
        ~one_set,
        torch.rand(size) < 0.5,
        torch.rand(size) < 0.01,
    )


@given(st.lists(st.booleans(), max_size=70))
@settings(deadline=None)
def test_indices_equal_the_oracle(flags):
    mask = torch.tensor(flags, dtype=torch.bool)
    check(mask, compact_indices(mask))
    check(mask, _compact_without_waiting(mask))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 63, 64, 1000, 4096, 4097, 8192, 9001])
def test_triton_equals_the_oracle(launched, size):
    assert resolve("triton", torch.zeros(size)) == "triton"
    for mask in masks(size):
        check(mask, compact_indices(mask, impl="torch"))
        check(mask, compact_indices(mask, impl="triton"))
    assert launched == ["compact_indices"] * (6 if size else 0)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_mask_with_gaps_in_memory(launched, impl):
    mask = torch.rand(101) < 0.5
    before = mask.clone()
    check(mask[::3], compact_indices(mask[::3], impl=impl))
    assert torch.equal(mask, before)
    assert launched == (["compact_indices"] if impl == "triton" else [])


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.zeros(3), ValueError, "`mask` is torch.float32 of shape .*expected torch.bool"),
        (torch.zeros(2, 2) > 0, ValueError, r"`mask` is torch.bool of shape \(2, 2\); expected"),
        ([True], TypeError, "`mask` is of type list; expected torch.bool"),
    ],
)
def test_wrong_arguments(mask, error, message):
    with pytest.raises(error, match=message):
        compact_indices(mask)
