"""Random keys as Triton: device functions for environment authors, and elementwise kernels.

A device function takes and returns words in its argument's own dtype, signed or unsigned, so
`fold_device(key, depth)` on int64 keys has the bits of `keys.fold(key, depth)`.
"""
# Triton ships no types; the launchers are typed, what runs on the device is not.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

__all__ = [
    "bounded",
    "bounded_device",
    "fold",
    "fold_constant",
    "fold_device",
    "mix32",
    "mix32_device",
    "mix64",
    "mix64_device",
]

_BLOCK = 1024


@triton.jit
def mix64_device(x):
    """`keys.mix64`; `x` is int64 or uint64."""
    tl.static_assert(x.dtype.primitive_bitwidth == 64, "mix64_device takes 64-bit words")
    word = x.to(tl.uint64)
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    return (word ^ (word >> 31)).to(x.dtype)


@triton.jit
def fold_device(key, word):
    """`keys.fold`; `key` is int64 or uint64, `word` any integer tensor or a constant >= 0."""
    tl.static_assert(key.dtype.primitive_bitwidth == 64, "fold_device takes 64-bit keys")
    gamma = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    return mix64_device(key.to(tl.uint64) + gamma * word + gamma).to(key.dtype)


@triton.jit
def mix32_device(x):
    """`keys.mix32`; `x` is int32 or uint32."""
    tl.static_assert(x.dtype.primitive_bitwidth == 32, "mix32_device takes 32-bit words")
    word = x.to(tl.uint32)
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return (word ^ (word >> 16)).to(x.dtype)


@triton.jit
def bounded_device(x, n):
    """`keys.bounded`, as int64; `x` is int64 or uint64, `n` an integer in 1 .. 2**31 - 1."""
    tl.static_assert(x.dtype.primitive_bitwidth == 64, "bounded_device takes 64-bit words")
    return (((x.to(tl.uint64) >> 32) * n) >> 32).to(tl.int64)


@triton.jit
def _span(size, BLOCK: tl.constexpr):
    """This program's elements as 64-bit offsets, and which of them exist."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < size


@triton.jit(do_not_specialize=["size"])
def _map_kernel(x, out, size, operation: tl.constexpr, BLOCK: tl.constexpr):
    at, exists = _span(size, BLOCK)
    tl.store(out + at, operation(tl.load(x + at, mask=exists)), mask=exists)


@triton.jit(do_not_specialize=["size", "n"])
def _bounded_kernel(x, out, size, n, BLOCK: tl.constexpr):
    at, exists = _span(size, BLOCK)
    tl.store(out + at, bounded_device(tl.load(x + at, mask=exists), n), mask=exists)


@triton.jit(do_not_specialize=["size"])
def _fold_kernel(key, word, out, size, BLOCK: tl.constexpr):
    at, exists = _span(size, BLOCK)
    folded = fold_device(tl.load(key + at, mask=exists), tl.load(word + at, mask=exists))
    tl.store(out + at, folded, mask=exists)


@triton.jit(do_not_specialize=["size", "increment"])
def _fold_constant_kernel(key, out, size, increment, BLOCK: tl.constexpr):
    at, exists = _span(size, BLOCK)
    word = tl.load(key + at, mask=exists) + increment.to(tl.int64)
    tl.store(out + at, mix64_device(word), mask=exists)


def mix64(x: Tensor) -> Tensor:
    """See `keys.mix64`; the argument is taken as checked."""
    return _launch(_map_kernel, (x,), mix64_device)


def mix32(x: Tensor) -> Tensor:
    """See `keys.mix32`; the argument is taken as checked."""
    return _launch(_map_kernel, (x,), mix32_device)


def bounded(x: Tensor, n: int) -> Tensor:
    """See `keys.bounded`; the arguments are taken as checked."""
    return _launch(_bounded_kernel, (x,), n)


def fold(key: Tensor, word: Tensor) -> Tensor:
    """See `keys.fold`; the arguments are taken as checked."""
    key, word = torch.broadcast_tensors(key, word)
    return _launch(_fold_kernel, (key, word))


def fold_constant(key: Tensor, increment: int) -> Tensor:
    """`mix64(key + increment)`: `keys.fold` by one word, whose increment the caller worked out."""
    return _launch(_fold_constant_kernel, (key,), increment)


def _launch(kernel: Any, tensors: tuple[Tensor, ...], *more: object) -> Tensor:
    """Runs an elementwise kernel into a new tensor like the first one."""
    tensors = tuple(x.contiguous() for x in tensors)
    out = torch.empty_like(tensors[0])
    size = out.numel()
    if size:
        with torch.cuda.device_of(out):
            kernel[(triton.cdiv(size, _BLOCK),)](*tensors, out, size, *more, _BLOCK)
    return out
