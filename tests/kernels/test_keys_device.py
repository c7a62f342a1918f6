"""The device functions as an environment author calls them: in their own kernel."""

import pytest
import torch

from branchrt_gym.kernels import bounded, fold, mix32, mix64

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
keys_triton = pytest.importorskip("branchrt_gym.kernels.keys_triton")

fold_device = keys_triton.fold_device
mix64_device = keys_triton.mix64_device
mix32_device = keys_triton.mix32_device
bounded_device = keys_triton.bounded_device


@triton.jit
def author_kernel(keys, depths, out, narrow_out, ENTRY: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    key = tl.load(keys + at)
    depth = tl.load(depths + at)
    tl.store(out + at, fold_device(key, depth))
    tl.store(out + SIZE + at, fold_device(key, 7))
    tl.store(out + 2 * SIZE + at, fold_device(key, ENTRY))
    tl.store(out + 3 * SIZE + at, fold_device(key.to(tl.uint64), at).to(tl.int64))
    tl.store(out + 4 * SIZE + at, bounded_device(mix64_device(key), 10))
    tl.store(out + 5 * SIZE + at, bounded_device(key.to(tl.uint64), depth.to(tl.uint32) | 1))
    # An unsigned word stays one: its high half times 1000 needs no mask.
    mixed = mix32_device(depth.to(tl.uint32))
    tl.store(out + 6 * SIZE + at, ((mixed.to(tl.uint64) * 1000) >> 32).to(tl.int64))
    tl.store(narrow_out + at, mix32_device(depth))
    tl.store(out + 7 * SIZE, fold_device(tl.load(keys), 1))


def test_device_functions_have_the_bits_of_the_public_ones():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, entry = 64, 2**40 + 5
    keys = torch.randint(-(2**63), 2**63 - 1, (size,), device=device)
    depths = torch.randint(0, 2**31 - 1, (size,), dtype=torch.int32, device=device)
    out = torch.full((8, size), -77, dtype=torch.int64, device=device)
    narrow = torch.full((size,), -77, dtype=torch.int32, device=device)
    author_kernel[(1,)](keys, depths, out, narrow, entry, size)
    assert torch.equal(out[0], fold(keys, depths, impl="torch"))
    assert torch.equal(out[1], fold(keys, 7, impl="torch"))
    assert torch.equal(out[2], fold(keys, entry, impl="torch"))
    assert torch.equal(out[3], fold(keys, torch.arange(size, device=device), impl="torch"))
    assert torch.equal(out[4], bounded(mix64(keys, impl="torch"), 10, impl="torch"))
    high = [(key & 2**64 - 1) >> 32 for key in keys.tolist()]
    drawn = [(h * (n | 1)) >> 32 for h, n in zip(high, depths.tolist(), strict=True)]
    assert out[5].tolist() == drawn
    mixed = mix32(depths, impl="torch")
    assert torch.equal(narrow, mixed)
    assert torch.equal(out[6], ((mixed.to(torch.int64) & 0xFFFFFFFF) * 1000) >> 32)
    assert out[7, 0] == fold(keys[0], 1, impl="torch")
    assert (out[7, 1:] == -77).all()
