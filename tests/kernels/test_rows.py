import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym.kernels import NO_ROW, copy_rows, resolve
from branchrt_gym.kernels.rows import _copy_without_waiting, write_rows

KINDS = [
    (torch.bool, ()),
    (torch.bool, (3,)),
    (torch.int8, (2, 3)),
    (torch.int16, ()),
    (torch.int32, ()),
    (torch.int32, (5,)),
    (torch.int64, ()),
    (torch.int64, (2, 2)),
    (torch.float16, (3,)),
    (torch.bfloat16, ()),
    (torch.float32, (7,)),
    (torch.float64, (1,)),
    (torch.float32, (0,)),
]


def noise(rows, kinds=KINDS):
    """Fields of random bits, so NaNs of every payload are among them."""
    fields = []
    for dtype, trailing in kinds:
        size = torch.empty((rows, *trailing), dtype=dtype)
        if dtype == torch.bool:
            fields.append(torch.rand(size.shape) < 0.5)
        else:
            raw = torch.randint(0, 256, (size.numel() * size.element_size(),), dtype=torch.uint8)
            fields.append(raw.view(dtype).view(size.shape))
    return fields


def rows_of(field):
    """The bytes of each row."""
    raw = field.clone().view(-1).view(torch.uint8).tolist()
    width = len(raw) // field.shape[0]
    return [raw[i * width : (i + 1) * width] for i in range(field.shape[0])]


def expected_rows(fields, from_rows, to_rows, sources=None):
    out = []
    for field, source in zip(fields, fields if sources is None else sources, strict=True):
        rows, read = rows_of(field), rows_of(source)
        for a, b in zip(from_rows.tolist(), to_rows.tolist(), strict=True):
            if a != NO_ROW and b != NO_ROW:
                rows[b] = read[a]
        out.append(rows)
    return out


def some_entries(rows, entries, source_rows=None):
    from_rows = torch.randint(NO_ROW, source_rows or rows, (entries,))
    to_rows = torch.randperm(rows)[:entries]
    to_rows[torch.rand(entries) < 0.2] = NO_ROW
    return from_rows, to_rows


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_rows_equal_the_oracle(data):
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    rows = data.draw(st.integers(1, 12))
    source_rows = data.draw(st.integers(1, 12))
    entries = data.draw(st.integers(0, rows))
    fields, others = noise(rows), noise(source_rows)
    lists = st.lists(st.integers(NO_ROW, rows - 1), min_size=entries, max_size=entries)
    from_rows = torch.tensor(data.draw(lists), dtype=torch.int64)
    _, to_rows = some_entries(rows, entries)
    expected = expected_rows(fields, from_rows, to_rows)
    copy_rows(fields, from_rows, to_rows)
    assert [rows_of(field) for field in fields] == expected
    from_rows = torch.randint(NO_ROW, source_rows, (entries,))
    expected = expected_rows(fields, from_rows, to_rows, others)
    copy_rows(fields, from_rows, to_rows, sources=others)
    assert [rows_of(field) for field in fields] == expected


@pytest.mark.parametrize(("rows", "entries"), [(1, 1), (5, 5), (37, 20), (300, 300)])
@pytest.mark.parametrize("own", [True, False], ids=["in place", "from sources"])
def test_triton_equals_torch(launched, rows, entries, own):
    fields = noise(rows)
    sources = None if own else noise(rows + 3)
    for from_rows, to_rows in (
        some_entries(rows, entries, None if own else rows + 3),
        (torch.arange(entries).roll(1), torch.arange(entries)),
        (torch.full((entries,), NO_ROW), torch.arange(entries)),
    ):
        copies = [field.clone() for field in fields]
        copy_rows(copies, from_rows, to_rows, sources=sources, impl="torch")
        copy_rows(fields, from_rows, to_rows, sources=sources, impl="triton")
        assert [rows_of(a) for a in fields] == [rows_of(b) for b in copies]
    assert launched == ["copy_rows"] * 3 and resolve("triton", from_rows) == "triton"


@pytest.mark.parametrize("impl", ["torch", "triton"])
class TestBothForms:
    @pytest.fixture(autouse=True)
    def _path(self, launched, impl):
        yield
        assert ("copy_rows" in launched) == (impl == "triton")

    def test_rows_that_swap(self, impl):
        field = torch.arange(6).view(3, 2)
        copy_rows([field], torch.tensor([0, 2]), torch.tensor([2, 0]), impl=impl)
        assert field.tolist() == [[4, 5], [2, 3], [0, 1]]

    def test_a_parent_of_many(self, impl):
        field = torch.arange(5)
        copy_rows([field], torch.tensor([1, 1, 1]), torch.tensor([0, 2, 4]), impl=impl)
        assert field.tolist() == [1, 1, 1, 3, 1]

    def test_fields_that_are_each_others_sources(self, impl):
        a, b = torch.arange(3), torch.arange(3) + 10
        copy_rows([a, b], torch.arange(3), torch.arange(3), sources=[b, a], impl=impl)
        assert a.tolist() == [10, 11, 12] and b.tolist() == [0, 1, 2]

    def test_a_source_that_overlaps_its_field(self, impl):
        both = torch.arange(6)
        copy_rows([both[1:]], torch.arange(5), torch.arange(5), sources=[both[:5]], impl=impl)
        assert both.tolist() == [0, 0, 1, 2, 3, 4]

    def test_memory_around_a_field_and_odd_addresses(self, impl):
        for dtype in (torch.int8, torch.int16, torch.int32):
            around = torch.arange(45).to(dtype)
            field = around[5:37].view(4, 8)
            copy_rows([field], torch.tensor([0]), torch.tensor([3]), impl=impl)
            expected = list(range(45))
            expected[29:37] = expected[5:13]
            assert around.tolist() == expected

    def test_an_allocation_that_is_itself_at_an_odd_address(self, impl):
        memory = bytearray(range(200))
        for shift in range(8):
            base = torch.frombuffer(memory, dtype=torch.int8, offset=shift, count=100)
            for skip in (0, 4, 8 - shift):
                field = base[skip : skip + 24].view(3, 8)
                expected = [*field.tolist()[:2], field.tolist()[0]]
                copy_rows([field], torch.tensor([0]), torch.tensor([2]), impl=impl)
                assert field.tolist() == expected

    def test_nothing_named_changes_nothing(self, impl):
        fields = noise(4)
        before = [rows_of(field) for field in fields]
        skipped = torch.full((3,), NO_ROW)
        copy_rows(fields, skipped, torch.arange(3), impl=impl)
        copy_rows(fields, torch.arange(3), skipped, impl=impl)
        assert [rows_of(field) for field in fields] == before


def test_nothing_to_copy():
    none = torch.zeros(0, dtype=torch.int64)
    field = torch.arange(3)
    copy_rows([], torch.tensor([0]), torch.tensor([1]))
    copy_rows([field], none, none)
    copy_rows([field[:0]], torch.tensor([NO_ROW]), torch.tensor([NO_ROW]))
    assert field.tolist() == [0, 1, 2]


@pytest.mark.parametrize("own", [True, False])
def test_the_form_that_does_not_wait_equals_the_other(own):
    for entries in (1, 4, 9):
        fields = noise(9)
        sources = fields if own else noise(7)
        from_rows, to_rows = some_entries(9, entries, 9 if own else 7)
        for skipped in (False, True):
            if skipped:
                from_rows[:] = NO_ROW
            expected = expected_rows(fields, from_rows, to_rows, sources)
            _copy_without_waiting(tuple(fields), from_rows, to_rows, tuple(sources))
            assert [rows_of(field) for field in fields] == expected


def test_rows_out_of_range_are_skipped_where_nobody_looks(launched):
    from branchrt_gym.kernels import rows_triton

    from_rows = torch.tensor([0, 3, -2, 1, 2**40])
    to_rows = torch.tensor([5, 0, 1, 2, 3])
    for operation in (_copy_without_waiting, rows_triton.copy_rows):
        for apart in (False, True):
            field = torch.arange(3) + 10
            source = field.clone() if apart else field
            operation((field,), from_rows, to_rows, (source,))
            assert field.tolist() == [10, 11, 11]
    assert launched == ["copy_rows"] * 2


def one(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


ROWS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("fields", "from_rows", "to_rows", "sources", "message"),
    [
        (
            [one(3)],
            ROWS.int(),
            ROWS,
            None,
            "`from_rows` is torch.int32 of shape .*expected torch.i",
        ),
        ([one(3)], ROWS, ROWS.int(), None, "`to_rows` is torch.int32 of shape"),
        ([one(3)], ROWS, ROWS[:1], None, r"expected both of the same shape \(M,\)"),
        ([one(3)], ROWS[None], ROWS[None], None, r"expected both of the same shape \(M,\)"),
        ([one(3), one(4)], ROWS, ROWS, None, r"`fields\[1\]` is .* \(4,\); expected as many rows"),
        ([one(3), one()], ROWS, ROWS, None, r"`fields\[1\]` is .* \(\); expected as many rows"),
        ([one(3, 3).t()], ROWS, ROWS, None, r"with strides \(1, 3\); expected a contiguous"),
        ([one(3)], ROWS, ROWS, [], "`sources` has 0 tensors; expected 1"),
        (
            [one(3)],
            ROWS,
            ROWS,
            [one(3, 1)],
            r"`sources\[0\]` is .*expected the dtype and the trail",
        ),
        ([one(3)], ROWS, ROWS, [one(3).int()], r"`sources\[0\]` is torch.int32 of shape"),
        ([one(3).to("meta")], ROWS, ROWS, None, r"`fields\[0\]` is on 'meta'; expected 'cpu'"),
        ([one(3)], ROWS + 2, ROWS, None, r"`from_rows` has rows 2 .. 3; expected 0 .. 2.*NO_ROW"),
        ([one(3)], ROWS, ROWS - 2, None, r"`to_rows` has rows -2 .. -1; expected 0 .. 2"),
        ([one(3)], ROWS, ROWS, [one(1)], r"`from_rows` has rows 0 .. 1; expected 0 .. 0"),
    ],
)
def test_wrong_arguments_change_nothing(fields, from_rows, to_rows, sources, message):
    with pytest.raises(ValueError, match=message):
        copy_rows(fields, from_rows, to_rows, sources=sources)
    assert all(field.is_meta or not field.any() for field in fields)


def test_a_field_that_is_no_tensor():
    with pytest.raises(TypeError, match=r"`fields\[0\]` is of type list"):
        copy_rows([[1, 2]], ROWS, ROWS)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_values_are_written_without_a_gather(impl, launched):
    field, other = torch.arange(12).view(6, 2).clone(), torch.arange(6) % 3 == 0
    before = field.clone()
    source = torch.tensor([[50, 51], [60, 61]])
    write_rows([field, other], torch.tensor([4, 1]), [source, True], impl=impl)
    assert field[[4, 1]].tolist() == source.tolist()
    assert other.tolist() == [True, True, False, True, True, False]
    assert torch.equal(field[[0, 2, 3, 5]], before[[0, 2, 3, 5]])
    write_rows([field, other], torch.tensor([NO_ROW, 0]), [source, 0], impl=impl)
    assert field[0].tolist() == [60, 61] and torch.equal(field[5], before[5])
    assert other.tolist() == [False, True, False, True, True, False]
    # A value that is a piece of its field is read before anything is written.
    line, far = torch.arange(5), torch.zeros(3)
    write_rows([line], torch.tensor([1, 2, 3, 4]), [line[:4]], impl=impl)
    assert line.tolist() == [0, 0, 1, 2, 3]
    write_rows([far], torch.zeros(0, dtype=torch.int64), [7], impl=impl)
    write_rows([], torch.tensor([1]), [], impl=impl)
    assert far.tolist() == [0, 0, 0]
    assert ("copy_rows" in launched) == (impl == "triton")


@pytest.mark.parametrize(
    ("rows", "values", "message"),
    [
        (ROWS, [], "`values` has 0 entries; expected .* each of 1 fields"),
        (ROWS[None], [one(2)], r"`rows` is .*expected rows of shape \(M,\)"),
        (ROWS.int(), [1], "`rows` is torch.int32"),
        (ROWS, [one(3)], r"`values\[0\]` is .* \(3,\); expected as many rows"),
        (ROWS, [one(2).int()], r"`values\[0\]` is torch.int32"),
        (ROWS, [one(4)[::2]], r"`values\[0\]` .*contiguous"),
        (ROWS + 2, [1], "`rows` has rows 2 .. 3"),
        (ROWS - 2, [1], "`rows` has rows -2 .. -1"),
    ],
)
def test_wrong_values_change_nothing(rows, values, message):
    field = one(3)
    with pytest.raises(ValueError, match=message):
        write_rows([field], rows, values)
    assert not field.any()
