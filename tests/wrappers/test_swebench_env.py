"""SWE-bench outcomes as a branching environment, against its oracle."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from branchrt_gym import (
    Beam,
    BranchingVectorEnv,
    make_roots,
    register,
    registrations,
    search,
)
from branchrt_gym.certify import certify, matrix
from branchrt_gym.wrappers.swebench import SweBenchReplay
from branchrt_gym.wrappers.swebench_env import SOLVED, SweBench, SweBenchOracle

RESOLVED = ["0101", "0011", "1001", "0000"]  # by submission: of each instance
COST = [0.5, 0.25, 1.5, 0.125]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("swebench")
    for number, (resolved, cost) in enumerate(zip(RESOLVED, COST, strict=True)):
        path = root / f"s{number}" / "per_instance_details.json"
        path.parent.mkdir()
        rows = {
            f"i{place}": {"resolved": flag == "1", "cost": cost, "api_calls": 1}
            for place, flag in enumerate(resolved)
        }
        path.write_text(json.dumps(rows))
    return root


def test_it_equals_its_oracle(folder: Path) -> None:
    env_id = "branchrt/SweBenchForTests-v0"
    if env_id not in registrations():
        values = {"submissions": [("all",), ("s2", "s0")]}
        register(env_id, SweBench, SweBenchOracle, kwargs={"directory": str(folder)}, matrix=values)
    every = matrix.rows(registrations()[env_id], "quick", device="cpu")
    kinds = {row.kind: row for row in every}  # a row of each kind
    certificate = certify(env_id, rows=list(kinds.values()))
    assert certificate.ok and certificate.comparisons > 0
    assert len(certificate.rows) == len(kinds) > 1


def test_a_search_finds_the_cheapest_that_resolves(folder: Path) -> None:
    env = SweBench(str(folder))
    found = search(env, make_roots(env, 40), Beam(64), 4)
    replay = SweBenchReplay.load(folder)
    cheapest = [
        min(cost for cost, flags in zip(COST, RESOLVED, strict=True) if flags[place] == "1")
        for place in range(4)
    ]
    instance = found.roots.shared["instance"][found.roots.context_index]
    assert set(instance.tolist()) == {0, 1, 2, 3}
    assert replay.resolved.any(1).all() and bool(found.solved.all())
    expected = [SOLVED - round(cheapest[place] * 10**6) for place in instance.tolist()]
    assert found.score.tolist() == expected


def test_trying_again_costs_nothing(folder: Path) -> None:
    oracle = SweBenchOracle(str(folder))
    for seed in itertools.count():
        observation, _ = oracle.reset(seed=seed)
        if oracle.context["instance"] == 1:  # type: ignore[index]
            break
    assert observation.tolist() == [0, 0, 0, 0]
    assert oracle.step(3)[1] == 0.0
    observation, reward, terminated, truncated, info = oracle.step(3)
    assert (oracle.score, observation.tolist()) == (-125_000, [0, 0, 0, 1])
    _, reward, terminated, truncated, info = oracle.step(0)
    assert (reward, terminated, truncated, info["solved"]) == (1.0, True, False, True)
    assert oracle.score == SOLVED - 625_000


def test_what_nobody_resolves_ends_after_as_many_steps(tmp_path: Path) -> None:
    for number in range(2):
        path = tmp_path / f"s{number}" / "per_instance_details.json"
        path.parent.mkdir()
        path.write_text('{"i0": {"resolved": false, "cost": 1, "api_calls": 1}}')
    envs = BranchingVectorEnv(SweBench(str(tmp_path)), 2)
    envs.reset(seed=0)
    for step in range(2):
        _, reward, terminated, truncated, _ = envs.step(np.array([0, 1]))
        assert not terminated.any() and not reward.any()
        assert truncated.tolist() == [step == 1] * 2


def test_too_many_submissions_are_refused(tmp_path: Path) -> None:
    for number in range(63):
        path = tmp_path / f"s{number:02}" / "per_instance_details.json"
        path.parent.mkdir()
        path.write_text('{"i0": {"resolved": false, "cost": 1, "api_calls": 1}}')
    with pytest.raises(ValueError, match="`submissions` are 63; expected at most 62"):
        SweBench(str(tmp_path))
