"""The README's Python blocks run, each by itself, and its links lead somewhere."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
EXTRAS = {"docker": "docker", "matplotlib": "plot", "ray": "ray", "stable_baselines3": "sb3"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0][:40])
def test_python_block_runs(block: str, tmp_path: Path) -> None:
    for package, extra in EXTRAS.items():
        if re.search(rf"^(import|from) {package}\b", block, re.MULTILINE) and not find_spec(
            package
        ):
            pytest.skip(f"{package} is not installed: the block needs the extra `{extra}`")
    (tmp_path / "block.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_relative_links_exist() -> None:
    links = re.findall(r"\]\(([^)\s]+)|(?:src|href)=\"([^\"]+)\"", README)
    targets = [first or second for first, second in links]
    local = [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    assert [target for target in local if not (ROOT / target).exists()] == []
