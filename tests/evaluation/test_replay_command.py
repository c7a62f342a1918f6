"""`branchrt replay swebench`: its figures, its JSON, what it says beside them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from plain_replay import CHOICES, DATA, PLAIN_ORDERS, needs_data, plain_choice, plain_replay
from typer.testing import CliRunner

from branchrt_gym.evaluation.replay_command import ORDERS, replay


def call(*arguments: object, code: int = 0) -> str:
    found = CliRunner().invoke(replay, ["swebench", *map(str, arguments)])
    assert found.exit_code == code, found.output
    return found.output


def call_json(*arguments: object) -> dict[str, Any]:
    text = call(*arguments, "--json")
    return dict(json.loads(text[text.index("{") :]))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two submissions: `a` is dear and resolves i0 and i1, `b` is cheap and resolves i1 and i2."""
    for name, resolved, cost in (("20250101_a", "110", 2.0), ("20250102_b", "011", 0.5)):
        path = tmp_path / "evaluation" / "verified" / name / "per_instance_details.json"
        path.parent.mkdir(parents=True)
        rows = {
            f"i{place}": {"resolved": flag == "1", "cost": cost, "api_calls": 10 + place}
            for place, flag in enumerate(resolved)
        }
        path.write_text(json.dumps(rows))
    return tmp_path


def test_json_of_one_ordering(checkout: Path) -> None:
    found = call_json(checkout, "--order", "low_cost_first", "--target", "1.0", "--seed", 3)
    expected = {
        "submissions": ["20250101_a", "20250102_b"],
        "instances": 3,
        "roots": 3,
        "budget": 6,
        "target": 3,
        "ordering": "low_cost_first",
        "attempts": 4,
        "attempts_full_rounds": 4,
        "budget_share": 4 / 6,
        "solved": 3,
        "reached": True,
        "cost_usd": 3.5,
        "cost_usd_full_rounds": 3.5,
        "order": ["20250102_b", "20250101_a"],
        "order_differs_by_root": False,
        "needs_labels": False,
        "calls": 10 + 11 + 12 + 10,
        "calls_in_turn": 12 + 10,
        "waves": 2,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["random_order"]["seeds"] == 200
    # Either sequence takes 4 attempts; b, a costs 3.5 dollars and a, b 6.5.
    assert found["random_order"]["attempts_over_seeds"] == dict.fromkeys(
        ("mean", "median", "low", "high"), 4.0
    )
    assert found["random_order"]["cost_usd_over_seeds"]["low"] == 3.5
    assert found["random_order"]["cost_usd_over_seeds"]["high"] == 6.5


def test_a_count_and_a_share(checkout: Path) -> None:
    one = call_json(checkout, "--order", "manifest_order", "--target", "1")
    assert (one["target"], one["attempts"], one["attempts_full_rounds"]) == (1, 1, 3)
    assert (one["cost_usd"], one["cost_usd_full_rounds"]) == (2.0, 6.0)
    assert call_json(checkout, "--order", "manifest_order", "--target", "0.5")["target"] == 2


def test_all_orderings_are_in_the_report(checkout: Path) -> None:
    options = "--random-seeds", 5, "--bandit-seeds", 3
    found = call_json(checkout, "--seconds-per-call", 36, *options)
    assert [row["ordering"] for row in found["orderings"]] == list(ORDERS)
    rows = {row["ordering"]: row for row in found["orderings"]}
    assert {name for name, row in rows.items() if row["needs_labels"]} == {
        "oracle_best",
        "oracle_each_root",
    }
    assert (rows["random"]["seeds"], rows["bandit"]["seeds"]) == (5, 3)
    cheap = rows["low_cost_first"]
    assert cheap["hours_one_by_one"] == pytest.approx(cheap["calls"] / 100)
    assert cheap["hours_all_at_once"] == pytest.approx(cheap["calls_in_turn"] / 100)
    text = call(checkout, *options)
    assert all(name in text for name in ORDERS)
    assert "random: median of 5 seeds; bandit: mean of 3 seeds; bandit_by" in text
    assert "made with the verdicts" in text and "a limit that was hit" in text


def test_replication_is_said_to_prove_nothing(checkout: Path) -> None:
    short = "--order", "manifest_order", "--target", "0.5"
    assert "proves nothing about new tasks" not in call(checkout, *short)
    assert "proves nothing about new tasks" in call(checkout, *short, "--roots", 30)
    found = call_json(checkout, *short, "--roots", 30)
    assert (found["roots"], found["instances"], found["target"]) == (30, 3, 15)
    assert any("30 roots repeat 3 instances" in note for note in found["notes"])


def test_what_is_left_out_is_said(checkout: Path) -> None:
    (checkout / "evaluation/verified/20240101_old").mkdir()
    found = call_json(checkout, "--order", "manifest_order")
    assert any("1 submissions could not be read" in note for note in found["notes"])


def test_a_target_out_of_reach_is_said(checkout: Path) -> None:
    shorter = "--order", "manifest_order", "--submissions", "_b", "--target", "1.0"
    assert "stopped at 2" in call(checkout, *shorter)
    found = call_json(checkout, *shorter)
    assert (found["reached"], found["solved"], found["attempts"]) == (False, 2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--order", "best"), "`--order` is 'best'; expected all, or one of manifest_order"),
        (("--target", "most"), "`--target` is 'most'; expected a share"),
        (("--target", "1.5"), "`target` is 1.5; expected a count"),
        (("--submissions", "zz"), "submission 'zz' fits 0 of 2"),
        (("--split", "lite"), "`split` is 'lite'"),
    ],
)
def test_misuse_is_one_line(checkout: Path, options: tuple[str, str], message: str) -> None:
    assert message in call(checkout, *options, code=2)


@needs_data
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("roots", [500, 64_000])
def test_real_figures_equal_the_plain_replay(choice: str, roots: int) -> None:
    options = "--submissions", choice, "--order", "low_cost_first", "--roots", roots
    found = call_json(DATA, *options, "--random-seeds", 3)
    sequence = PLAIN_ORDERS["low_cost_first"](plain_choice(choice))
    attempts, full, dollars, _, solved = plain_replay(sequence, 0.8, roots // 500)
    assert (found["attempts"], found["attempts_full_rounds"]) == (attempts, full)
    assert found["solved"] == solved == 0.8 * roots
    assert found["cost_usd"] == pytest.approx(dollars)
    assert found["budget_share"] == attempts / (roots * len(sequence))
    assert found["order"] == [each.name for each in sequence]
    copies = [note for note in found["notes"] if re.search("repeat 500 instances.*nothing", note)]
    assert len(copies) == (roots > 500)
