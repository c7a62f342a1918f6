"""Turns of opaque branches in the lineage, and their export as padded batches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym import Beam, BestFirst, Contract, Expansion, Frontier, Verdicts, branch_step
from branchrt_gym import log as log_field

SPOKEN = Contract({"tokens": log_field((3,), torch.int32), "count": log_field((), torch.int64)})


def speak(batch, fanout=2):
    """Child `c` of a branch says `c + 1` tokens, each 10 * depth + c."""
    rows = [(i, c, int(d)) for i, d in enumerate(batch.depth) for c in range(fanout)]
    tokens = torch.tensor(
        [[10 * d + c if place <= c else 99 for place in range(3)] for _, c, d in rows],
        dtype=torch.int32,
    ).view(-1, 3)
    return Expansion(
        parents=[i for i, _, _ in rows],
        payloads=[(*batch.payloads[i], *[10 * d + c] * (c + 1)) for i, c, d in rows],
        rewards=[0.0] * len(rows),
        done=[False] * len(rows),
        log={"tokens": tokens, "count": torch.tensor([c + 1 for _, c, _ in rows])},
    )


def keep_all(batch):
    return Verdicts([False] * len(batch), [len(said) for said in batch.payloads])


def frontier():
    made = Frontier(16, 2, SPOKEN, lineage_capacity=200)
    made.start(seed=0, payloads=[(), ()])
    return made


def test_packed_tokens_are_what_each_branch_said():
    spoken = frontier()
    branch_step(spoken, speak, keep_all)
    branch_step(spoken, lambda batch: speak(batch, 3), keep_all, Beam(4))
    live = spoken.live.nonzero().squeeze(1)
    spoken.compact()
    paths = spoken.trajectories(spoken.branch_id[: len(live)])
    values, mask, step = paths.packed("tokens", paths.log["count"])
    said = [spoken.payloads[slot] for slot in range(len(live))]
    assert values.shape == (len(live), max(map(len, said))) and values.dtype == torch.int32
    for row, words in enumerate(said):
        assert values[row][mask[row]].tolist() == list(words)
        assert not values[row][~mask[row]].any() and mask[row].sum() == len(words)
        assert step[row][mask[row]].tolist() == [word // 10 for word in words]
        assert (step[row][~mask[row]] == 2).all()


def test_nothing_said():
    spoken = frontier()
    paths = spoken.trajectories(spoken.branch_id[:2])
    values, mask, step = paths.packed("tokens", paths.log["count"])
    assert values.shape == mask.shape == step.shape == (2, 0)
    with pytest.raises(ValueError, match="`count` has"):
        paths.packed("count", paths.log["count"])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=5))
def test_packed_against_lists(counts):
    steps = max(map(len, counts))
    spoken = frontier().trajectories([0])
    values = np.arange(len(counts) * steps * 4).reshape(len(counts), steps, 4)
    count = np.array([row + [3] * (steps - len(row)) for row in counts], int)
    count = count.reshape(len(counts), steps)
    mask = np.array([[place < len(row) for place in range(steps)] for row in counts], bool)
    fields = {**vars(spoken), "mask": torch.from_numpy(mask.reshape(len(counts), steps))}
    paths = type(spoken)(**{**fields, "log": {"tokens": torch.from_numpy(values)}})
    packed, here, step = paths.packed("tokens", torch.from_numpy(count))
    for row, each in enumerate(counts):
        want = [(int(v), s) for s, n in enumerate(each) for v in values[row, s, :n]]
        there = here[row]
        assert packed[row][there].tolist() == [value for value, _ in want]
        assert step[row][there].tolist() == [place for _, place in want]


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ({}, "the contract's"),
        ({"tokens": torch.zeros(4, 3, dtype=torch.int32)}, "the contract's"),
        ({"tokens": torch.zeros(4, 2), "count": torch.zeros(4, dtype=torch.int64)}, "tokens"),
        ({"tokens": torch.zeros(4, 3, dtype=torch.int32), "count": np.zeros(3, int)}, "count"),
    ],
)
def test_a_log_that_does_not_fit_changes_nothing(log, text):
    spoken = frontier()

    def wrong(batch):
        made = speak(batch)
        return Expansion(made.parents, made.payloads, made.rewards, made.done, log)

    with pytest.raises(ValueError, match=text):
        branch_step(spoken, wrong, keep_all)
    assert spoken.live.sum() == 2 and spoken.payloads[:2] == [(), ()]


def test_a_policy_for_search_alone_is_refused():
    with pytest.raises(TypeError, match="expands every live branch"):
        branch_step(frontier(), speak, keep_all, BestFirst(3))


def test_counts_and_names_are_checked():
    spoken = frontier()
    branch_step(spoken, speak, keep_all)
    paths = spoken.trajectories(spoken.branch_id[spoken.live])
    count = paths.log["count"]
    for wrong in (count + 3, count - 3, count.double()):
        with pytest.raises(ValueError, match=r"expected ints in\s0 … 3"):
            paths.packed("tokens", wrong)
    with pytest.raises(ValueError, match="expected a log field"):
        paths.packed("words", count)


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_payloads_may_be_rows_of_an_array(make):
    spoken = Frontier(8, 2, lineage_capacity=100)
    spoken.start(seed=0, payloads=["a", "b"])
    turn = Expansion([0, 0], make([[1, 2], [3, 4]]), [0.0, 0.0], [False, False])
    branch_step(spoken, lambda batch: turn, lambda batch: Verdicts([True, False], [0, 0]), Beam(2))
    assert spoken.solved.tolist() == [True, False]
    assert [list(map(int, spoken.payloads[0])), spoken.payloads[1:]] == [[1, 2], [None] * 7]


@pytest.mark.parametrize("payloads", ["xy", {0: "a", 1: "b"}, 7])
def test_payloads_that_are_no_sequence_change_nothing(payloads):
    spoken = Frontier(8, 2, lineage_capacity=100)
    spoken.start(seed=0, payloads=["a", "b"])
    turn = Expansion([0, 0], payloads, [0.0, 0.0], [False, False])
    with pytest.raises(TypeError, match="`payloads` of the expansion"):
        branch_step(spoken, lambda batch: turn, keep_all)
    assert spoken.payloads[:2] == ["a", "b"] and spoken.live.sum() == 2
