"""Paged rows against a plain model: lists that are copied whole."""

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym.kernels import (
    NO_PAGE,
    NO_ROW,
    NO_WRITE,
    count_pages,
    mark_pages,
    read_pages,
    write_pages,
)

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SIZES = [(1, 1), (5, 8), (7, 3), (9, 1), (16, 4), (23, 5), (40, 16)]  # width, page size
OPERATIONS = {"read_pages", "write_pages", "count_pages", "mark_pages"}
DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            torch.cuda.is_available(), reason="Triton interprets only where there is no GPU"
        ),
    ),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def noise(dtype, *shape):
    """Random bits, so NaNs of every payload are among them."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    size = torch.empty(shape, dtype=dtype)
    raw = torch.randint(0, 256, (size.numel() * size.element_size(),), dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def bits(x):
    """The entries as integers, in lists."""
    return x.cpu().view(WORDS[x.element_size()]).tolist()


class Store:
    """The tensors of one paged field, and the model: a list for each row."""

    def __init__(
        self, rows, width, size, *, dtype=torch.int32, based=True, device="cpu", impl="torch"
    ):
        self.width, self.size, self.impl, self.device = width, size, impl, device
        self.pages = -(-width // size)
        capacity = 2 * rows * self.pages
        there = {"device": device}
        narrow = {"device": device, "dtype": torch.int32}
        base = noise(dtype, 3, width) if based else None
        context = torch.randint(0, 3, (rows,))
        self.pool = noise(dtype, capacity, size).to(device)
        self.stamp = torch.zeros(capacity, **narrow)
        self.free = torch.randperm(capacity).int().to(device)
        self.top = torch.tensor(capacity, **there)
        self.table = torch.full((rows, self.pages), NO_PAGE, **narrow)
        self.sealed = torch.zeros(rows, **narrow)
        self.clock = torch.zeros((), **narrow)
        self.base = None if base is None else base.to(device)
        self.context = context.to(device)
        self.values = [bits(base[c]) if based else [0] * width for c in context.tolist()]
        self.owned = [set() for _ in range(rows)]

    def move(self, *tensors):
        return [x if x is None else x.to(self.device) for x in tensors]

    def read(self, rows, index):
        rows, index = self.move(rows, index)
        field = self.pool, self.table, self.base, self.context
        return read_pages(*field, rows, index, self.width, impl=self.impl)

    def count(self, *runs):
        field = self.stamp, self.table, self.sealed
        return count_pages(*field, *self.move(*runs), self.size, self.width, impl=self.impl)

    def apply(self, *runs, operation=write_pages, **more):
        rows, start, value, length = self.move(*runs, *(None,) * (4 - len(runs)))
        pages = self.pool, self.stamp, self.free, self.top, self.table, self.sealed, self.clock
        runs = rows, start, value, length, self.width
        operation(*pages, self.base, self.context, *runs, **more)

    def write(self, rows, start, value, length=None):
        """Writes both, and checks how many pages it took against the model and the count."""
        lengths = torch.full_like(start, value.shape[2]) if length is None else length
        counted = self.count(rows, start, lengths)
        before = int(self.top)
        self.apply(rows, start, value, length, impl=self.impl)
        taken = 0
        words = bits(value)
        for m, row in enumerate(rows.tolist()):
            for s, (first, n) in enumerate(
                zip(start[m].tolist(), lengths[m].tolist(), strict=True)
            ):
                if row == NO_ROW or first == NO_WRITE or n == 0:
                    continue
                self.values[row][first : first + n] = words[m][s][:n]
                touched = {i // self.size for i in range(first, first + n)}
                taken += len(touched - self.owned[row])
                self.owned[row] |= touched
        assert before - int(self.top) == taken == int(counted)

    def fork(self, parent, child):
        """The child is the parent from now on; neither owns a page any more."""
        self.clock += 1
        for column in (self.table, self.context):
            column[child] = column[parent].clone()
        self.values[child] = list(self.values[parent])
        for row in (parent, child):
            self.sealed[row] = self.clock
            self.owned[row] = set()

    def reclaim(self, held):
        """Frees what no held row refers to, as marked; returns how many pages are in use."""
        count = self.pool.shape[0]
        marks = mark_pages(self.table, held.to(self.device), count, impl=self.impl)
        named = {page for row in self.table.cpu()[held].tolist() for page in row} - {NO_PAGE}
        assert marks.nonzero().squeeze(1).tolist() == sorted(named)
        unused = (~marks).nonzero().squeeze(1)
        self.free[: unused.shape[0]] = unused.int()
        self.top.fill_(unused.shape[0])
        return len(named)

    def check(self, held=None):
        """Every entry of the held rows, and zeros where a last page has no entries."""
        rows = torch.arange(len(self.values)) if held is None else held.nonzero().squeeze(1)
        expected = [self.values[row] for row in rows.tolist()]
        index = torch.arange(self.width).expand(rows.shape[0], -1)
        assert bits(self.read(rows, index)) == expected
        if held is None:
            assert bits(self.read(None, index)) == expected
        last = self.table[rows.to(self.device), -1].long()
        real = self.width - (self.pages - 1) * self.size
        assert not any(map(any, bits(self.pool[last[last >= 0], real:])))


def some_runs(held, width):
    """Held rows, and runs of each that do not overlap, in any order."""
    rows = held.nonzero().squeeze(1)
    rows = rows[torch.randperm(rows.shape[0])[: random.randint(1, 6)]]
    rows[torch.rand(rows.shape) < 0.2] = NO_ROW
    count = random.randint(1, 4)
    even = random.random() < 0.3
    longest = width // count if even else random.randint(0, width)
    start = torch.full((rows.shape[0], count), NO_WRITE)
    length = torch.zeros_like(start)
    for m in range(rows.shape[0]):
        end = 0
        for s in random.sample(range(count), count):
            first = end if even else end + random.randint(0, width - end) // count
            n = longest if even else random.randint(0, min(longest, width - first))
            end = first + n
            start[m, s] = NO_WRITE if random.random() < 0.2 else first
            length[m, s] = n
    return rows, start, longest, None if even else length


def play(seed, steps, **given):
    """A random program of forks, prunes and writes; every entry is checked after each write."""
    random.seed(seed)
    torch.manual_seed(seed)
    rows = random.randint(1, 6)
    store = Store(rows, *random.choice(SIZES), **given)
    untouched = None if store.base is None else bits(store.base)
    held = torch.ones(rows, dtype=torch.bool)
    for _ in range(steps):
        kind = random.random()
        if kind < 0.4 and rows > 1:
            others = set(range(rows))
            parent = random.choice(held.nonzero().squeeze(1).tolist())
            child = random.choice(sorted(others - {parent}))
            store.fork(parent, child)
            held[child] = True
        elif kind < 0.6 and held.sum() > 1:
            held[random.choice(held.nonzero().squeeze(1).tolist())] = False
            store.reclaim(held)
        elif int(store.top) < rows * store.pages:
            in_use = store.reclaim(held)
            assert in_use == store.pool.shape[0] - int(store.top)
        named, start, longest, length = some_runs(held, store.width)
        if int(store.top) >= rows * store.pages:
            store.write(named, start, noise(store.pool.dtype, *start.shape, longest), length)
        store.check(held)
    assert untouched is None or untouched == bits(store.base)


@given(st.integers(0, 2**32 - 1), st.sampled_from(DTYPES), st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_program_equals_the_model(seed, dtype, based):
    play(seed, 6, dtype=dtype, based=based)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triton_equals_the_model(launched, device, dtype):
    for seed in range(2 if device == "cpu" else 6):
        play(seed, 6, dtype=dtype, based=seed % 2 == 0, device=device, impl="triton")
    assert set(launched) == OPERATIONS


@pytest.mark.parametrize("device", DEVICES)
def test_tiles_of_several_rows_and_blocks_and_split_runs(launched, device, monkeypatch):
    from branchrt_gym.kernels import pages_triton

    for name, value in {"_TILE": 8, "_COPIED": 8, "_LANES": 4, "_MANY": 3, "_BUSY": 8}.items():
        monkeypatch.setattr(pages_triton, name, value)
    for seed in range(10, 18):
        monkeypatch.setattr(pages_triton, "_SHORT", 64 if seed % 4 < 2 else 0)
        play(seed, 4, based=seed % 2 == 0, device=device, impl="triton")
    assert set(launched) == OPERATIONS


@pytest.fixture(params=["torch", *(pytest.param(d.values[0], marks=d.marks) for d in DEVICES)])
def form(request, launched):
    """Torch, and Triton on each device, with the one that ran asserted afterwards."""
    impl = "torch" if request.param == "torch" else "triton"
    yield {"impl": impl, "device": request.param.replace("torch", "cpu")}
    assert bool(launched) == (impl == "triton")


def runs(*starts):
    return torch.tensor(starts)


def one(value, count=1):
    return torch.full((1, 1, count), value, dtype=torch.int32)


ROW = torch.tensor([0])


def test_own_pages_are_written_in_place_and_others_are_copied(form):
    store = Store(2, 16, 4, **form)
    store.write(ROW, runs([5]), one(1))
    page = int(store.table[0, 1])
    store.write(ROW, runs([6]), one(2))
    assert int(store.table[0, 1]) == page and int(store.stamp[page]) == 1
    store.fork(0, 1)
    store.write(ROW, runs([7]), one(3))
    assert int(store.table[1, 1]) == page != int(store.table[0, 1])
    assert int(store.stamp[store.table[0, 1].long()]) == 2
    store.write(torch.tensor([1]), runs([4]), one(4))
    assert int(store.table[1, 1]) != page  # it was the parent's too, when it was sealed
    assert store.table[:, [0, 2, 3]].eq(NO_PAGE).all()
    store.check()


def test_runs_of_one_page_take_one_page(form):
    store = Store(1, 16, 4, **form)
    value = torch.arange(8, dtype=torch.int32).view(1, 4, 2)
    store.write(ROW, runs([6, 2, 4, 0]), value)
    assert store.pool.shape[0] - int(store.top) == 2
    assert store.read(None, torch.arange(8)[None]).tolist() == [[6, 7, 2, 3, 4, 5, 0, 1]]
    store.check()


def test_a_run_over_many_pages(form):
    store = Store(2, 40, 4, **form)
    store.write(torch.tensor([1]), runs([3]), torch.arange(36, dtype=torch.int32).view(1, 1, 36))
    assert store.pool.shape[0] - int(store.top) == 10
    store.check()


def test_nothing_is_written(form):
    store = Store(2, 16, 4, **form)
    before = bits(store.pool)
    store.write(ROW, runs([5]), one(1), torch.tensor([[0]]))
    store.write(torch.tensor([NO_ROW]), runs([5]), one(1))
    store.write(ROW, runs([NO_WRITE]), one(1))
    for shape in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        value = torch.zeros(shape, dtype=torch.int32)
        store.write(ROW[: shape[0]], torch.zeros(shape[:2], dtype=torch.int64), value)
    assert bits(store.pool) == before and int(store.top) == store.pool.shape[0]
    assert store.read(ROW[:0], ROW[:0]).shape == (0,)
    assert store.read(ROW, torch.zeros(1, 0, dtype=torch.int64)).shape == (1, 0)
    store.check()


def test_reads_of_one_entry_each_and_of_skipped_rows(form):
    store = Store(3, 16, 4, **form)
    store.write(torch.tensor([2]), runs([15]), one(9))
    found = store.read(torch.tensor([2, NO_ROW, 0]), torch.tensor([15, 2**40, 15]))
    assert found.shape == (3,) and found.dtype == torch.int32
    assert found[[0, 2]].tolist() == [9, store.values[0][15]]


def test_a_pool_without_a_page_and_rows_without_an_entry(form):
    store = Store(2, 16, 4, **form)
    store.pool, store.stamp, store.free = store.pool[:0], store.stamp[:0], store.free[:0]
    store.check()
    store.base = None
    assert not store.read(None, torch.zeros(2, 3, dtype=torch.int64)).any()
    assert mark_pages(store.table, torch.ones(2, dtype=torch.bool).to(store.device), 0).shape == (
        0,
    )
    assert int(store.count(ROW, runs([5]), torch.tensor([[9]]))) == 3
    empty = Store(2, 0, 4, **form)
    assert int(empty.count(ROW, runs([NO_WRITE]), torch.tensor([[0]]))) == 0
    empty.apply(ROW, runs([NO_WRITE]), one(1), impl=form["impl"])


def test_values_and_lists_that_are_no_whole_memory(form):
    store = Store(2, 16, 4, **form)
    value = torch.arange(12, dtype=torch.int32).view(2, 3, 2).transpose(1, 2)  # [2, 2, 3]
    start = torch.tensor([[1, 9], [6, 12]]).t().contiguous().t()
    length = torch.tensor([[3, 1], [2, 3]]).t().contiguous().t()
    store.write(torch.tensor([1, 0]), start, value, length)
    index = torch.tensor([[3, 1], [9, 14]]).t().contiguous().t()
    assert bits(store.read(None, index)) == [
        [store.values[0][3], store.values[0][1]],
        [store.values[1][9], store.values[1][14]],
    ]
    store.check()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_out_of_range_where_nobody_looks(launched, device):
    from branchrt_gym.kernels import pages_triton

    store = Store(3, 10, 4, device=device, impl="triton")
    rows = torch.tensor([3, -2, 0, 1, 2])
    start = torch.tensor([[0], [0], [10], [-7], [8]])
    length = torch.tensor([[1], [1], [2**62], [1], [2**62]])
    value = torch.full((5, 1, 3), 7, dtype=torch.int32)
    moved = store.move(store.sealed, rows, start, length)
    counted = pages_triton.count_pages(store.stamp, store.table, *moved, 4, 10)
    store.apply(rows, start, value, length, operation=pages_triton.write_pages)
    store.values[2][8:] = [7, 7]
    store.check()
    assert int(counted) == store.pool.shape[0] - int(store.top) == 1
    index, rows = store.move(torch.tensor([[-5, 10, 2**40]]), torch.tensor([7]))
    found = pages_triton.read_pages(
        store.pool, store.table, store.base, store.context, rows, index, 10
    )
    assert found.tolist() == [[store.values[2][0], 7, 7]]
    store.table[0, 0] = store.pool.shape[0]
    held = torch.ones(3, dtype=torch.bool, device=device)
    assert int(mark_pages(store.table, held, store.pool.shape[0], impl="triton").sum()) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_writes_without_a_page_left_are_dropped_where_nobody_looks(launched, device):
    from branchrt_gym.kernels import pages_triton

    store = Store(3, 8, 4, device=device, impl="triton")
    store.top.fill_(1)
    value = torch.full((3, 1, 1), 7, dtype=torch.int32)
    start, length = torch.zeros(3, 1).long(), torch.ones(3, 1).long()
    store.apply(torch.arange(3), start, value, length, operation=pages_triton.write_pages)
    assert int(store.top) == -2 and int((store.table >= 0).sum()) == 1
    store.values[int((store.table[:, 0] >= 0).nonzero())][0] = 7
    store.check()


def test_too_few_pages_change_nothing(form):
    store = Store(3, 8, 4, **form)
    if form["impl"] == "triton" and form["device"] != "cpu":
        store.read(None, torch.zeros(3).long())
        pytest.skip("nobody looks there")
    store.top.fill_(2)
    before = bits(store.pool)
    value = torch.full((3, 1, 1), 7, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"`top` is 2, .* the runs take 3; .*`count_pages`"):
        store.apply(torch.arange(3), torch.zeros(3, 1).long(), value, impl=form["impl"])
    assert int(store.top) == 2 and bits(store.pool) == before
    assert store.table.eq(NO_PAGE).all() and not store.stamp.any()
    store.read(None, torch.zeros(3).long()), store.count(ROW, runs([0]), torch.tensor([[1]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": torch.zeros(4)}, r"`pool` is .* \(4,\); expected a tensor of shape \(P, E\)"),
        ({"pool": torch.zeros(4, 0)}, "`pool` is .* at least one entry a page"),
        ({"pool": torch.zeros(4, 48).int().t()}, r"`pool` .* strides \(1, 48\); .* contiguous"),
        (
            {"stamp": torch.zeros(9).int()},
            r"`stamp` is .* \(9,\); expected a tensor of shape \(48,",
        ),
        ({"stamp": torch.zeros(48)}, "`stamp` is torch.float32"),
        (
            {"free": torch.zeros(9).int()},
            r"`free` is .* \(9,\); expected a tensor of shape \(48,\)",
        ),
        ({"top": torch.tensor([1])}, r"`top` is .* expected a tensor of shape \(\)"),
        ({"top": torch.tensor(1).int()}, "`top` is torch.int32"),
        ({"clock": torch.tensor(1)}, "`clock` is torch.int64"),
        ({"table": torch.zeros(6, 3).int()}, r"`table` is .* \(6, 3\); .* shape \(N, 4\)"),
        ({"table": torch.zeros(6, 4)}, "`table` is torch.float32"),
        ({"sealed": torch.zeros(5).int()}, r"`sealed` is .* \(5,\); .* shape \(6,\)"),
        ({"base": torch.zeros(3, 15).int()}, r"`base` is .* \(3, 15\); .* shape \(C, 16\)"),
        ({"base": torch.zeros(3, 16)}, "`base` is torch.float32 .* expected torch.int32"),
        ({"context": torch.zeros(5).long()}, r"`context_index` is .* \(5,\); .* shape \(6,\)"),
        ({"rows": torch.tensor([6])}, "`rows` has rows 6 .. 6; expected 0 .. 5.*NO_ROW"),
        ({"rows": torch.tensor([-2])}, "`rows` has rows -2 .. -2"),
        ({"rows": torch.tensor([0, 1])}, r"`start` is .* \(1, 1\); .* shape \(2, S\)"),
        ({"start": runs([14])}, r"`start\[0, 0\]` is 14 .*length 3; .*0 .. 3 within .* 0 .. 15"),
        ({"start": runs([-2])}, r"`start\[0, 0\]` is -2 .*NO_WRITE"),
        ({"length": torch.tensor([[4]])}, r"`start\[0, 0\]` is 0 and the run's length 4"),
        ({"length": torch.tensor([[-1]])}, r"`start\[0, 0\]` is 0 and the run's length -1"),
        ({"length": torch.tensor([3])}, r"`length` is .* \(3?1,\); .* shape \(1, 1\)"),
        ({"value": one(1)[0]}, r"`value` is .* \(1, 1\); expected .* shape \(M, S, L\)"),
        ({"value": one(1).repeat(1, 2, 1)}, r"`start` is .* \(1, 1\); .* shape \(1, 2\)"),
        ({"value": one(1).float()}, "`value` is torch.float32 .* expected torch.int32"),
    ],
)
def test_wrong_arguments_change_nothing(change, message):
    store = Store(6, 16, 4)
    store.table[0, 0] = 1
    before = bits(store.pool), bits(store.table), bits(store.stamp), int(store.top)
    runs_ = {"rows": ROW, "start": runs([0]), "value": one(1, 3), "length": torch.tensor([[3]])}
    kept = SimpleNamespace(**{name: getattr(store, name) for name in change if name not in runs_})
    for name in vars(kept):
        setattr(store, name, change[name])
    runs_.update((name, x) for name, x in change.items() if name in runs_)
    with pytest.raises(ValueError, match=message):
        store.apply(*runs_.values())
    for name, x in vars(kept).items():
        setattr(store, name, x)
    assert before == (bits(store.pool), bits(store.table), bits(store.stamp), int(store.top))


def test_wrong_arguments_of_the_others():
    store = Store(3, 10, 4)
    ones = torch.ones(3, dtype=torch.bool)
    for index, message in (
        (torch.tensor([0, 10, 0]), "`index` has entries 0 .. 10; expected 0 .. 9"),
        (torch.tensor([0, -1, 0]), "`index` has entries -1 .. 0"),
        (torch.tensor([0, 0]), r"`index` is .* \(2,\); expected shape \(3,\) or \(3, J\)"),
        (torch.zeros(3, 1, 1).long(), r"`index` is .* expected shape \(3,\) or"),
        (torch.zeros(3).int(), "`index` is torch.int32"),
    ):
        with pytest.raises(ValueError, match=message):
            store.read(None, index)
    with pytest.raises(ValueError, match=r"`index` has entries -5 .. 2; expected 0 .. 9"):
        store.read(torch.tensor([NO_ROW, 0, 1]), torch.tensor([50, -5, 2]))
    with pytest.raises(ValueError, match=r"`rows` has rows -1 .. 3"):
        store.read(torch.tensor([-1, 3]), torch.tensor([0, 0]))
    store.size = 0
    with pytest.raises(ValueError, match="`page_size` is 0; expected at least 1"):
        store.count(ROW, runs([0]), torch.tensor([[1]]))
    store.size = 3
    with pytest.raises(ValueError, match=r"`table` is .* \(3, 3\); .* shape \(N, 4\)"):
        store.count(ROW, runs([0]), torch.tensor([[1]]))
    with pytest.raises(TypeError, match="`length` is of type NoneType"):
        count_pages(store.stamp, store.table, store.sealed, ROW, runs([0]), None, 4, 10)
    with pytest.raises(ValueError, match=r"`held` is .* \(2,\); .* shape \(3,\)"):
        mark_pages(store.table, ones[:2], 8)
    with pytest.raises(ValueError, match=r"`held` is torch.int32"):
        mark_pages(store.table, ones.int(), 8)


def test_a_compiled_read_reads_the_nearest_entry():
    store = Store(3, 10, 4)
    store.write(ROW, runs([9]), one(7))
    arguments = (store.pool, store.table, store.base, store.context, None)
    read = torch.compile(
        lambda index: read_pages(*arguments, index, 10), backend="eager", fullgraph=True
    )
    assert read(torch.tensor([50, 0, 0])).tolist() == [7, store.values[1][0], store.values[2][0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnCuda:
    def test_nothing_waits(self, launched):
        store = Store(4096, 64, 16, dtype=torch.uint8, device="cuda", impl="triton")
        rows = torch.randperm(4096, device="cuda")
        start = torch.tensor([[3, 30]], device="cuda").expand(4096, -1).contiguous()
        length = torch.full_like(start, 20)
        value = noise(torch.uint8, 4096, 2, 20).cuda()
        held = torch.ones(4096, dtype=torch.bool, device="cuda")

        def step():
            counted = store.count(rows, start, length)
            store.apply(rows, start, value, length)
            marks = mark_pages(store.table, held, store.pool.shape[0])
            return counted, marks, store.read(rows, start)

        step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            counted, marks, found = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert int(counted) == 0 and int(marks.sum()) == 4 * 4096
        assert torch.equal(found, value[:, :, 0]) and set(launched) == OPERATIONS

    def test_offsets_beyond_32_bits(self, launched):
        width, size, contexts = 1 << 24, 1 << 12, 130
        store = Store(1, width, size, dtype=torch.uint8, device="cuda", impl="triton")
        store.pool = torch.zeros(132 * (1 << 12), size, dtype=torch.uint8, device="cuda")
        store.base = torch.zeros(contexts, width, dtype=torch.uint8, device="cuda")
        store.base[-1] = torch.arange(width, device="cuda") % 251
        store.context.fill_(contexts - 1)
        store.stamp = torch.zeros(store.pool.shape[0], dtype=torch.int32, device="cuda")
        store.free = torch.arange(store.pool.shape[0], dtype=torch.int32, device="cuda")
        store.top.fill_(store.pool.shape[0])
        store.apply(ROW, runs([width - 1]), torch.full((1, 1, 1), 255, dtype=torch.uint8))
        index = torch.arange(width - 3, width)[None]
        last = [(width - 3) % 251, (width - 2) % 251, 255]
        assert int(store.table[0, -1]) == store.pool.shape[0] - 1
        assert store.read(None, index).tolist() == [last]
        assert store.read(None, index - size).tolist() == [
            [i % 251 for i in (index - size)[0].tolist()]
        ]


triton = pytest.importorskip("triton")
tl = triton.language

from branchrt_gym.kernels.pages_triton import read_page, write_page  # noqa: E402


@triton.jit
def add_twice(
    pool, stamp, free, top, table, sealed, clock, base, context_index, index, out, count,
    E: tl.constexpr, T: tl.constexpr, W: tl.constexpr, BASED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """An author's kernel: adds 1 to an entry and 10 to it and the next, where that exists."""
    row = tl.arange(0, LANES)
    named = row < count
    context = tl.load(context_index + row, mask=named, other=0)
    entry = tl.load(index + row, mask=named, other=0)
    old = read_page(pool, table, base, row, context, entry, E, T, W, BASED, named)
    write_page(
        pool, stamp, free, top, table, sealed, clock, base, row, context, entry, old + 1, named,
        E, T, W, BASED,
    )  # fmt: skip
    for step in range(0, 2):
        old = read_page(pool, table, base, row, context, entry + step, E, T, W, BASED, named)
        write_page(
            pool, stamp, free, top, table, sealed, clock, base, row, context, entry + step,
            old + 10, named, E, T, W, BASED, 2,
        )  # fmt: skip
    every = tl.minimum(row, count - 1)
    context = tl.load(context_index + every)
    tl.store(out + row, read_page(pool, table, base, every, context, every * 0 + 3, E, T, W, BASED))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("based", [True, False])
@pytest.mark.parametrize(("width", "size"), [(16, 4), (9, 1), (23, 5)])
def test_an_authors_kernel(device, based, width, size):
    store = Store(5, width, size, dtype=torch.int64, based=based, device=device)
    store.fork(0, 1)
    index = torch.tensor([3, 3, width - 1, 0, size - 1])
    out = torch.zeros(8, dtype=torch.int64, device=device)
    add_twice[(1,)](
        store.pool, store.stamp, store.free, store.top, store.table, store.sealed, store.clock,
        store.pool if store.base is None else store.base, store.context, index.to(device), out, 5,
        size, store.pages, width, based, 8,
    )  # fmt: skip
    taken = 0
    for values, at in zip(store.values, index.tolist(), strict=True):
        changed = {at: 11, at + 1: 10}
        for i in {at, at + 1} - {width}:
            values[i] = (values[i] + changed[i] + 2**63) % 2**64 - 2**63
        taken += len({i // size for i in {at, at + 1} - {width}})
    store.check()
    assert store.pool.shape[0] - int(store.top) == taken
    assert out.tolist() == [store.values[min(row, 4)][3] for row in range(8)]
