"""A real Docker engine for these tests, and an image; where there can be none they are skipped.

Each process of pytest has an engine of its own, started at the first test that asks for it.
"""

import contextlib
import io
import os
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker_root
import pytest
from real_engine import RealEngine, obstacle

HERE = Path(__file__).parent
BASE = "branchrt/base:1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and {"engine"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("docker")


@pytest.fixture(scope="session")
def engine() -> Iterator[RealEngine]:
    """The engine; `engine.kill()` and `engine.start()` restart it."""
    pytest.importorskip("docker.client", reason="the docker SDK is not installed")
    why = obstacle()
    if why is not None:
        pytest.skip(f"no Docker engine: {why}")
    engine = RealEngine()
    try:
        engine.start()
    except OSError as error:
        pytest.skip(f"no Docker engine: {error}")
    yield engine
    engine.close()
    assert not engine.folder.exists()


@pytest.fixture(scope="session")
def client(engine):
    """The SDK's client for the engine."""
    from docker import DockerClient

    client = DockerClient(base_url=engine.url, timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="session")
def base_image(engine) -> str:
    """An image with Python, pytest, bash, git and patch; users root and runner (1000)."""
    changes = [word for line in docker_root.CONFIG for word in ("-c", line)]
    with subprocess.Popen(
        ["docker", "-H", engine.url, "import", *changes, "-", BASE],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "DOCKER_CONFIG": str(engine.folder)},
    ) as importer:
        docker_root.write_root(importer.stdin)
        importer.stdin.close()
    assert importer.returncode == 0
    return BASE


@pytest.fixture(scope="session")
def make_image(client, base_image) -> Callable[..., str]:
    """`make_image(name, script, files)` runs a shell script in the base image and commits it."""

    def make(name: str, script: str, files: dict[str, str] | None = None) -> str:
        container = client.containers.create(
            base_image, ["bash", "-euc", script], network_mode="none", working_dir="/"
        )
        try:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for path, content in (files or {}).items():
                    member = tarfile.TarInfo(path.lstrip("/"))
                    data = content.encode()
                    member.size, member.mode, member.mtime = len(data), 0o644, int(time.time())
                    archive.addfile(member, io.BytesIO(data))
            container.put_archive("/", packed.getvalue())
            container.start()
            code = container.wait()["StatusCode"]
            assert code == 0, container.logs().decode()
            container.commit(name, changes='CMD ["/bin/bash"]')
        finally:
            container.remove(force=True)
        return name

    return make


@pytest.fixture(scope="session")
def adder_image(make_image):
    from small_task import FILES, REPO

    return make_image("branchrt/adder:1", REPO, FILES)


@pytest.fixture
def make_verifier(client, adder_image):
    """`make_verifier(candidates, **arguments)` closes the verifier, and looks for what it left."""
    from small_task import SMALL, TEST

    from branchrt_gym.evaluation.docker import DockerTask, DockerVerifier

    with contextlib.ExitStack() as stack:

        def make(candidates, command=("python", "test_adder.py"), roots=1, **arguments):
            task = DockerTask(image=adder_image, command=command, files={"test_adder.py": TEST})
            given = {"limits": SMALL, "seconds": 20.0, "workers": 2, "client": client, **arguments}
            verifier = DockerVerifier([task] * roots, [candidates] * roots, **given)
            return stack.enter_context(verifier)

        yield make
    assert client.containers.list(all=True) == []
    assert client.volumes.list() == []
