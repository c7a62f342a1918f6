"""Random keys: pure functions of 64-bit words, the same bits on every device.

All arithmetic is modulo 2**64 (2**32 for `mix32`). Torch has no complete unsigned
arithmetic, so a word is kept in a signed tensor with the same bits, and a logical shift is
an arithmetic one whose copied sign bits are masked away.
"""

import torch
from torch import Tensor

from branchrt_gym.kernels.checks import describe, expect_tensor
from branchrt_gym.kernels.dispatch import Impl, resolve

__all__ = ["bounded", "fold", "mix32", "mix64"]

_GAMMA = 0x9E3779B97F4A7C15


def _signed(word: int, bits: int) -> int:
    """The signed integer with the low `bits` bits of `word`."""
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word


_GAMMA_SIGNED = _signed(_GAMMA, 64)
# (right shift, multiplier) of each round; the last shift has no multiplier.
_MIX64 = ((30, _signed(0xBF58476D1CE4E5B9, 64)), (27, _signed(0x94D049BB133111EB, 64)), (31, None))
_MIX32 = ((16, _signed(0x7FEB352D, 32)), (15, _signed(0x846CA68B, 32)), (16, None))


def fold(key: Tensor, word: Tensor | int, *, impl: Impl = "auto") -> Tensor:
    """Derives a new key from a key and a word: `mix64(key + (word + 1) * 0x9E3779B97F4A7C15)`.

    This is output number `word` of SplitMix64 started at `key` (Steele, Lea and Flood 2014).

    Args:
        key: Keys, int64 of any shape.
        word: int64 or int32 of a shape that broadcasts with `key` (an int32 is sign-extended),
            or a Python int, taken modulo 2**64.
        impl: See `dispatch.resolve`.

    Returns:
        Keys, a new int64 tensor of the broadcast shape.

    Raises:
        ValueError: A dtype, device or shape is not as above.
        TypeError: `key` is not a tensor, or `word` neither a tensor nor an int.

    Cost: a dozen passes over one buffer that stays in cache on the CPU, one launch with Triton.
    """
    expect_tensor("key", key, (torch.int64,), None, "of any shape")
    if isinstance(word, Tensor):
        expect_tensor("word", word, (torch.int64, torch.int32), key, "of a shape that broadcasts")
        _expect_broadcast(key, word)
    elif not isinstance(word, int):
        raise TypeError(f"`word` is {describe(word)}; expected a tensor or an int")
    if resolve(impl, key) == "triton":
        from branchrt_gym.kernels import keys_triton

        if isinstance(word, int):
            return keys_triton.fold_constant(key, _signed((word + 1) * _GAMMA, 64))
        return keys_triton.fold(key, word)
    if isinstance(word, int):
        return _mix_(key + _signed((word + 1) * _GAMMA, 64), _MIX64, 64)
    added = torch.add(key, word.to(torch.int64), alpha=_GAMMA_SIGNED)
    return _mix_(added.add_(_GAMMA_SIGNED), _MIX64, 64)


def mix64(x: Tensor, *, impl: Impl = "auto") -> Tensor:
    """SplitMix64's finaliser: an invertible function that spreads each bit over all 64.

    Args:
        x: int64 of any shape.
        impl: See `dispatch.resolve`.

    Returns:
        A new int64 tensor of the same shape.
    """
    expect_tensor("x", x, (torch.int64,), None, "of any shape")
    if resolve(impl, x) == "triton":
        from branchrt_gym.kernels import keys_triton

        return keys_triton.mix64(x)
    return _mix_(x.clone(), _MIX64, 64)


def mix32(x: Tensor, *, impl: Impl = "auto") -> Tensor:
    """The same for 32-bit words: "lowbias32" (Wellons 2018).

    Args:
        x: int32 of any shape.
        impl: See `dispatch.resolve`.

    Returns:
        A new int32 tensor of the same shape.
    """
    expect_tensor("x", x, (torch.int32,), None, "of any shape")
    if resolve(impl, x) == "triton":
        from branchrt_gym.kernels import keys_triton

        return keys_triton.mix32(x)
    return _mix_(x.clone(), _MIX32, 32)


def bounded(x: Tensor, n: int, *, impl: Impl = "auto") -> Tensor:
    """Maps a 64-bit word to 0 .. n - 1 by its high half: `((x >> 32) * n) >> 32`.

    Args:
        x: int64 of any shape, read as unsigned.
        n: 1 .. 2**31 - 1. A value is drawn with a bias of at most n / 2**32.
        impl: See `dispatch.resolve`.

    Returns:
        A new int64 tensor of the same shape.

    Raises:
        ValueError: `n` is out of range, or `x` is not int64.
    """
    expect_tensor("x", x, (torch.int64,), None, "of any shape")
    if not 1 <= n < 2**31:
        raise ValueError(f"`n` is {n}; expected 1 .. 2**31 - 1")
    if resolve(impl, x) == "triton":
        from branchrt_gym.kernels import keys_triton

        return keys_triton.bounded(x, n)
    high = (x >> 32).bitwise_and_(0xFFFFFFFF)
    # Below 2**63 here, so the arithmetic shift is the logical one.
    return high.mul_(n).bitwise_right_shift_(32)


def _expect_broadcast(key: Tensor, word: Tensor) -> None:
    sizes = zip(reversed(key.shape), reversed(word.shape), strict=False)
    if not all(a == b or a == 1 or b == 1 for a, b in sizes):
        raise ValueError(
            f"`word` is {describe(word)}; expected a shape that broadcasts with "
            f"{tuple(key.shape)}, the shape of `key`"
        )


def _mix_(x: Tensor, rounds: tuple[tuple[int, int | None], ...], bits: int) -> Tensor:
    """Runs the rounds in `x`, which has to be the caller's own buffer, with one scratch buffer."""
    scratch = torch.empty_like(x)
    for shift, multiplier in rounds:
        torch.bitwise_right_shift(x, shift, out=scratch)
        x.bitwise_xor_(scratch.bitwise_and_((1 << (bits - shift)) - 1))
        if multiplier is not None:
            x.mul_(multiplier)
    return x
