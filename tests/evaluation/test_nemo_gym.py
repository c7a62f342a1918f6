"""NVIDIA NeMo Gym's own Blackjack server, over HTTP, where it can be had."""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from branchrt_gym.bench.blackjack_figures import BlackjackSizes
from branchrt_gym.bench.blackjack_served import compare_served
from branchrt_gym.bench.blackjack_servers import NemoPlayer, NemoServer

pytestmark = pytest.mark.slow
VERSION = "0.4.0"


def uv():
    """Returns a command that runs uv, or None."""
    beside = [sys.executable, "-m", "uv"]
    if subprocess.run([*beside, "--version"], capture_output=True).returncode == 0:
        return beside
    found = shutil.which("uv")
    return [found] if found else None


def newer_python():
    """Returns a Python from 3.12 on, or None."""
    root = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    named = [shutil.which(f"python3.{minor}") for minor in range(12, 16)]
    for python in [sys.executable, *named, *sorted(glob.glob(f"{root}/versions/3.*/bin/python3"))]:
        if python is None:
            continue
        asked = "import sys; print(sys.version_info >= (3, 12))"
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True)
        if done.stdout.strip() == "True":  # a shim of pyenv says nothing
            return python
    return None


@pytest.fixture(scope="module")
def nemo_python(tmp_path_factory):
    """Makes an environment with nemo-gym; a Python that has it may be named instead."""
    pytest.importorskip("httpx", reason="httpx is not installed")
    named = os.environ.get("BRANCHRT_NEMO_PYTHON")
    if named:
        yield named
        return
    runner, python = uv(), newer_python()
    if runner is None:
        pytest.skip("uv is not installed")
    if python is None:
        pytest.skip("no Python from 3.12 on is installed, which nemo-gym needs")
    where = tmp_path_factory.mktemp("nemo")
    try:
        for command in (
            ["venv", "--python", python, str(where / "venv")],
            ["pip", "install", "--python", str(where / "venv"), f"nemo-gym=={VERSION}"],
        ):
            done = subprocess.run([*runner, *command], capture_output=True, text=True, timeout=600)
            if done.returncode:
                pytest.skip(f"uv {command[0]} failed: {done.stderr.strip()[-300:]}")
        yield str(where / "venv" / "bin" / "python")
    finally:
        shutil.rmtree(where, ignore_errors=True)  # a gigabyte


@pytest.fixture(scope="module")
def server(nemo_python):
    with NemoServer(nemo_python) as running:
        yield running


def test_hands_are_played(server):
    with NemoPlayer(server.url) as player:
        won = [player.play(root, 0) for root in range(60)]
    assert player.episodes == 60
    assert 120 <= player.requests < 300  # a reset and a step or more
    assert 0.15 < sum(won) / 60 < 0.75  # 0.43, give or take five deviations


def test_the_frontier_decides_what_the_plain_loop_decides_from_its_verdicts(nemo_python):
    found = compare_served(BlackjackSizes(48, 8, 0.8, "nemo"), nemo_python, connections=4)
    assert (found.mismatches, found.first) == (0, None)
    assert found.more["infrastructure_failures"] == 0
    for name in ("host", "frontier"):
        outcome = found.outcomes[name]
        assert outcome.solved >= 39 and outcome.attempts_to_target <= outcome.episodes < 48 * 8
    assert found.outcomes["run_all"].episodes == 48 * 8
