"""The expansion's bench compares before it times; no time is asserted."""

import json

import pytest
import torch
from typer.testing import CliRunner

from branchrt_gym import DeepTree, expand_fused
from branchrt_gym.bench.expand import measure_expand
from branchrt_gym.bench.expand_forms import ExpandForms, ExpandSizes, TorchTree
from branchrt_gym.bench.readme import figures
from branchrt_gym.bench.report import expand_table
from branchrt_gym.cli import app

pytest.importorskip("triton")

SMALL = {"parents": 60, "roots": 6, "width": 101, "fanout": 3}


@pytest.fixture
def interpreted(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("Triton interprets only where there is no GPU")
    monkeypatch.setattr(expand_fused, "LEAST", 1)
    monkeypatch.setattr(expand_fused, "resolve", lambda impl, tensor: "triton")


@pytest.mark.parametrize("order", ["grouped", "mixed"])
def test_every_form_is_compared_and_timed(interpreted, order):
    times = measure_expand(ExpandSizes(**SMALL, order=order), repetitions=2, device="cpu")
    # Twelve columns and six of an entry twice, rewards and done once, position and score again.
    assert (times.mismatches, times.compared, times.first) == (0, 180 * (2 * 18 + 2 + 2), None)
    assert set(times.seconds) == {"full", "bare", "reads", "step", "torch"}
    assert all(spent.count == 2 for spent in times.seconds.values())
    assert times.bytes_per_child == {"full": 106 + 56 / 3, "bare": 8 + 20 / 3}
    assert expand_table(times).row_count == 7


def test_the_branches_of_a_root_lie_as_was_asked(interpreted):
    for order, expected in (
        ("grouped", [0, 1, 2, *(root for root in range(3) for _ in range(4))]),
        ("mixed", [0, 1, 2] * 5),
    ):
        sizes = ExpandSizes(parents=15, roots=3, width=50, fanout=2, order=order)
        forms = ExpandForms(sizes, "cpu")
        assert forms.frontier.root[:15].tolist() == expected
        assert int(forms.frontier.live.sum()) == 15


def test_a_difference_is_told_and_nothing_is_timed(interpreted, monkeypatch):
    def transition(self, shared, branches, action):
        step = DeepTree.transition(self, shared, branches, action)
        return step._replace(reward=step.reward + (branches.context_index == 5).int())

    monkeypatch.setattr(TorchTree, "transition", transition, raising=False)
    times = measure_expand(ExpandSizes(**SMALL), repetitions=1, device="cpu")
    assert times.mismatches == 3 * 30 and times.first == "`entry's reward` of the form `step`"
    assert times.seconds == {} and times.row()["children_per_second"] == {}
    assert expand_table(times).row_count == 1


def test_the_command_writes_a_row_that_the_readme_shows(interpreted, tmp_path):
    out = tmp_path / "rows.jsonl"
    options = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    ran = CliRunner().invoke(
        app,
        ["bench", "expand", *options, "--repetitions", "1", "--device", "cpu", "--out", str(out)],
    )
    assert ran.exit_code == 0, ran.output
    assert "random reads" in ran.output
    row = json.loads(out.read_text())
    assert row["bench"] == "expand" and row["sizes"] == {**SMALL, "order": "grouped"}
    row["commit"] = "0123456789"
    assert "180 children in one call, 6 roots × 101" in figures([row])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cpu"], "`device` is 'cpu' and there are"),
        (["--roots", "7"], "`parents` is 60; expected a multiple of the 7 roots"),
        (["--order", "sorted"], "`order` is 'sorted'; expected one of grouped, mixed"),
    ],
)
def test_wrong_calls(options, message):
    given = ["--parents", "60", "--roots", "6", "--width", "99", "--device", "cpu", *options]
    ran = CliRunner().invoke(app, ["bench", "expand", *given])
    assert ran.exit_code == 2
    assert message in ran.output
