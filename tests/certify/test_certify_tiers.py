"""Certification of a search's other tiers, in Triton's interpreter."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
from wrong_kernel import WrongKernel

from branchrt_gym import registrations
from branchrt_gym.certify import certify, rows
from branchrt_gym.certify.matrix import Row

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton interprets only where there is no GPU"
)

SEARCH = Row(
    0,
    "search",
    {"width": 61, "depth": 5, "fanout": 3},
    {
        "roots": 3,
        "beam": 4,
        "levels": 5,
        "sharing": "pairs",
        "rng": "split",
        "seed": 20,
        "budget": None,
        "stop_solved": True,
    },
    tier="fused",
)


@pytest.mark.parametrize("budget", [None, 7])
def test_the_fused_tier_is_certified(budget):
    row = replace(SEARCH, settings={**SEARCH.settings, "budget": budget})
    found = certify("branchrt/DeepTree-v0", rows=[row])
    assert found.mismatches == 0 and found.tiers == ("fused",) and found.comparisons > 50


@pytest.mark.parametrize("budget", [None, 7])
def test_a_kernel_that_disagrees_with_the_torch_rules_is_caught(monkeypatch, budget):
    wrong = replace(registrations()["branchrt/DeepTree-v0"], env_class=WrongKernel)
    monkeypatch.setattr(
        "branchrt_gym.certify.certification.registrations",
        lambda: {"branchrt/DeepTree-v0": wrong},
    )
    row = replace(SEARCH, settings={**SEARCH.settings, "budget": budget})
    assert certify("branchrt/DeepTree-v0", rows=[replace(row, tier="eager")]).mismatches == 0
    (result,) = certify("branchrt/DeepTree-v0", rows=[row]).rows
    difference = result.difference
    assert difference is not None and difference.field == "score"
    assert difference.root == 0 and difference.step == 5 and difference.branch_id is not None
    # The kernel has one more for each action 1 on the path.
    assert 0 < int(difference.got) - int(difference.expected) <= 5


def test_on_a_gpu_the_tiers_are_dealt_out():
    from branchrt_gym.certify.certification import _with_tier

    known = registrations()["branchrt/DeepTree-v0"]
    dealt = [_with_tier(known, row) for row in rows(known, device="cuda")]
    assert {row.tier for row in dealt if row.kind == "search"} == {"eager", "captured", "fused"}
    assert {row.tier for row in dealt if row.kind != "search"} == {"eager"}
