"""All forms of the search find the same; a difference is named and then nothing is timed."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from branchrt_gym import DeepTree, make_roots
from branchrt_gym.bench import commands, deep_tree_gpu
from branchrt_gym.bench import forms as forms_module
from branchrt_gym.bench.batcher import GeneralBatcher
from branchrt_gym.bench.deep_tree import Sizes
from branchrt_gym.bench.deep_tree_gpu import compare_forms
from branchrt_gym.bench.form import NotRunError
from branchrt_gym.bench.forms import EXPERTS, FORMS, LABELS
from branchrt_gym.bench.forms_figures import RATIOS
from branchrt_gym.bench.forms_readme import form_lines
from branchrt_gym.bench.forms_report import draw_forms, forms_notes, forms_table
from branchrt_gym.bench.mismatches import compare_places
from branchrt_gym.bench.readme import figures
from branchrt_gym.bench.record import plain
from branchrt_gym.cli import app
from branchrt_gym.errors import MissingExtraError

TRITON = ("captured", "fused", "floor", "chase")
TORCH = ("batcher", "batcher_graph", "dense", "eager", "torch")
SMALL = Sizes(3, 512, 8, 4, 5)


def test_every_form_has_a_label_and_the_ratios_name_forms():
    assert set(LABELS) == set(FORMS) and set(EXPERTS) < set(FORMS)
    assert {name for *pair, _ in RATIOS.values() for name in pair} < set(FORMS)


@pytest.mark.parametrize(
    "sizes", [SMALL, Sizes(2, 1000, 5, 3, 7), Sizes(1, 64, 20, 2, 3), Sizes(4, 97, 1, 1, 2)]
)
def test_the_forms_in_torch_find_the_same(sizes):
    found = compare_forms(sizes, seeds=2, repetitions=4, device="cpu", names=TORCH)
    assert found.equal
    row = plain(found.row())
    kept = min(sizes.beam, sizes.fanout**sizes.depth)
    for name in TORCH:
        form = row["forms"][name]
        values = 2 if name == "torch" else 5 if name != "eager" else 7
        here = form["compared"] - (0 if name != "eager" else 2 * _choices(sizes))
        assert here == 2 * sizes.roots * kept * values and form["mismatches"] == 0, name
        aside = name in ("batcher", "dense", "eager")
        assert form["wall_seconds"]["count"] == (2 if aside else 8)
        assert form["wall_seconds"]["seeds"] == 2 and form["seconds"] is None
    assert row["sharing_efficiency"] == pytest.approx(
        1 - sizes.roots * sizes.width * 2 / row["batcher_bytes"]
    )


def _choices(sizes):
    kept, total = 1, 0
    for _ in range(sizes.depth):
        kept = min(sizes.beam, kept * sizes.fanout)
        total += kept * sizes.roots
    return total


def test_the_forms_in_triton_find_the_same():
    pytest.importorskip("triton", reason="these forms need Triton")
    sizes = Sizes(2, 256, 8, 4, 3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = compare_forms(sizes, seeds=1, repetitions=1, device=device, names=TRITON)
    assert found.equal and not any(form.not_run for form in found.forms.values())
    compared = {name: form.mismatches for name, form in found.forms.items()}
    assert compared["chase"] is None and compared["floor"].compared == 2 * 8 * 2
    assert compared["fused"].compared == compared["captured"].compared > 2 * 8 * 8
    assert set(found.shares) == {"captured"}
    assert 0 < found.shares["captured"].share <= 1 <= found.shares["captured"].amdahl


def test_roots_of_seeds_differ(monkeypatch):
    seen = []
    make = FORMS["torch"]

    def keep(at, made):
        seen.append(at.roots.seed.tolist())
        return make(at, made)

    monkeypatch.setitem(FORMS, "torch", keep)
    compare_forms(SMALL, seeds=3, repetitions=1, device="cpu", names=["torch"])
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_wrong_form_is_named_and_nothing_is_timed(monkeypatch):
    make = FORMS["torch"]

    def wrong(at, made):
        form = make(at, made)

        def found():
            places = dict(form.found())
            places["score"] = places["score"].clone()
            places["score"][1, 2] += 1
            return places

        return replace(form, found=found)

    monkeypatch.setitem(FORMS, "torch", wrong)
    found = compare_forms(SMALL, seeds=2, repetitions=2, device="cpu", names=["batcher", "torch"])
    row = plain(found.row())
    assert not found.equal and list(found.differing) == ["torch"]
    assert row["mismatches"] == 1 and "`score` of root 1, rank 2" in row["first_difference"]
    assert all(form["wall_seconds"] is None for form in row["forms"].values())
    assert row["copy_bandwidth"] is None
    assert "rank 2" in forms_notes(row)[0]


def test_places_of_other_shapes_differ():
    score = torch.zeros(2, 3)
    assert compare_places({"score": score}, {"score": score}, "it").count == 0
    for found in ({"score": score[:, :2]}, {"other": score}):
        assert compare_places({"score": score}, found, "it").count == 1


def test_what_does_not_run_says_why(monkeypatch):
    monkeypatch.setattr(forms_module, "DENSE_SECONDS", 0.0)
    names = ["batcher_graph", "dense", "floor", "jax"]
    sizes = Sizes(2, 999, 3, 3, 4)
    found = compare_forms(sizes, seeds=2, repetitions=1, device="cpu", names=names)
    reasons = {name: form.not_run for name, form in found.forms.items()}
    assert reasons["batcher_graph"] == "the batcher is not run"
    assert "of 4 levels" in reasons["dense"]
    assert "not 9" in reasons["floor"] and "powers of two" in reasons["jax"]
    row = plain(found.row())
    assert row["forms"]["dense"] == {"not_run": reasons["dense"]}
    assert forms_table(row).row_count == len(forms_notes(row)) == 4


def test_no_memory_for_the_batcher(monkeypatch):
    def make(*arguments, **options):
        return GeneralBatcher(*arguments, free_bytes=10, **options)

    monkeypatch.setattr(forms_module, "GeneralBatcher", make)
    found = compare_forms(SMALL, seeds=1, repetitions=1, device="cpu", names=TORCH)
    assert "GiB are free" in found.forms["batcher"].not_run
    assert found.forms["batcher_graph"].not_run and found.forms["torch"].samples
    assert found.copy_share() is None and plain(found.row())["sharing_efficiency"] is None


@pytest.mark.parametrize("given", ["seeds", "repetitions"])
def test_wrong_counts(given):
    with pytest.raises(ValueError, match=f"`{given}` is 0"):
        compare_forms(SMALL, device="cpu", **{given: 0})


def test_a_batcher_that_does_not_ask_finds_the_same_and_children_own_rows():
    env = DeepTree(width=128, depth=6)
    roots = make_roots(env, 4)
    asking = GeneralBatcher(env, roots, 8, 6).run()
    dense = GeneralBatcher(env, roots, 8, 6, children=True)
    for batcher in (GeneralBatcher(env, roots, 8, 6, surely_open=6), dense):
        found = batcher.run()
        assert torch.equal(found.score, asking.score)
        assert torch.equal(found.solved, asking.solved)
        assert bool(found.terminated.all())
    survivors, children = (rows["context"] for rows in dense.buffers)
    assert (len(survivors), len(children)) == (4 * 8, 4 * 8 * 4)
    assert torch.equal(children[:32], roots.shared["context"][0].expand(32, -1))
    assert found.copied == sum(
        4 * rows * (256 + 9 * 4)
        for kept in (1, 4, 8, 8, 8, 8)
        for rows in (4 * kept, min(8, 4 * kept))
    )


def _row(roots, **more):
    found = deep_tree_gpu.compare_forms(SMALL, seeds=1, repetitions=2, device="cpu", names=TORCH)
    row = plain(found.row())
    estimate = {"interquartile_mean": 2.5e-4, "low": 2e-4, "high": 3e-4, "seeds": 1, "count": 2}
    for name in FORMS:
        row["forms"].setdefault(name, {"not_run": "not here"})
        row["forms"][name] |= {"seconds": estimate, "wall_seconds": estimate}
    ratio = {**estimate, "interquartile_mean": 300.0 + roots / 128, "low": 299.0, "high": 312.0}
    experts = (f"{name}_over_fused" for name in ("expert", *EXPERTS))
    row["ratios"] |= dict.fromkeys((*RATIOS, *experts), ratio)
    row["batcher_copy_share"] = {**estimate, "interquartile_mean": 0.8125}
    row["sizes"] = {**row["sizes"], "roots": roots}
    place = {"hardware": {"device": "cuda", "gpu": "A GPU"}, "versions": {"torch": "2.11"}}
    return {**row, **place, "commit": "0" * 40, **more}


def test_rows_become_lines_of_the_readme(tmp_path):
    rows = [_row(roots) for roots in (1024, 64, 128)]
    lines = figures(rows).splitlines()[2:]
    assert len(lines) == len([*form_lines(rows)]) == 1 + 3 * 2 + 1
    assert lines[0].startswith("| fused search against a general batcher")
    assert "128 roots × 512, beam 8" in lines[0] and "**301×** (299 … 312)" in lines[0]
    assert "run at 81% of the copy bandwidth; 0 mismatches in " in lines[0]
    assert "of torch (torch 301×, compiled torch 301×, " in lines[3] and "wall time" in lines[3]
    assert "64, 128, 1,024 roots | 300×, 301×, 308× | A GPU, torch 2.11" in lines[-1]
    newer = _row(128, mismatches=7)
    assert "7 mismatches" in figures([*rows, newer]).splitlines()[2]
    assert figures([newer, *rows]) == figures(rows)
    assert json.dumps(rows)


def test_a_picture_of_any_rows(tmp_path):
    pytest.importorskip("matplotlib", reason="a picture needs the extra `plot`")
    for rows in ([_row(64)], [_row(roots) for roots in (256, 64, 128)]):
        path = tmp_path / "new" / f"{len(rows)}.png"
        draw_forms(rows, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"branchrt-gym\[plot\]"):
        draw_forms([], tmp_path / "forms.png")


def test_a_form_that_cannot_run_is_asked_once(monkeypatch):
    asked = []

    def refuse(at, made):
        asked.append(at.roots.seed[0].item())
        raise NotRunError("no")

    monkeypatch.setitem(FORMS, "floor", refuse)
    compare_forms(SMALL, seeds=3, repetitions=1, device="cpu", names=["floor"])
    assert asked == [0]


def test_the_command_writes_rows_and_draws(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="a picture needs the extra `plot`")
    few = partial(deep_tree_gpu.compare_forms, names=TORCH)
    monkeypatch.setattr(deep_tree_gpu, "compare_forms", few)
    out, plot = tmp_path / "rows.jsonl", tmp_path / "forms.png"
    sizes = [SMALL, replace(SMALL, roots=5)]
    assert commands._compare_forms(sizes, 1, 2, "cpu", out, plot)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["sizes"]["roots"] for row in rows] == [3, 5]
    assert rows[1]["command"] == (
        "branchrt bench deep-tree --roots 5 --width 512 --beam 8 --fanout 4 --depth 5 "
        "--repetitions 2 --seeds 1 --device cpu"
    )
    assert all(row["bench"] == "deep-tree-gpu" and row["mismatches"] == 0 for row in rows)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_on_the_cpu_each_size_is_a_row_and_nothing_is_drawn(tmp_path):
    out = tmp_path / "rows.jsonl"
    call = ["bench", "deep-tree", "--roots", "2", "--roots", "3", "--width", "97", "--depth", "4"]
    done = CliRunner().invoke(app, [*call, "--repetitions", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["bench"], row["sizes"]["roots"]) for row in rows] == [
        ("deep-tree", 2),
        ("deep-tree", 3),
    ]
    refused = CliRunner().invoke(app, [*call, "--plot", str(tmp_path / "forms.png")])
    assert refused.exit_code == 2 and "--plot" in refused.output


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_form_on_a_device(tmp_path):
    found = compare_forms(Sizes(8, 4096), seeds=2, repetitions=2)
    assert found.equal
    ran = {name for name, form in found.forms.items() if form.not_run is None}
    assert ran >= set(FORMS) - {"jax", "dense"}  # not installed; too slow on a machine in use
    for name in ran:
        form = found.forms[name]
        on_device = name not in ("batcher", "eager", "jax")
        assert set(form.samples) == {"wall", "warm", *(["device"] if on_device else [])}
