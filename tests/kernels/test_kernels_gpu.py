"""On a CUDA device, at larger sizes: Triton and torch there against torch on the CPU, exact."""

import pytest
import torch

from branchrt_gym.kernels import (
    NO_ROW,
    bounded,
    compact_indices,
    copy_rows,
    fold,
    mix32,
    mix64,
    resolve,
    top_k_per_root,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
IMPLS = ["auto", "torch"]


@pytest.fixture(params=IMPLS)
def impl(request, launched):
    """Each form, with the one that ran asserted afterwards."""
    assert resolve("auto", torch.zeros(1, device="cuda")) == "triton"
    if request.param == "torch":
        torch.use_deterministic_algorithms(False)  # it would run other forms of torch's own
    yield request.param
    assert bool(launched) == (request.param == "auto")


def without_waiting(call):
    """The result of `call`, which may not synchronise with the host (its first run compiles)."""
    call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def random_keys(size):
    return torch.randint(-(2**63), 2**63 - 1, (size,))


def random_fields(rows):
    shapes = (
        (torch.bool, ()),
        (torch.int8, (3,)),
        (torch.int16, ()),
        (torch.int32, (64,)),
        (torch.int64, ()),
        (torch.float16, (5,)),
        (torch.bfloat16, (2, 2)),
        (torch.float32, ()),
        (torch.float64, (9,)),
    )
    return [
        torch.randint(0, 2 if dtype == torch.bool else 100, (rows, *shape)).to(dtype)
        for dtype, shape in shapes
    ]


@pytest.mark.parametrize("size", [1, 1000, 1_000_003])
def test_keys(impl, size):
    key, narrow = random_keys(size), torch.randint(-(2**31), 2**31 - 1, (size,)).int()
    calls = (
        (fold, (key, key.flip(0))),
        (fold, (key, narrow)),
        (fold, (key[:99, None], key[-77:])),
        *((fold, (key, word)) for word in (-1, 0, 3, 2**40, 2**64 - 1)),
        (mix64, (key,)),
        (mix32, (narrow,)),
        (bounded, (key, 1)),
        (bounded, (key, 2**31 - 1)),
    )
    for operation, arguments in calls:
        there = [x.cuda() if isinstance(x, torch.Tensor) else x for x in arguments]
        out = without_waiting(lambda op=operation, x=there: op(*x, impl=impl))
        assert torch.equal(out.cpu(), operation(*arguments, impl="torch"))


@pytest.mark.parametrize("apart", [False, True], ids=["in place", "from sources"])
@pytest.mark.parametrize("rows", [1, 4096, 100_003])
def test_rows(impl, rows, apart):
    fields = random_fields(rows)
    sources = random_fields(rows + 5) if apart else None
    from_rows = torch.randint(NO_ROW, rows, (rows,))
    to_rows = torch.randperm(rows)
    to_rows[torch.rand(rows) < 0.3] = NO_ROW
    moved = [x.cuda() for x in (from_rows, to_rows)]
    there = [x.cuda() for x in fields]
    there_sources = [x.cuda() for x in sources] if sources else None
    without_waiting(
        lambda: copy_rows([x.clone() for x in there], *moved, sources=there_sources, impl=impl)
    )
    copy_rows(there, *moved, sources=there_sources, impl=impl)
    copy_rows(fields, from_rows, to_rows, sources=sources)
    for field, expected in zip(there, fields, strict=True):
        assert torch.equal(field.cpu(), expected)


def test_rows_out_of_range_are_skipped(impl):
    field = torch.arange(3, device="cuda")
    from_rows = torch.tensor([0, 3, -2, 1, 2**40], device="cuda")
    to_rows = torch.tensor([5, 0, 1, 2, 0], device="cuda")
    copy_rows([field], from_rows, to_rows, impl=impl)
    assert field.tolist() == [0, 1, 1]


@pytest.mark.parametrize("size", [1, 4096, 4097, 1_000_003, 20_000_000])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_compact(impl, size, share):
    mask = torch.rand(size) < share
    there = mask.cuda()
    found = without_waiting(lambda: compact_indices(there, impl=impl))
    for out, expected in zip(found, compact_indices(mask), strict=True):
        assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("rows", "columns", "k"),
    [(1, 1, 3), (128, 32, 8), (1000, 33, 8), (16, 1024, 256), (16, 4000, 1), (8, 16384, 4096)],
)
def test_select(impl, dtype, rows, columns, k):
    lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    ends = torch.tensor([lowest, -1, 0, highest], dtype=dtype)
    for score in (
        torch.randint(-50, 50, (rows, columns), dtype=dtype),
        torch.randint(lowest, highest, (rows, columns), dtype=dtype),
        ends[torch.randint(0, 4, (rows, columns))],
    ):
        for valid in (None, torch.rand(rows, columns) < 0.3):
            there = score.cuda(), k, None if valid is None else valid.cuda()
            found = without_waiting(lambda x=there: top_k_per_root(*x, impl=impl))
            for out, expected in zip(found, top_k_per_root(score, k, valid), strict=True):
                assert torch.equal(out.cpu(), expected)


def test_all_of_it_in_a_cuda_graph(impl):
    rows = 1000
    key, score = random_keys(rows).cuda(), torch.zeros(10, 100, dtype=torch.int32, device="cuda")
    field = torch.zeros(rows, 3, dtype=torch.int64, device="cuda")

    def step():
        drawn = fold(key, 5, impl=impl)
        score.copy_(bounded(drawn, 50, impl=impl).view(10, 100))
        best, _ = top_k_per_root(score, 7, impl=impl)
        index, _ = compact_indices(mix64(drawn, impl=impl) > 0, impl=impl)
        field.copy_(drawn.unsqueeze(1).expand(-1, 3))
        copy_rows([field], index, torch.arange(rows, device="cuda"), impl=impl)
        return best

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        best = step()
    for _ in range(2):
        key.copy_(random_keys(rows))
        graph.replay()
        replayed = best.clone(), field.clone()
        assert torch.equal(step(), replayed[0]) and torch.equal(field, replayed[1])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_device_that_is_not_the_current_one(impl):
    key = random_keys(1000)
    assert torch.equal(fold(key.to("cuda:1"), 1, impl=impl).cpu(), fold(key, 1))
    assert torch.cuda.current_device() == 0
