"""Both forms hold what a plain model holds; memory runs out where it must; no time is asserted."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from branchrt_gym.bench import capacity_commands, capacity_times
from branchrt_gym.bench.capacity import measure_capacity
from branchrt_gym.bench.capacity_check import check_population
from branchrt_gym.bench.capacity_contents import Contents, PopulationSizes
from branchrt_gym.bench.capacity_figures import CapacitySizes
from branchrt_gym.bench.capacity_forms import FORMS, DenseForm, PagedForm
from branchrt_gym.bench.capacity_report import capacity_notes, capacity_table, draw_capacity
from branchrt_gym.bench.capacity_room import Attempt, attempt, first_that_fails, in_child
from branchrt_gym.bench.capacity_times import measure_page_steps, measure_throughput
from branchrt_gym.bench.readme import figures
from branchrt_gym.bench.record import plain
from branchrt_gym.cli import app
from branchrt_gym.slots import FREE

MIB = 1 << 20
TINY = CapacitySizes(width=512, fanouts=(4, 16), mutations=(5,), budget=1 << 15)
SMALL = CapacitySizes(width=16_384, fanouts=(4, 16), mutations=(5,), budget=32 * MIB)


def model(sizes, turns):
    """Every branch's entries as whole rows, copied and then written, `[N, W]`."""
    contents = Contents(sizes, torch.device("cpu"))
    contexts = torch.empty(sizes.contexts, sizes.width, dtype=contents.dtype)
    contents.context(0, sizes.contexts, contexts)
    branches = torch.arange(sizes.branches)
    rows = contexts.numpy()[np.arange(sizes.branches) % sizes.contexts].copy()
    for turn in range(turns if sizes.run else 0):
        starts, values = contents.start(branches, turn), contents.value(branches, turn)
        for branch in range(sizes.branches):
            begin = int(starts[branch])
            rows[branch, begin : begin + sizes.run] = values[branch].numpy()
    return torch.from_numpy(rows)


def whole(population, first=0):
    sizes = population.sizes
    index = torch.arange(sizes.width).expand(sizes.branches, -1)
    return population.read(torch.arange(sizes.branches) + first, index)


CASES = [
    PopulationSizes(37, 5, 300, 0),
    PopulationSizes(37, 5, 300, 1, page_size=7),
    PopulationSizes(64, 4, 256, 13, "uint8"),
    PopulationSizes(23, 23, 301, 60, "uint8", page_size=32, block=200),
    PopulationSizes(50, 3, 128, 128, block=1),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", CASES)
def test_a_population_holds_what_a_plain_model_holds(form, sizes):
    population = FORMS[form](sizes, "cpu")
    population.build()
    rows = model(sizes, 1)
    assert torch.equal(whole(population), rows)
    index = torch.arange(sizes.width).expand(sizes.branches, -1)
    assert torch.equal(population.contents.expected(torch.arange(sizes.branches), index, 1), rows)
    compared, mismatches, first = check_population(population, 40)
    assert (compared, mismatches, first) == (41 * sizes.branches, 0, None)
    assert population.frontier.live.sum() == sizes.branches


def test_runs_and_branches_differ():
    rows = model(CASES[2], 1)
    assert rows.unique(dim=0).shape[0] == 64
    starts = Contents(CASES[2], torch.device("cpu")).start(torch.arange(64))
    assert starts.min() >= 0 and starts.max() <= 256 - 13 and starts.unique().numel() > 30


def test_the_pool_has_just_the_pages_that_are_needed():
    for sizes in CASES[1:]:
        population = PagedForm(sizes, "cpu")
        population.build()
        held = population.frontier.status != FREE
        assert population.pool.in_use == population.pool.capacity == population.pool.reachable(held)
        population.pool.invariants(held)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_held_is_told(form):
    sizes = PopulationSizes(40, 4, 1024, 64, page_size=64)
    population = FORMS[form](sizes, "cpu")
    population.build()
    held = population.held()
    if form == "dense":
        assert held["rows"] == 40 * 2048 and held["frontier"] < 80 * 40
        return
    starts = population.contents.start(torch.arange(40))
    pages = int(((starts + 63) // 64 - starts // 64 + 1).sum())
    assert (held["contexts"], held["table"]) == (4 * 2048, 40 * 16 * 4)
    assert (held["pages"], held["page_marks"]) == (pages * 128, pages * 8)
    assert held["frontier"] < 160 * 40


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_entry_is_found(form):
    population = FORMS[form](PopulationSizes(9, 2, 64, 6), "cpu")
    population.build()
    start = int(population.contents.start(torch.tensor([4]))[0])
    if form == "dense":
        population.content[4, start + 5] += 1
    else:
        cell = int(population.pool.table[4, (start + 5) // population.pool.page_size])
        population.pool.pool[cell, (start + 5) % population.pool.page_size] += 1
    _, mismatches, first = check_population(population, 64)
    assert mismatches and first.startswith(f"entry {start + 5} of branch 4 is ")


def test_a_branch_of_another_context_is_found():
    population = DenseForm(PopulationSizes(9, 2, 64, 6), "cpu")
    population.build()
    population.frontier.context_index[3] = 0
    assert check_population(population, 16)[1:] == (1, "branch 3 is of another context")


@pytest.mark.parametrize("guess", [1, 90, 1000, 1007, 5000])
@pytest.mark.parametrize("room", [3, 1006, 1007, 4000])
def test_where_memory_runs_out_is_found_from_any_guess(room, guess):
    asked = []

    def try_out(count):
        asked.append(count)
        return Attempt(fits=count <= room)

    found = first_that_fails(try_out, guess)
    assert found.fits <= room < found.fails and found.at.fits
    assert found.fails - found.fits <= max(1, 0.002 * room)
    assert found.tries == len(asked) == len(set(asked)) < 25


def test_the_search_for_the_limit_ends_where_nothing_fits_or_contents_differ():
    with pytest.raises(ValueError, match="not even 1 branches fit"):
        first_that_fails(lambda count: Attempt(fits=False), 50)
    wrong = Attempt(True, mismatches=2, first="entry 3")
    assert first_that_fails(lambda count: wrong, 50).at is wrong


@pytest.mark.parametrize("form", FORMS)
def test_a_population_beyond_the_budget_does_not_fit(form):
    sizes = PopulationSizes(1000, 250, 16_384, 819, block=1 << 16)  # 31 MiB dense, 11 paged
    held = attempt(form, sizes, "cpu")
    size = sum(held.held.values())
    assert held.fits and not held.mismatches and held.compared == 17 * 1000
    assert size < held.peak < 1.2 * size + MIB
    assert attempt(form, sizes, "cpu", int(1.2 * size) + MIB).fits
    assert not attempt(form, sizes, "cpu", int(0.9 * size)).fits


def raise_in_child():
    raise LookupError("in the child")


def test_what_a_child_raises_is_raised_here():
    with pytest.raises(LookupError, match="in the child"):
        in_child(raise_in_child)
    with pytest.raises(RuntimeError, match="ended with 3"):
        in_child(partial(__import__("os")._exit), 3)


def test_a_small_grid_comes_near_the_ideal():
    found = plain(measure_capacity(SMALL, methods=["peak", "capacity"]).row())
    assert found["mismatches"] == 0 and found["lineage_bytes_per_entry"] == 33
    assert found["dense"]["fits"] < 1024 == found["dense"]["peak_branches"]
    assert [(cell["fanout"], cell["mutation"]) for cell in found["cells"]] == [(4, 5), (16, 5)]
    for cell, ideal in zip(found["cells"], (3.333, 8.889), strict=True):
        assert cell["ideal"] == pytest.approx(ideal, rel=0.001)
        assert cell["fits"] < cell["fails"] <= 1.01 * cell["fits"]
        assert 0.7 < cell["share_of_ideal"] < 1.02
        assert cell["peak_multiple"] == pytest.approx(cell["multiple"], rel=0.15)
        assert cell["throughput"] is None
    assert capacity_table(found).row_count == 3
    assert capacity_notes(found)[0].startswith("0 mismatches in ")


@pytest.mark.parametrize("run", [0, 9, 64])
def test_rounds_leave_the_population_as_it_was(run):
    sizes = PopulationSizes(12, 3, 64, run, page_size=8, spare=12, spare_runs=12)
    for form in FORMS.values():
        population = form(sizes, "cpu")
        population.build()
        grow, retire = capacity_times._round(population)
        for _ in range(3):
            grow()
            assert torch.equal(whole(population, first=12), model(sizes, 2))
            assert torch.equal(whole(population), model(sizes, 1))
            assert bool(population.frontier.live.all())
            retire()
            assert torch.equal(whole(population), model(sizes, 1))
            assert population.frontier.live.tolist() == [True] * 12 + [False] * 12
        if form is PagedForm and run:
            held = population.frontier.status != FREE
            assert population.pool.in_use == population.pool.reachable(held)


def test_rounds_are_timed_by_turns():
    sizes = PopulationSizes(12, 3, 64, 9, spare=12, spare_runs=12)
    found = measure_throughput(sizes, repetitions=3, device="cpu")
    assert (found.compared, found.mismatches) == (2 * 2 * 65 * 12, 0)
    assert {name: len(spent) for name, spent in found.seconds.items()} == {"dense": 3, "paged": 3}
    assert found.row()["ratio"].count == 3


def test_throughput_is_of_one_fanout():
    found = measure_capacity(TINY, methods=["throughput"], repetitions=2)
    rows = plain(found.row())["cells"]
    assert [cell["throughput"] and cell["throughput"]["branches"] for cell in rows] == [None, 16]
    assert found.compared == 2 * 2 * 513 * 16 and found.mismatches == 0
    assert capacity_table(plain(found.row())).row_count == 2


def test_a_difference_is_told_and_nothing_is_timed(monkeypatch):
    write = PagedForm.write
    monkeypatch.setattr(PagedForm, "write", lambda self, *run: write(self, *run[:2], run[2] + 1))
    found = measure_capacity(TINY, methods=["throughput"], repetitions=1)
    assert found.mismatches and found.first.startswith("paged: entry ")
    row = plain(found.row())
    assert row["cells"] == [] and found.cells[1].throughput.seconds == {}
    assert capacity_notes(row)[0].startswith("The contents differ, so no figure is given.")


def test_forks_and_reclamation_of_many_pages():
    found = measure_page_steps(
        branches=50, state_bytes=1024, page_bytes=64, repetitions=2, device="cpu"
    )
    assert (found.compared, found.mismatches, found.first) == (65 * 50 + 2, 0, None)
    assert {name: len(spent) for name, spent in found.seconds.items()} == {"fork": 2, "reclaim": 2}


def test_pages_that_are_kept_too_long_are_found(monkeypatch):
    monkeypatch.setattr(PagedForm, "reclaim", lambda self: None)
    found = measure_page_steps(
        branches=50, state_bytes=1024, page_bytes=64, repetitions=2, device="cpu"
    )
    assert found.seconds == {} and found.first == "50 pages are in use of half, not 25"


def test_runs_written_in_triton():
    pytest.importorskip("triton")
    from branchrt_gym.bench.capacity_triton import write_runs

    device = "cuda" if torch.cuda.is_available() else "cpu"
    content = torch.zeros(7, 9001, dtype=torch.int16, device=device)
    rows, start = (torch.tensor(x, device=device) for x in ([5, 2], [3, 700]))
    value = torch.arange(2 * 5001, device=device).view(2, 5001).to(torch.int16)
    wanted = content.clone()
    wanted[5, 3:5004], wanted[2, 700:5701] = value
    write_runs(content, rows, start, value)
    assert torch.equal(content, wanted)


def test_the_command_writes_rows_that_the_readme_shows(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(capacity_commands, "BUDGET", {"cpu": 2 / 1024})
    out = tmp_path / "rows.jsonl"
    words = "bench capacity --width 1024 --fanout 8 --mutation 5 --repetitions 1".split()
    words += ["--out", str(out)]
    plot = ["--plot", str(tmp_path / "plot" / "capacity.png")]
    ran = CliRunner().invoke(app, [*words, *plot])
    assert ran.exit_code == 0, ran.output
    assert "5.71×" in ran.output and "6.73×" in ran.output
    ran = CliRunner().invoke(app, [*words, "--method", "step", "--branches", "64"])
    assert ran.exit_code == 0, ran.output
    capacity, steps = (json.loads(line) for line in out.read_text().splitlines())
    assert capacity["bench"] == "capacity" and steps["bench"] == "page-steps"
    assert "--width 1024 --method capacity" in capacity["command"]
    assert (tmp_path / "plot" / "capacity.png").stat().st_size > 10_000
    shown = figures([{**row, "commit": "0123456789"} for row in (capacity, steps)])
    assert "against dense rows of 1,024 int16 entries, 5 % overwritten" in shown
    assert "fork of 64 branches with 512 KiB of paged state each" in shown


def test_a_picture_of_two_widths(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [plain(measure_capacity(TINY, methods=["peak"]).row())] * 2
    draw_capacity(rows, tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--method speed", "`methods` is ['speed'] and `repetitions` 7; expected of capacity"),
        ("--dtype int8", "`dtype` is 'int8'; expected one of int16, uint8"),
        ("--budget 0.001", "`budget` is 1,073,741 bytes and a branch's row 524,288"),
        ("--width 8 --fanout 9", "`fanouts` is (9,); expected values in 1 … 8"),
    ],
)
def test_wrong_calls(options, message):
    ran = CliRunner().invoke(app, ["bench", "capacity", *options.split()])
    assert ran.exit_code == 2
    assert message in ran.output
