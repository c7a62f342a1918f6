"""The doctor's judgements, on machines made up here, and that it looks at this one."""

import json
import os
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import branchrt_gym
from branchrt_gym import doctor
from branchrt_gym.bench.report import facts_table, tiers_table
from branchrt_gym.cli import app
from branchrt_gym.doctor import (
    OPTIONAL,
    REQUIRED,
    Device,
    Facts,
    implementations,
    look,
    problems,
    tiers,
)

GPU = Device("A GPU", 80.0, "9.0")
PLAIN = Facts(
    version="0.1.0",
    python="3.11.7",
    system="Linux",
    cores=4,
    memory_gib=16.0,
    packages={**dict.fromkeys(OPTIONAL), **REQUIRED, "torch": "2.13.0+cpu"},
    cuda=None,
    devices=(),
    driver=False,
    interpreted=False,
    keys=None,
    kernel=None,
    kernel_envs=(),
    threads=4,
    display=True,
    engine="no client",
)


def having(facts=PLAIN, packages=(), **changes):
    return replace(facts, packages={**facts.packages, **dict(packages)}, **changes)


TRITON = having(packages={"triton": "3.7.1"})
WITH_GPU = having(TRITON, devices=(GPU,), driver=True, cuda="12.8")


def test_the_versions_required_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    least = dict(re.match(r"([\w-]+)>=([\d.]+)", each).groups() for each in project["dependencies"])
    assert least == REQUIRED
    assert project["requires-python"] == ">=3.11"


@pytest.mark.parametrize("facts", [PLAIN, TRITON, WITH_GPU])
def test_nothing_is_in_the_way(facts):
    assert problems(facts) == []


@pytest.mark.parametrize(
    ("facts", "what", "do", "required"),
    [
        (having(python="3.10.9"), "Python is 3.10.9", "3.11", True),
        (having(packages={"torch": "2.7.1"}), "torch is 2.7.1; 2.8", "torch>=2.8", True),
        (having(packages={"numpy": None}), "numpy is not installed", "numpy>=1.26", True),
        (having(keys="0x1, expected 0x2"), "random keys wrong: 0x1", "torch", True),
        (having(WITH_GPU, kernel="no compiler"), "no compiler", "C compiler", True),
        (having(engine="answers"), "SDK is not installed", "branchrt-gym[docker]", False),
        (having(packages={"docker": "7.2.0"}), "no Docker client", "docker.io", False),
        (having(TRITON, interpreted=True, kernel="no"), "does not run: no", "Triton", False),
        (having(WITH_GPU, {"triton": None}), "no Triton", "branchrt-gym[gpu]", False),
        (having(driver=True), "without CUDA", "CUDA build", False),
        (having(driver=True, cuda="12.8"), "sees no GPU", "CUDA_VISIBLE_DEVICES", False),
        (having(packages={"triton": "3.6.0", "numpy": "2.4.0"}), "interpreter", "<2.4", False),
        (having(threads=8), "8 threads on 4 cores", "OMP_NUM_THREADS=4", False),
        (having(display=False), "no display", "rgb_array", False),
        (having(engine="no answer"), "no engine answered", "docker info", False),
    ],
)
def test_a_problem_is_named_with_what_to_do(facts, what, do, required):
    (found,) = problems(facts)
    assert what in found.what and do in found.do and found.required is required


@pytest.mark.parametrize(("triton", "numpy"), [("3.6.0", "2.3.5"), ("3.7.1", "2.4.6")])
def test_pairs_that_work(triton, numpy):
    assert problems(having(packages={"triton": triton, "numpy": numpy})) == []


def test_versions_are_compared_as_numbers():
    assert problems(having(packages={"torch": "2.10.0a0+git1"})) == []


ALL = ("eager", "captured", "fused")


@pytest.mark.parametrize(
    ("facts", "runs", "why"),
    [
        (PLAIN, ALL[:1], ("needs a CUDA device", "needs Triton")),
        (TRITON, ALL[:1], ("needs a CUDA device",)),
        (having(WITH_GPU, {"triton": None}), ALL[:1], ("branchrt-gym[gpu]",)),
        (having(WITH_GPU, kernel="no compiler"), ALL[:1], ("compile",)),
        (WITH_GPU, ALL[:2], ("`transition_kernel`",)),
        (having(WITH_GPU, kernel_envs=("a/B-v0",)), ALL, ("A GPU", "a/B-v0")),
    ],
)
def test_tiers_that_are_built(facts, runs, why):
    found = tiers(facts)
    assert tuple(tier.name for tier in found if tier.here) == runs
    assert all(word in found[-1].why for word in why)


def test_implementations():
    assert implementations(PLAIN) == {"cpu": "torch reference", "cuda": "no device"}
    assert "interpreted" in implementations(having(TRITON, interpreted=True))["cpu"]
    assert implementations(WITH_GPU)["cuda"] == "triton"
    assert implementations(having(WITH_GPU, {"triton": None}))["cuda"] == "torch reference"
    assert "fails" in implementations(having(WITH_GPU, kernel="no compiler"))["cuda"]


def test_tables_show_the_facts(capsys):
    for table in (facts_table(WITH_GPU), tiers_table(WITH_GPU)):
        Console(width=130).print(table)
    shown = capsys.readouterr().out
    for word in ("A GPU", "80.0 GiB", "9.0", "CUDA 12.8", "3.7.1", "kernels compile", "triton"):
        assert word in shown


def test_it_looks_at_this_process(monkeypatch):
    monkeypatch.setattr(doctor, "_engine", lambda: "no client")
    facts = look()
    assert facts.version == branchrt_gym.__version__
    assert torch.__version__.partition("+")[0] == facts.packages["torch"].partition("+")[0]
    assert len(facts.devices) == torch.cuda.device_count() and facts.cuda == torch.version.cuda
    assert facts.threads == torch.get_num_threads() and facts.keys is None
    assert [found for found in problems(facts) if found.required] == []


def test_a_wrong_key_is_noticed(monkeypatch):
    monkeypatch.setattr(doctor, "fold", lambda key, word, impl: key + 5)
    assert doctor._wrong_key("torch", "cpu") == "0x5, expected 0xe220a8397b1dcdaf"
    assert "warp9" in doctor._wrong_key("torch", "warp9")


@pytest.mark.skipif(sys.platform == "win32", reason="the client here is a shell script")
@pytest.mark.parametrize(
    ("script", "answer"),
    [("exit 0", "answers"), ("exit 1", "no answer"), ("exec sleep 9", "no answer")],
)
def test_the_engine_is_not_waited_for(monkeypatch, tmp_path, script, answer):
    client = tmp_path / "docker"
    client.write_text(f"#!/bin/sh\n{script}\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(doctor, "PATIENCE", 4)
    assert doctor._engine() == answer


def test_no_client(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._engine() == "no client"


@pytest.mark.parametrize(
    ("facts", "code"), [(having(display=False), 0), (having(python="3.10.1"), 1)]
)
def test_the_command(monkeypatch, facts, code):
    monkeypatch.setattr(doctor, "look", lambda: facts)
    (problem,) = problems(facts)
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == code and "\x1b" not in shown.output
    for word in (problem.what, problem.do, "needs a CUDA device", "torch reference"):
        assert word in shown.output
    told = CliRunner().invoke(app, ["doctor", "--json"])
    assert told.exit_code == code
    given = json.loads(told.stdout)
    assert given["facts"]["packages"] == facts.packages
    assert [each["what"] for each in given["problems"]] == [problem.what]
    assert [each["name"] for each in given["tiers"]] == list(ALL)
