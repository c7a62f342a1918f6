"""`branchrt doctor`: what is installed, which tiers can run here, and what is in the way.

`look` gathers facts; `tiers`, `implementations` and `problems` judge facts, wherever they are from.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from branchrt_gym.contract import BranchEnv
from branchrt_gym.kernels import fold

__all__ = ["Device", "Facts", "Problem", "Tier", "implementations", "look", "problems", "tiers"]

REQUIRED = {  # the least versions, as in pyproject.toml
    "gymnasium": "1.2",
    "numpy": "1.26",
    "torch": "2.8",
    "safetensors": "0.4",
    "typer": "0.15",
    "rich": "13",
}
OPTIONAL = ("triton", "matplotlib", "pygame", "stable-baselines3", "docker", "ray", "jax")
PATIENCE = 1.5  # seconds that the Docker engine has to answer
SPLITMIX = 0xE220A8397B1DCDAF  # the first output of SplitMix64 started at 0

Engine = Literal["no client", "no answer", "answers"]


@dataclass(frozen=True)
class Device:
    """A CUDA device: its name, memory in GiB, and compute capability."""

    name: str
    memory_gib: float
    capability: str


@dataclass(frozen=True)
class Facts:
    """What a machine and its Python have.

    Attributes:
        version: Of branchrt-gym.
        python: Its version. system: The operating system.
        cores: Cores that this process may use. memory_gib: Memory of the machine.
        packages: The version of each package of `REQUIRED` and `OPTIONAL`, None if not installed.
        cuda: The CUDA version that torch was built for; None for a build without.
        devices: The CUDA devices that torch sees.
        driver: Whether the machine has an NVIDIA driver.
        interpreted: Whether `TRITON_INTERPRET=1` is set.
        keys: What the torch form of a random key came to: None if right, else what went wrong.
        kernel: Likewise for a Triton kernel; None too where none can run.
        kernel_envs: Registered environments with a `transition_kernel`.
        threads: Threads of torch.
        display: Whether a window can be opened.
        engine: Whether there is a Docker client, and its engine answers.
    """

    version: str
    python: str
    system: str
    cores: int
    memory_gib: float | None
    packages: dict[str, str | None]
    cuda: str | None
    devices: tuple[Device, ...]
    driver: bool
    interpreted: bool
    keys: str | None
    kernel: str | None
    kernel_envs: tuple[str, ...]
    threads: int
    display: bool
    engine: Engine


@dataclass(frozen=True)
class Tier:
    """A tier of `search`, whether it can run, and why not or on what."""

    name: str
    here: bool
    why: str


@dataclass(frozen=True)
class Problem:
    """What is in the way, and what to do about it; `required` if nothing works before it is."""

    what: str
    do: str
    required: bool = False


def look() -> Facts:
    """Gathers the facts of this process; takes seconds where Triton compiles a first kernel."""
    from branchrt_gym import __version__, registrations
    from branchrt_gym.bench.record import hardware

    machine = hardware()
    devices = _devices()
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    packages = {name: _version(name) for name in (*REQUIRED, *OPTIONAL)}
    runs = packages["triton"] is not None and (interpreted or devices)
    return Facts(
        version=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        cores=machine["cores"] or os.cpu_count() or 1,
        memory_gib=machine["memory_gib"],
        packages=packages,
        cuda=torch.version.cuda,
        devices=devices,
        driver=Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None,
        interpreted=interpreted,
        keys=_wrong_key("torch", "cpu"),
        kernel=_wrong_key("triton", "cpu" if interpreted else "cuda") if runs else None,
        kernel_envs=tuple(
            name for name, each in sorted(registrations().items()) if _has_kernel(each.env_class)
        ),
        threads=torch.get_num_threads(),
        display=sys.platform in ("darwin", "win32")
        or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")),
        engine=_engine(),
    )


def tiers(facts: Facts) -> list[Tier]:
    """Returns which tiers of `search` can run, the fastest last."""
    lacks = []
    if not facts.devices:
        lacks.append("needs a CUDA device")
    if facts.packages["triton"] is None:
        lacks.append('needs Triton: pip install "branchrt-gym[gpu]"')
    elif facts.devices and facts.kernel is not None:
        lacks.append("needs Triton to compile kernels here")
    on = ", ".join(device.name for device in facts.devices)
    found = [Tier("eager", True, f"on cpu, {on}" if on else "on cpu")]
    found.append(Tier("captured", not lacks, "; ".join(lacks) or f"on {on}"))
    envs = ", ".join(facts.kernel_envs)
    if lacks and facts.packages["triton"] is not None and facts.interpreted and envs:
        why = f"on cpu, in Triton's interpreter, where asked for, for {envs}"
        return [*found, Tier("fused", facts.kernel is None, why)]
    if not envs:
        lacks.append("needs an environment with a `transition_kernel`")
    found.append(Tier("fused", not lacks, "; ".join(lacks) or f"on {on}, for {envs}"))
    return found


def implementations(facts: Facts) -> dict[str, str]:
    """Returns for each type of device which form of the operations under the runtime it runs."""
    installed = facts.packages["triton"] is not None
    compiled = "triton" if installed else "torch reference"
    if installed and facts.kernel is not None:
        compiled = "triton, which fails"
    interpreted = "; triton interpreted, where asked for"
    return {
        "cpu": "torch reference" + (interpreted if installed and facts.interpreted else ""),
        "cuda": compiled if facts.devices else "no device",
    }


def problems(facts: Facts) -> list[Problem]:
    """Returns what is in the way, what is required first."""
    found = []
    if _numbers(facts.python) < (3, 11):
        found.append(Problem(f"Python is {facts.python}", "use Python 3.11 or newer", True))
    for name, least in REQUIRED.items():
        version = facts.packages[name]
        if version is None or _numbers(version) < _numbers(least):
            what = f"{name} is {version or 'not installed'}; {least} or newer is required"
            found.append(Problem(what, f'pip install "{name}>={least}"', True))
    if facts.keys is not None:
        what = f"torch computes random keys wrong: {facts.keys}"
        found.append(Problem(what, "install another build of torch", True))
    return found + _gpu_problems(facts) + _surroundings(facts)


def _gpu_problems(facts: Facts) -> list[Problem]:
    triton, numpy = facts.packages["triton"], facts.packages["numpy"]
    cases = [
        (
            facts.devices and triton is None,
            "there is a CUDA device and no Triton: every operation runs in plain torch",
            'pip install "branchrt-gym[gpu]"',
        ),
        (
            facts.driver and facts.cuda is None,
            "there is an NVIDIA driver and torch is a build without CUDA",
            "install a CUDA build of torch (https://pytorch.org/get-started)",
        ),
        (
            facts.driver and facts.cuda is not None and not facts.devices,
            f"there is an NVIDIA driver, torch is built for CUDA {facts.cuda} and sees no GPU",
            "see `nvidia-smi` and CUDA_VISIBLE_DEVICES; an old driver needs an older build",
        ),
        (
            triton and numpy and _numbers(triton)[:2] == (3, 6) and _numbers(numpy) >= (2, 4),
            f"Triton {triton} with NumPy {numpy}: its interpreter fails on loops whose bound is "
            "known at run time only; compiled kernels are not affected",
            'pip install "numpy<2.4", or a newer Triton',
        ),
    ]
    found = [Problem(what, do) for happens, what, do in cases if happens]
    if facts.kernel is not None:  # on a GPU every operation would run it
        what = f"a Triton kernel does not run: {facts.kernel}"
        do = "install a C compiler and Python's headers, or uninstall Triton to run torch instead"
        found.insert(0, Problem(what, do, required=bool(facts.devices)))
    return found


def _surroundings(facts: Facts) -> list[Problem]:
    cases = [
        (
            facts.threads > facts.cores,
            f"torch uses {facts.threads} threads on {facts.cores} cores, and they wait for each "
            "other",
            f"set OMP_NUM_THREADS={facts.cores} before Python starts",
        ),
        (
            not facts.display,
            "no display: windows cannot be opened",
            'render with "rgb_array" or "ansi"; for pygame set SDL_VIDEODRIVER=dummy',
        ),
        (
            facts.engine == "no answer",
            f"the Docker client is installed and no engine answered in {PATIENCE:g} s",
            "start the engine, see `docker info`, or name another in DOCKER_HOST; nothing but "
            "containers needs it",
        ),
        (
            facts.engine == "answers" and facts.packages["docker"] is None,
            "a Docker engine answers and its SDK is not installed: no candidate runs in containers",
            'pip install "branchrt-gym[docker]"',
        ),
        (
            facts.engine == "no client" and facts.packages["docker"] is not None,
            "the Docker SDK is installed and there is no Docker client or engine",
            "install Docker Engine (on Debian: docker.io), or name an engine in DOCKER_HOST",
        ),
    ]
    return [Problem(what, do) for happens, what, do in cases if happens]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: `(2, 13, 0)` of `2.13.0+cpu`."""
    start = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, start[0].split("."))) if start else ()


def _has_kernel(env_class: type[BranchEnv]) -> bool:
    own, none = (getattr(each, "transition_kernel", None) for each in (env_class, BranchEnv))
    return own is not none


def _devices() -> tuple[Device, ...]:
    if not torch.cuda.is_available():
        return ()
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return tuple(
        Device(each.name, round(each.total_memory / 2**30, 1), f"{each.major}.{each.minor}")
        for each in found
    )


def _wrong_key(impl: Literal["torch", "triton"], device: str) -> str | None:
    """Computes one key of known value; returns what went wrong, in a line, or None."""
    try:
        key = torch.zeros(1, dtype=torch.int64, device=device)
        found = int(fold(key, 0, impl=impl)) % 2**64
    except Exception as error:  # whatever a compiler or a driver may raise
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None if found == SPLITMIX else f"{found:#x}, expected {SPLITMIX:#x}"


def _engine() -> Engine:
    """Asks the Docker engine, which may hang, for its version."""
    client = shutil.which("docker")
    if client is None:
        return "no client"
    try:
        # Not to a pipe: something the client started might hold that open beyond the timeout.
        done = subprocess.run(
            [client, "version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "no answer"
    return "answers" if done.returncode == 0 else "no answer"
