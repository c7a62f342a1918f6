import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym.kernels import bounded, fold, mix32, mix64, resolve

M64 = 2**64 - 1
EXTREMES = [0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**63 + 1, M64]


def oracle_mix64(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def oracle_fold(key, word):
    return oracle_mix64((key + (word + 1) * 0x9E3779B97F4A7C15) & M64)


def oracle_mix32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def signed(words, bits=64):
    dtype = {32: torch.int32, 64: torch.int64}[bits]
    return torch.tensor([w - 2**bits if w >> (bits - 1) else w for w in words], dtype=dtype)


def unsigned(tensor):
    mask = 2 ** (8 * tensor.element_size()) - 1
    return [x & mask for x in tensor.flatten().tolist()]


words64 = st.lists(st.integers(0, M64), min_size=1, max_size=20)


def test_known_outputs_of_splitmix64():
    # The reference C program's first outputs from these seeds.
    assert unsigned(fold(signed([0]), torch.arange(3))) == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert unsigned(fold(signed([1234567]), torch.arange(3))) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(words64, st.integers(0, M64))
@settings(deadline=None)
def test_fold_by_one_word(keys, word):
    expected = [oracle_fold(key, word) for key in keys]
    assert unsigned(fold(signed(keys), word)) == expected
    assert unsigned(fold(signed(keys), signed([word]))) == expected
    assert unsigned(fold(signed(keys), word + 2**64)) == expected
    assert unsigned(fold(signed(keys), word - 2**64)) == expected


@given(words64)
@settings(deadline=None)
def test_fold_by_a_word_each_and_broadcast(keys):
    key = signed(keys)
    assert unsigned(fold(key, key)) == [oracle_fold(k, k) for k in keys]
    table = fold(key[:, None], torch.tensor([5, -7], dtype=torch.int32))
    assert table.shape == (len(keys), 2)
    assert unsigned(table) == [oracle_fold(k, w) for k in keys for w in (5, -7)]
    assert unsigned(fold(key[0], key)) == [oracle_fold(keys[0], k) for k in keys]


@given(words64, st.integers(1, 2**31 - 1))
@settings(deadline=None)
def test_mix64_and_bounded(words, n):
    assert unsigned(mix64(signed(words))) == [oracle_mix64(w) for w in words]
    drawn = bounded(signed(words), n).tolist()
    assert drawn == [((w >> 32) * n) >> 32 for w in words]
    assert all(0 <= x < n for x in drawn)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
@settings(deadline=None)
def test_mix32(words):
    mixed = mix32(signed(words, 32))
    assert mixed.dtype == torch.int32
    assert unsigned(mixed) == [oracle_mix32(w) for w in words]


def test_extreme_words():
    x = signed(EXTREMES)
    for word in EXTREMES:
        assert unsigned(fold(x, word)) == [oracle_fold(k, word) for k in EXTREMES]
    for n in (1, 2, 2**31 - 1):
        assert bounded(x, n).tolist() == [((w >> 32) * n) >> 32 for w in EXTREMES]


def test_arguments_are_left_as_they_were_and_shapes_are_kept():
    key, word = signed(EXTREMES).view(2, 4), torch.arange(4)
    copies = key.clone(), word.clone()
    for out in (fold(key, word), fold(key.t(), 3), mix64(key.t()), bounded(key, 9)):
        assert out.numel() == 8 and out.dtype == torch.int64
    assert torch.equal(mix64(key.t()), mix64(key).t())
    assert fold(key[:0], word).shape == (0, 4)
    assert fold(key[0, 0], 3).shape == ()
    assert torch.equal(key, copies[0]) and torch.equal(word, copies[1])


@pytest.mark.parametrize("size", [1, 37, 1500])
def test_triton_equals_torch(launched, size):
    x = torch.randint(-(2**63), 2**63 - 1, (size,))
    x[: len(EXTREMES)] = signed(EXTREMES)[:size]
    narrow = torch.randint(-(2**31), 2**31 - 1, (size,), dtype=torch.int32)
    calls = [
        (fold, (x, x.flip(0))),
        (fold, (x, narrow)),
        (fold, (x[:8, None], x[-5:])),
        (fold, (x[0], narrow)),
        *((fold, (x, word)) for word in (-1, *EXTREMES)),
        (mix64, (x,)),
        (mix64, (x[::2],)),
        (mix32, (narrow,)),
        *((bounded, (x, n)) for n in (1, 10, 2**31 - 1)),
    ]
    assert resolve("triton", x) == "triton"
    for operation, arguments in calls:
        before = len(launched)
        out = operation(*arguments, impl="triton")
        assert len(launched) == before + 1 and launched[-1].startswith(operation.__name__)
        assert torch.equal(out, operation(*arguments, impl="torch"))
    assert fold(x[:0], 1, impl="triton").shape == (0,)
    assert len(launched) == len(calls) + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fold(torch.zeros(2), 1), "`key` is torch.float32 of shape .*expected torch.int64"),
        (lambda: fold(torch.arange(2), torch.ones(2)), "`word` is torch.float32 of shape"),
        (
            lambda: fold(torch.arange(2), torch.arange(3)),
            r"`word` is torch.int64 of shape \(3,\); expected a shape that broadcasts with \(2,\)",
        ),
        (lambda: mix32(torch.arange(2)), "`x` is torch.int64 of shape .*expected torch.int32"),
        (lambda: mix64(torch.zeros(2).int()), "`x` is torch.int32 of shape"),
        (lambda: bounded(torch.arange(2), 0), "`n` is 0; expected 1"),
        (lambda: bounded(torch.arange(2), 2**31), "`n` is 2147483648; expected 1"),
        (lambda: fold(torch.arange(2), torch.zeros(2, device="meta").int()), "`word` is on 'meta'"),
    ],
)
def test_wrong_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_types():
    with pytest.raises(TypeError, match="`key` is of type int; expected"):
        fold(3, 4)
    with pytest.raises(TypeError, match="`word` is of type float; expected a tensor or an int"):
        fold(torch.arange(2), 4.0)
