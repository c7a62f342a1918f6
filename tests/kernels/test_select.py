import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym.kernels import NO_ROW, resolve, top_k_per_root

DTYPES = [torch.int32, torch.int64]


def oracle(score, k, valid):
    index, count = [], []
    for row, scores in enumerate(score.tolist()):
        columns = [j for j in range(len(scores)) if valid is None or valid[row, j]]
        best = sorted(columns, key=lambda j: (-scores[j], j))[:k]
        count.append(len(best))
        index.append(best + [NO_ROW] * (k - len(best)))
    return index, count


def check(score, k, valid, impl):
    index, count = top_k_per_root(score, k, valid, impl=impl)
    assert index.dtype == count.dtype == torch.int64 and index.is_contiguous()
    assert index.shape == (score.shape[0], k) and count.shape == (score.shape[0],)
    assert (index.tolist(), count.tolist()) == oracle(score, k, valid)


def scores(dtype, rows, columns):
    """Few values and so many ties; the extremes of the dtype; all values."""
    lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    extremes = torch.tensor([lowest, lowest + 1, -1, 0, highest - 1, highest], dtype=dtype)
    return (
        torch.randint(-3, 3, (rows, columns), dtype=dtype),
        extremes[torch.randint(0, 6, (rows, columns))],
        torch.randint(lowest, highest, (rows, columns), dtype=dtype),
        torch.full((rows, columns), lowest, dtype=dtype),
    )


def masks(rows, columns):
    some = torch.rand(rows, columns) < 0.5
    return None, some, torch.zeros_like(some)


@given(st.data())
@settings(deadline=None)
def test_selection_equals_the_oracle(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 9))
    value = st.one_of(
        st.integers(-2, 2), st.integers(lowest, highest), st.sampled_from([lowest, highest])
    )
    size = rows * columns
    flat = data.draw(st.lists(value, min_size=size, max_size=size))
    score = torch.tensor(flat, dtype=dtype).view(rows, columns)
    flags = data.draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size))
    valid = None if flags is None else torch.tensor(flags, dtype=torch.bool).view(rows, columns)
    check(score, data.draw(st.integers(1, 12)), valid, "auto")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "columns", "counts"),
    [(1, 1, (1, 70)), (3, 5, (1, 3, 5, 80)), (2, 64, (30, 65)), (1, 131, (70,))],
)
def test_triton_equals_the_oracle(launched, dtype, rows, columns, counts):
    for score in scores(dtype, rows, columns):
        assert resolve("triton", score) == "triton"
        for valid in masks(rows, columns):
            for k in counts:
                check(score, k, valid, "torch")
                check(score, k, valid, "triton")
    assert set(launched) == {"top_k_per_root"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1024, 1025, 1100])
def test_triton_on_both_sides_of_where_counting_ends(launched, dtype, columns):
    many_ties, extremes, *_ = scores(dtype, 1, columns)
    some = torch.rand(1, columns) < 0.5
    some[:, 200:900] = False
    check(many_ties, 40, some, "triton")
    check(extremes, columns + 3, None, "triton")
    assert launched == ["top_k_per_root"] * 2


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_arguments_with_gaps_in_memory_are_left_as_they_were(launched, impl):
    score, valid = torch.randint(-9, 9, (8, 6)), torch.rand(8, 6) < 0.7
    before = score.clone(), valid.clone()
    check(score[::2].t(), 3, valid[::2].t(), impl)
    assert torch.equal(score, before[0]) and torch.equal(valid, before[1])
    assert len(launched) == (impl == "triton")


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_nothing_to_choose_from(impl):
    for rows, columns in ((0, 4), (3, 0), (0, 0)):
        score = torch.zeros(rows, columns, dtype=torch.int32)
        check(score, 2, None, impl)
        check(score, 2, score > 0, impl)


@pytest.mark.parametrize(
    ("score", "k", "valid", "error", "message"),
    [
        (
            torch.zeros(2, 2),
            1,
            None,
            ValueError,
            "`score` is torch.float32 .*torch.int32 or torch.",
        ),
        (torch.arange(2), 1, None, ValueError, r"`score` is torch.int64 of shape \(2,\)"),
        (torch.arange(2)[None], 0, None, ValueError, "`k` is 0; expected at least 1"),
        (torch.arange(2)[None], 1, torch.ones(1, 2), ValueError, "`valid` is torch.float32 of"),
        (
            torch.arange(2)[None],
            1,
            torch.ones(2) > 0,
            ValueError,
            r"`valid` is torch.bool of shape \(2,\); expected torch.bool of shape \(1, 2\)",
        ),
        ([[1]], 1, None, TypeError, "`score` is of type list"),
    ],
)
def test_wrong_arguments(score, k, valid, error, message):
    with pytest.raises(error, match=message):
        top_k_per_root(score, k, valid)
