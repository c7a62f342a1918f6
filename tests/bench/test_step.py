"""The step bench compares before it times, on both environments; no time is asserted."""

import json
import re

import pytest
from typer.testing import CliRunner

from branchrt_gym.bench.readme import figures
from branchrt_gym.bench.report import step_table
from branchrt_gym.bench.step import HandSizes, StepSizes, compare_step
from branchrt_gym.cli import app
from branchrt_gym.envs.blackjack_oracle import BlackjackOracle
from branchrt_gym.envs.deep_tree_oracle import DeepTreeOracle

TREES, HANDS = StepSizes(24, 3, width=97, depth=5), HandSizes(70, 9, steps=60)


@pytest.mark.parametrize(
    ("sizes", "values"),
    [(TREES, 3 * (5 * 11 + 4 * 3)), (HANDS, 9 * (61 * 3 + 60 * 3))],
    ids=["trees", "hands"],
)
def test_both_sides_are_equal_and_timed(sizes, values):
    found = compare_step(sizes, repetitions=2)
    assert (found.mismatches, found.compared, found.first) == (0, values, None)
    assert found.branching.count == found.oracles.count == found.oracle.count == 2
    assert found.row()["env"] == sizes.env and found.row()["steps"] == sizes.steps
    assert step_table(found).row_count == 5


class Generous(BlackjackOracle):
    """Pays a natural more."""

    def __init__(self):
        super().__init__(natural=True)


class Forgetful(BlackjackOracle):
    """Deals the first episode again after every reset."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"episode": 0})


class Short(DeepTreeOracle):
    def advance(self, action, key):
        reward, terminated, truncated, solved = super().advance(action, key)
        return reward, terminated or self.depth == 2, truncated, solved


@pytest.mark.parametrize(
    ("sizes", "oracle", "what"),
    [
        (HANDS, Generous, "`reward` of root"),
        (HANDS, Forgetful, r"`observation\[\d\]` of root"),
        (TREES, lambda: Short(width=97, depth=5), "`terminated` of root 0 after 3 steps"),
    ],
)
def test_a_difference_is_told_and_nothing_is_timed(monkeypatch, sizes, oracle, what):
    monkeypatch.setattr(type(sizes), "oracle", lambda self: oracle())
    found = compare_step(sizes, repetitions=2)
    assert found.mismatches > 0 and not found.equal
    assert found.branching is found.oracles is found.ratio is None
    assert re.search(what, found.first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepSizes(depth=1), "`depth` is 1"),
        (lambda: StepSizes(slots=4, roots=5), "`roots` is 5; expected 1 … 4"),
        (lambda: HandSizes(steps=0), "`steps` is 0"),
        (lambda: HandSizes(slots=4, oracles=5), "`oracles` is 5; expected 1 … 4"),
        (lambda: compare_step(HANDS, repetitions=0), "`repetitions` is 0"),
    ],
)
def test_wrong_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_command_keeps_a_row_of_each_environment(tmp_path):
    out = tmp_path / "rows.jsonl"
    common = ("bench", "step", "--repetitions", "2", "--slots", "24", "--roots", "3")
    for more in (("--width", "97", "--depth", "5"), ("--env", HandSizes.env, "--steps", "9")):
        done = CliRunner().invoke(app, [*common, *more, "--out", str(out)])
        assert done.exit_code == 0, done.output
    tree, hands = rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert (tree["env"], hands["env"]) == (StepSizes.env, HandSizes.env)
    assert hands["sizes"] == {"slots": 24, "oracles": 3, "steps": 9}
    assert hands["command"].endswith(
        "--env branchrt/Blackjack-v0 --slots 24 --roots 3 --steps 9 --repetitions 2"
    )
    for row in rows:
        row["commit"] = "0" * 40
    lines = figures(rows).splitlines()[2:]
    assert lines[0].startswith(
        "| steps of 24 roots of `branchrt/Blackjack-v0`, restarts included, against "
        "`SyncVectorEnv` of 3 scalar oracles |"
    )
    assert lines[1].startswith(
        "| live steps of 24 slots of 3 roots, forked full, against `SyncVectorEnv` of 3 scalar "
        "oracles |"
    )
    assert lines[2].startswith("| reset of 24 roots in 64 contexts |")
    # A row from before there were two environments is DeepTree's, and an older one is replaced.
    old = {name: value for name, value in tree.items() if name != "env"}
    assert figures([old, *rows]) == figures(rows)
    assert figures([hands, old]) == figures(rows)


def test_an_environment_it_cannot_step():
    done = CliRunner().invoke(app, ["bench", "step", "--env", "branchrt/SharedCounter-v0"])
    assert done.exit_code == 2 and "SharedCounter" in done.output
