"""The matrix covers what it says; the certificate comes back as it was written."""

import itertools
import json

import pytest
from lucky_counter import registration

from branchrt_gym.certify import Certificate, Difference, RowResult, rows
from branchrt_gym.certify.matrix import MATRICES, MILLION, Row, pairwise
from branchrt_gym.registry import registrations


def pairs(values):
    return {tuple(sorted(pair, key=str)) for pair in itertools.combinations(values.items(), 2)}


def all_pairs(dimensions):
    return {
        tuple(sorted(((one, i), (other, j)), key=str))
        for one, other in itertools.combinations(dimensions, 2)
        for i in dimensions[one]
        for j in dimensions[other]
    }


def test_pairwise_covers_all_pairs_with_few_rows():
    dimensions = {
        name: tuple(range(int(size))) for name, size in ("a2", "b3", "c5", "d4", "e1", "f5")
    }
    covered = pairwise(dimensions, seed=0)
    assert set().union(*map(pairs, covered)) == all_pairs(dimensions)
    assert 25 <= len(covered) <= 40


@pytest.mark.parametrize("matrix", ["quick", "full"])
@pytest.mark.parametrize(
    "known", [registration(), registrations()["branchrt/DeepTree-v0"]], ids=lambda known: known.id
)
def test_all_pairs_of_settings_and_parameters_are_covered(known, matrix):
    chosen = rows(known, matrix)
    assert len(chosen) >= {"quick": 100, "full": 432}[matrix]
    assert [row.number for row in chosen] == list(range(len(chosen)))
    assert chosen == rows(known, matrix)
    parameters = {**known.matrix, **(known.full if matrix == "full" else {})}
    for kind in ("population", "search"):
        values = [{**row.settings, **row.parameters} for row in chosen if row.kind == kind]
        dimensions = {**getattr(MATRICES[matrix], kind), **parameters}
        assert all_pairs(dimensions) <= set().union(*map(pairs, values))


def test_full_has_larger_values_than_quick_everywhere():
    quick, full = MATRICES["quick"], MATRICES["full"]
    larger = {"population": ("roots", "spare", "steps"), "search": ("roots", "beam", "levels")}
    for kind, names in larger.items():
        for name in names:
            assert max(getattr(full, kind)[name]) > max(getattr(quick, kind)[name])
    for known in registrations().values():
        for name in known.full:
            quick, full = (
                max(value for value in values[name] if value is not None)
                for values in (known.matrix, known.full)
            )
            assert full > quick


@pytest.mark.parametrize("known", registrations().values(), ids=lambda known: known.id)
def test_full_starts_with_a_million_children(known):
    crowd, search = rows(known, "full")[:2]
    assert crowd.settings["program"] == "crowd"
    assert crowd.num_envs - crowd.num_roots >= MILLION  # children of one call of `fork`
    beam, levels = search.settings["beam"], search.settings["levels"]
    actions = int(known.env_class(**known.kwargs).single_action_space.n)
    assert search.num_roots * beam * actions >= MILLION
    assert actions ** (levels - 1) >= beam  # so many are held before the last level


@pytest.mark.parametrize("known", registrations().values(), ids=lambda known: known.id)
def test_on_a_gpu_a_search_makes_sixteen_million(known):
    search = rows(known, "full", device="cuda")[2]
    beam, levels = search.settings["beam"], search.settings["levels"]
    actions = int(known.env_class(**known.kwargs).single_action_space.n)
    kept = [min(beam, actions**level) for level in range(levels)]
    assert search.num_roots * sum(kept) * actions >= 16 * MILLION
    assert beam * actions <= 4096  # so that it fits the fused tier


def test_deep_tree_is_certified_at_full_width_too():
    wide = [
        row for row in rows(registrations()["branchrt/DeepTree-v0"])
        if row.parameters["width"] == 262_144
    ]  # fmt: skip
    assert len(wide) >= 3
    assert {row.kind for row in wide} == {"population", "search"}


def test_an_unknown_matrix_says_which_there_are():
    with pytest.raises(ValueError, match=r"`matrix` is 'huge'; expected one of: 'quick', 'full'"):
        rows(registration(), "huge")


def test_a_row_counts_its_slots_and_contexts():
    settings = {"roots": 5, "spare": 3, "sharing": "pairs"}
    row = Row(0, "population", {}, settings)
    assert (row.num_roots, row.num_envs, row.num_contexts) == (5, 20, 3)


def certificate(difference=None):
    row = Row(0, "population", {"width": 3}, {"seed": 2**62, "max_episode_steps": None})
    result = RowResult(row, 12, int(difference is not None), 0.25, difference)
    return Certificate("test/X-v0", ("ab", "cd"), "quick", (result,), {"triton": None}, "cpu", 0.5)


def test_certificate_round_trip(tmp_path):
    difference = Difference("reward", "1", "2", root=3, branch_id=4, slot=5, operation=6, step=7)
    for one in (certificate(), certificate(difference)):
        path = tmp_path / "evidence" / "certificate.json"
        one.save(path)
        assert Certificate.load(path) == one
        assert [file.name for file in path.parent.iterdir()] == ["certificate.json"]
        record = json.loads(path.read_text())
        assert record["ok"] is one.ok
        assert record["totals"]["comparisons"] == 12
        assert record["totals"]["seconds"] == 0.5
        assert record["tiers"] == ["eager"]
    assert certificate().ok
    assert not certificate(difference).ok
    assert certificate(difference).first_difference == difference


def test_nothing_compared_is_not_ok():
    assert not Certificate("test/X-v0", (), "quick", (), {}, "cpu").ok


def test_a_foreign_certificate_is_refused():
    with pytest.raises(ValueError, match="format None; expected 1"):
        Certificate.from_json("{}")


def test_the_message_of_a_difference_says_where():
    difference = Difference("reward", "1", "2", 3, 4, 5, 6, "Step", 7)
    assert difference.message == (
        "`reward` at root 3, branch 4, slot 5, step 7, operation 6 (Step): expected 1, got 2"
    )
    assert "no branch" in Difference("error", "none", "ValueError: x").message
