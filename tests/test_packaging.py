"""The package as it is installed: its parts, its wheel, what importing it costs."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAPPED = PYPROJECT["tool"]["setuptools"]["package-dir"]

# Run in a fresh process: what `import branchrt_gym` adds to its own dependencies.
IMPORT = """
import json, os, sys, threading, time
import gymnasium, numpy, safetensors.torch, torch

STARTS = ("thread.start", "subprocess.", "fork", "spawn", "os.exec", "os.system")
started = []
sys.addaudithook(lambda name, args: any(s in name for s in STARTS) and started.append(name))
threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
before = set(sys.modules)
begin = time.perf_counter()
import branchrt_gym
seconds = time.perf_counter() - begin
print(json.dumps({
    "seconds": seconds,
    "modules": sorted({name.partition(".")[0] for name in set(sys.modules) - before}),
    "started": started,
    "python_threads": threading.active_count(),
    "new_threads": len(os.listdir("/proc/self/task")) - threads if threads else 0,
    "cuda": torch.cuda.is_initialized(),
}))
"""


def modules() -> dict[str, Path]:
    """Each Python file of the tree's packages by its place in a wheel."""
    return {
        (Path(*package.split(".")) / file.relative_to(ROOT / folder)).as_posix(): file
        for package, folder in MAPPED.items()
        for file in (ROOT / folder).rglob("*.py")
    }


def test_package_list_equals_the_folders_with_python_files() -> None:
    found = {Path(name).parent.as_posix().replace("/", ".") for name in modules()}
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(found)
    assert all(f"{name.replace('.', '/')}/__init__.py" in modules() for name in found)


def test_constraints_pin_every_direct_dependency() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+(\.post[0-9]+)?", line) for line in lines)
    required = [*project["dependencies"], *extras["gpu"], *extras["plot"], *extras["dev"]]
    names = {re.split(r"[^A-Za-z0-9-]", requirement)[0] for requirement in required}
    assert names - {"branchrt-gym"} <= {line.partition("==")[0] for line in lines}


def test_wheel_holds_every_module_and_no_tests(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in (*{Path(folder).parts[0] for folder in MAPPED.values()}, "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--no-deps", "-w", "dist", "./tree"], cwd=tmp_path, check=True)

    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        license_text = archive.read(f"{dist_info(wheel)}/licenses/LICENSE").decode()
    assert {name for name in shipped if name.endswith(".py")} == set(modules())
    assert "branchrt_gym/py.typed" in shipped
    assert "Apache License" in license_text


def dist_info(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    return f"{name}-{version}.dist-info"


def test_import_touches_no_gpu_and_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    print(f"`import branchrt_gym` took {report['seconds']:.3f} s over torch and gymnasium")
    optional = {"triton", "matplotlib", "stable_baselines3", "docker", "ray", "typer", "rich"}
    assert optional & set(report["modules"]) == set()
    assert report["started"] == []
    assert report["python_threads"] == 1
    assert report["new_threads"] == 0
    assert report["cuda"] is False


def test_console_script_shows_its_commands(tmp_path: Path) -> None:
    script = shutil.which("branchrt", path=sysconfig.get_path("scripts"))
    if script is None:
        pytest.fail("`branchrt` is not installed beside this Python: run `make test`")
    done = subprocess.run([script, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "certify", "envs"):
        assert command in done.stdout
