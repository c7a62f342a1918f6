"""The layers: which part of the package may import what, read from the source of each file.

kernels  <-  core  <-  envs, wrappers (never each other), integrations, evaluation, cli and bench
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("branchrt_gym", "kernels", "wrappers", "envs")

# Imported where they are used, inside a function. Files `*_triton.py` are triton's own.
OPTIONAL = frozenset(
    {"triton", "matplotlib", "docker", "jax", "ray", "stable_baselines3", "mujoco", "ale_py"}
)
UPPER = frozenset({"envs", "wrappers", "integrations", "distributed", "evaluation", "cli", "bench"})
CORE = frozenset({"core", "kernels", "torch", "numpy", "gymnasium", "safetensors"})


@dataclass(frozen=True)
class Layer:
    """What a layer imports: `always` anywhere, `inside` only inside functions."""

    always: frozenset[str]
    inside: frozenset[str] = OPTIONAL


LAYERS = {
    "kernels": Layer(frozenset({"kernels", "torch"}), frozenset({"triton"})),
    "core": Layer(CORE, OPTIONAL | UPPER),
    "envs": Layer(CORE | {"envs"}),
    "wrappers": Layer(CORE | {"wrappers", "evaluation", "cloudpickle"}),  # which Gymnasium brings
    "integrations": Layer(CORE | {"integrations", "stable_baselines3"}),  # a module a library
    "evaluation": Layer(
        CORE | {"evaluation"},
        OPTIONAL | {"httpx", "cloudpickle", "rich", "requests", "swebench"},
    ),
    "distributed": Layer(CORE | {"distributed"}),
    "cli": Layer(CORE | {"cli", "bench", "envs", "evaluation", "typer", "rich"}, OPTIONAL | UPPER),
    "bench": Layer(
        CORE | {"bench", "envs", "evaluation", "typer", "rich"}, OPTIONAL | UPPER | {"httpx"}
    ),
}


def layer_of(module: str) -> str:
    """The layer of one of our modules, or the top-level name of a foreign one."""
    top, _, rest = module.partition(".")
    if top != "branchrt_gym":
        return f"foreign {top}" if top in LAYERS else top
    part = rest.partition(".")[0]
    if module.endswith(("_command", ".command", ".__main__")):
        part = "cli"
    return part if part in LAYERS else "core"


def module_of(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts if parts[0] == "branchrt_gym" else ("branchrt_gym", *parts))


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


TRITON_FILES = {file.stem for folder in FOLDERS for file in (ROOT / folder).rglob("*_triton.py")}


def is_triton_file(name: str) -> bool:
    return name.startswith("branchrt_gym.") and not TRITON_FILES.isdisjoint(name.split("."))


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[int, str, bool]]:
    """Yields the line, the full name and whether it runs later than the module is imported."""
    for child in ast.iter_child_nodes(tree):
        later = inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name, later) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            yield from ((child.lineno, f"{base}.{alias.name}", later) for alias in child.names)
        elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith(
            ("import_module", "__import__")
        ):
            if child.args and isinstance(child.args[0], ast.Constant):
                yield child.lineno, str(child.args[0].value), later
        if isinstance(child, ast.If) and is_type_checking(child.test):
            yield from imports(ast.Module(child.body, []), inside=True)
            yield from imports(ast.Module(child.orelse, []), later)
        else:
            yield from imports(child, later)


def violations(path: str, source: str) -> list[str]:
    """The imports of `source`, the file at `path` from the root, that its layer forbids."""
    layer = layer_of(module_of(path))
    always, inside = LAYERS[layer].always, LAYERS[layer].inside
    if path.endswith("_triton.py"):
        always = always | {"triton"}
    if path == "branchrt_gym/__init__.py":
        # Importing the package registers the environments, and offers what wraps others.
        always = always | {"envs", "wrappers"}
    found = []
    for line, name, later in imports(ast.parse(source, path)):
        target = layer_of(name)
        triton_file = is_triton_file(name)
        if name.startswith("."):
            found.append(f"{path}:{line}: `{name}` is a relative import")
        elif target not in always | inside | sys.stdlib_module_names:
            found.append(f"{path}:{line}: {layer} may not import `{name}`")
        elif not later and (
            target not in always | sys.stdlib_module_names
            or (triton_file and "triton" not in always)
        ):
            found.append(f"{path}:{line}: {layer} imports `{name}` only inside a function")
    return found


FILES = sorted(
    file.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*.py")
)


def test_every_folder_is_read() -> None:
    assert {file.partition("/")[0] for file in FILES} == set(FOLDERS)


@pytest.mark.parametrize("path", FILES)
def test_file_keeps_to_its_layer(path: str) -> None:
    assert violations(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/top_k.py", "import numpy"),
        ("kernels/top_k.py", "import triton"),
        ("kernels/top_k.py", "from branchrt_gym.kernels.select_triton import top_k"),
        ("kernels/top_k.py", "def f():\n    from branchrt_gym.errors import FrontierFullError"),
        ("kernels/top_k_triton.py", "import matplotlib"),
        ("branchrt_gym/frontier.py", "import triton"),
        ("branchrt_gym/frontier.py", "try:\n    import triton\nexcept ImportError:\n    pass"),
        ("branchrt_gym/frontier.py", "import matplotlib.pyplot as plt"),
        ("branchrt_gym/frontier.py", "def f():\n    import rich"),
        ("branchrt_gym/frontier.py", "def f():\n    import pandas"),
        ("branchrt_gym/frontier.py", "from .lineage import Lineage"),
        ("branchrt_gym/frontier.py", "from . import lineage"),
        ("branchrt_gym/frontier.py", "import kernels"),
        ("branchrt_gym/frontier.py", "from branchrt_gym import envs"),
        ("branchrt_gym/frontier.py", "from branchrt_gym.kernels import select_triton"),
        ("branchrt_gym/frontier.py", "import importlib\nt = importlib.import_module('triton')"),
        ("branchrt_gym/__init__.py", "import branchrt_gym.integrations"),
        ("branchrt_gym/__init__.py", "from branchrt_gym.integrations import sb3"),
        ("branchrt_gym/certify/matrix.py", "from branchrt_gym.envs.deep_tree import DeepTree"),
        ("branchrt_gym/certify/__init__.py", "from branchrt_gym import envs"),
        ("branchrt_gym/registry.py", "class A:\n    import branchrt_gym.cli"),
        ("branchrt_gym/cli.py", "import matplotlib"),
        ("branchrt_gym/bench/capacity.py", "from matplotlib import pyplot"),
        ("branchrt_gym/integrations/sb3.py", "import docker"),
        ("branchrt_gym/distributed/workers.py", "import ray"),
        ("envs/deep_tree.py", "def f():\n    from branchrt_gym.wrappers import BranchWrapper"),
        ("envs/deep_tree.py", "import triton.language as tl"),
        ("envs/deep_tree.py", "from branchrt_gym.envs.deep_tree_triton import transition"),
        ("envs/deep_tree.py", "from branchrt_gym.bench import capacity"),
        ("wrappers/branch.py", "from branchrt_gym.envs import deep_tree"),
        ("wrappers/swe/containers.py", "import docker"),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str) -> None:
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/top_k.py", "from branchrt_gym.kernels import has_triton"),
        ("kernels/top_k.py", "import math\nimport torch\nfrom branchrt_gym.kernels import fork"),
        ("kernels/top_k.py", "def f():\n    from branchrt_gym.kernels import select_triton"),
        ("kernels/top_k_triton.py", "import triton\nimport triton.language as tl"),
        ("envs/deep_tree_triton.py", "import triton"),
        ("branchrt_gym/__init__.py", "import branchrt_gym.envs\nfrom branchrt_gym import envs"),
        ("branchrt_gym/frontier.py", "import numpy\nfrom branchrt_gym import kernels, lineage"),
        ("branchrt_gym/frontier.py", "import gymnasium\nfrom safetensors.torch import save"),
        ("branchrt_gym/demo.py", "def f():\n    import matplotlib.pyplot"),
        ("branchrt_gym/certify/matrix.py", "async def f():\n    import branchrt_gym.envs"),
        (
            "branchrt_gym/render.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import matplotlib",
        ),
        ("branchrt_gym/cli.py", "import typer\nfrom rich.table import Table"),
        ("branchrt_gym/bench/capacity.py", "import branchrt_gym.envs\nimport rich"),
        ("branchrt_gym/integrations/sb3.py", "import stable_baselines3"),
        ("envs/deep_tree.py", "from branchrt_gym import BranchEnv\nimport branchrt_gym.envs.rules"),
        ("wrappers/branch.py", "import torch\nfrom branchrt_gym.vector_env import live"),
    ],
)
def test_an_allowed_import_is_not_reported(path: str, source: str) -> None:
    assert violations(path, source) == []
