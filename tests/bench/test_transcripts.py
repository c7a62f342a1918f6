"""The transcripts' bench compares before it counts and times; no time is asserted."""

import json
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

from branchrt_gym.bench import transcripts
from branchrt_gym.bench.readme import figures
from branchrt_gym.bench.transcript_stores import (
    Copies,
    TranscriptSizes,
    branched,
    exported,
    spoken,
)
from branchrt_gym.bench.transcripts import compare_transcripts, transcripts_table
from branchrt_gym.cli import app

SMALL = TranscriptSizes(7, 3, shared_turns=3, own_turns=2, tokens=5, least=0)
ROOTS = [0, 0, 0, 1, 1, 2, 2]  # of the trajectories
ENTRY = 8 + 8 + 4 + 1 + 8 + 4 + 5 * 4 + 4  # links and ids, root, flags, action, reward, and `log`


@pytest.mark.parametrize(
    "sizes",
    [
        SMALL,
        TranscriptSizes(6, 1, shared_turns=0, own_turns=3, tokens=4),
        TranscriptSizes(4, 4, shared_turns=2, own_turns=1, tokens=1, least=0),
        TranscriptSizes(1, 1, shared_turns=1, own_turns=1, tokens=3, least=3),
    ],
    ids=str,
)
def test_both_stores_give_the_padded_batches_of_what_was_said(sizes):
    turns = spoken(sizes, seed=4)
    said = []
    for trajectory in range(sizes.trajectories):
        root = int(sizes.root_of[trajectory])
        rows = [root] * sizes.shared_turns + [trajectory] * sizes.own_turns
        said.append([(turn, row) for turn, row in zip(turns, rows, strict=True)])
    words = [
        [
            (int(token), step)
            for step, (turn, row) in enumerate(path)
            for token in turn.tokens[row][: turn.length[row]]
        ]
        for path in said
    ]
    longest = max(map(len, words))
    padding = [[(0, sizes.turns)] * (longest - len(row)) for row in words]
    padded = [row + more for row, more in zip(words, padding, strict=True)]
    wanted = {
        "tokens": [[token for token, _ in row] for row in padded],
        "mask": [[place < len(row) for place in range(longest)] for row in words],
        "step": [[step for _, step in row] for row in padded],
        "length": [[int(turn.length[row]) for turn, row in path] for path in said],
        "reward": [[float(turn.reward[row]) for turn, row in path] for path in said],
        "turns": [sizes.turns] * sizes.trajectories,
    }
    for batches in (exported(*branched(sizes, turns)), Copies(sizes, turns).export()):
        assert {name: values.tolist() for name, values in batches.items()} == wanted


def test_trajectories_are_dealt_to_the_roots_in_order():
    assert SMALL.root_of.tolist() == ROOTS
    assert SMALL.stored_once == 3 * 3 + 7 * 2


def test_a_shared_turn_is_in_the_lineage_once():
    turns = spoken(SMALL, seed=0)
    frontier, _ = branched(SMALL, turns)
    columns, count = frontier.lineage.columns, int(frontier.lineage.count)
    transitions = (columns["flags"][:count] & 1) != 0
    stored = Counter(map(tuple, columns["tokens"][:count][transitions].tolist()))
    assert stored == Counter(tuple(row) for turn in turns for row in turn.tokens.tolist())
    assert set(stored.values()) == {1}


def test_bytes_and_ratios():
    found = compare_transcripts(SMALL, seeds=2, repetitions=2)
    each = [spoken(SMALL, seed) for seed in range(2)]
    copied = [
        sum(
            int(turn.length[root if number < 3 else row]) * 4 + 8
            for row, root in enumerate(ROOTS)
            for number, turn in enumerate(turns)
        )
        for turns in each
    ]
    got, entries = found.figures, 3 + 9 + 14
    slots = 7 * (1 + 7 * 8 + 2 * 4)  # the status, seven columns of int64 and two of int32
    assert (got.entries, got.entry_bytes) == (entries, ENTRY)
    held = {name: got.bytes[name] for name in got.bytes if name != "batch"}
    assert held == {
        "lineage": entries * ENTRY,
        "allocated": entries * ENTRY,
        "slots": slots,
        "frontier": entries * ENTRY + slots,
        "copies": round(sum(copied) / 2),
        "padded_copies": 7 * 5 * (5 * 4 + 8),
    }
    whole = entries * ENTRY + slots
    assert got.times_less == pytest.approx(
        {
            "copies": sum(copied) / 2 / whole,
            "least": min(copied) / whole,
            "most": max(copied) / whole,
            "padded_copies": 7 * 5 * (5 * 4 + 8) / whole,
            "ideal": 7 * 5 / (3 * 3 + 7 * 2),
        }
    )
    meant = sum(int(turn.length.sum()) for turns in each for turn in turns)
    assert got.filled == pytest.approx(meant / (2 * entries * 5))
    assert f"{got.filled:.0%} of it filled" in got.note
    for spent in got.export_seconds.values():
        assert (spent.seeds, spent.count) == (2, 4)
    assert (found.mismatches, found.first, found.seeds) == (0, None, 2)
    longest = [
        max(sum(map(int, row)) for row in Copies(SMALL, turns).length.tolist()) for turns in each
    ]
    assert found.compared == sum(7 * (3 * tokens + 2 * 5 + 1) for tokens in longest)
    assert got.bytes["batch"] == sum(7 * (13 * tokens + 8 * 5 + 8) for tokens in longest) // 2
    assert transcripts_table(found).row_count == 5


def changed(name, change):
    def export(self, plain=Copies.export):
        batches = plain(self)
        return {**batches, name: change(batches[name].clone())}

    return export


def other(values):
    values[2, 1] = 1 - values[2, 1].int()
    return values


@pytest.mark.parametrize(
    ("name", "change", "first"),
    [
        ("tokens", other, r"`tokens` at (2, 1): the copies have"),
        ("mask", other, r"`mask` at (2, 1): the copies have False, the lineage True"),
        ("reward", other, r"`reward` at (2, 1)"),
        ("length", torch.Tensor.long, "`length` of the copies is torch.int64 of shape (7, 5)"),
        ("turns", lambda turns: turns[:6], "`turns` of the copies is torch.int64 of shape (6,)"),
    ],
)
def test_a_difference_is_told_and_no_figure_is_given(monkeypatch, name, change, first):
    monkeypatch.setattr(Copies, "export", changed(name, change))
    found = compare_transcripts(SMALL, seeds=1, repetitions=1)
    assert found.mismatches == 1 and not found.equal and found.first.startswith(first)
    assert found.figures is None and "bytes" not in found.row()
    assert transcripts_table(found).row_count == 1
    done = CliRunner().invoke(app, ["bench", "transcripts", *COMMAND, "--roots", "3"])
    assert done.exit_code == 1 and "no figure is given. First: `" in done.output


COMMAND = (
    "--trajectories 7 --shared-turns 3 --own-turns 2 --tokens 5 --least 0 --seeds 2 --repetitions 2"
).split()


def test_the_command_keeps_a_row_for_each_number_of_roots(tmp_path):
    out = tmp_path / "rows.jsonl"
    options = [*COMMAND, "--roots", "3", "--roots", "1", "--out", str(out)]
    done = CliRunner().invoke(app, ["bench", "transcripts", *options])
    assert done.exit_code == 0, done.output
    assert "of 3 roots" in done.output and "of 1 root:" in done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["sizes"]["roots"] for row in rows] == [3, 1]
    assert rows[0]["command"] == (
        "branchrt bench transcripts --trajectories 7 --roots 3 --shared-turns 3 --own-turns 2 "
        "--tokens 5 --least 0 --seeds 2 --repetitions 2"
    )
    for row in rows:
        row["commit"] = "0" * 40
    one, three = figures([*rows, *rows]).splitlines()[2:]
    assert one.startswith("| 7 trajectories of 1 root that share 3 turns of 0 to 5 tokens")
    assert three.startswith("| 7 trajectories of 3 roots that share 3 turns of 0 to 5 tokens")
    assert f"**{rows[0]['times_less']['copies']:.1f}×**" in three and rows[0]["note"] in three


def test_without_roots_the_command_takes_one_and_sixteen(monkeypatch):
    asked = []

    def compare(sizes, **options):
        asked.append((sizes, options["seeds"], options["repetitions"]))
        return transcripts.Transcripts(sizes, 1, 1, 0, None)

    monkeypatch.setattr(transcripts, "compare_transcripts", compare)
    done = CliRunner().invoke(app, ["bench", "transcripts"])
    assert done.exit_code == 0, done.output
    assert asked == [(TranscriptSizes(), 5, 11), (TranscriptSizes(roots=16), 5, 11)]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"roots": 8}, "`roots` is 8; expected 1 … 7, the trajectories"),
        ({"least": 6}, "`least` is 6; expected 0 … 5, the tokens of a turn"),
        ({"shared_turns": -1}, "`shared_turns` is -1; expected 0 or more"),
        ({"own_turns": 0}, "`own_turns` is 0; expected 1 or more"),
        ({"tokens": 0, "least": 0}, "`tokens` is 0; expected 1 or more"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        TranscriptSizes(**{"trajectories": 7, "tokens": 5, **sizes})
    with pytest.raises(ValueError, match="`seeds` is 0"):
        compare_transcripts(SMALL, seeds=0)


def test_a_wrong_call():
    done = CliRunner().invoke(app, ["bench", "transcripts", *COMMAND, "--roots", "8"])
    assert done.exit_code == 2 and "`roots` is 8" in done.output
