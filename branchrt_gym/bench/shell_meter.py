"""What containers take of a machine: the engine's disk, its cgroups, its processes beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from branchrt_gym.evaluation.docker.container_branch import ContainerBranch
from branchrt_gym.evaluation.docker.engine import Engine

__all__ = ["Meter"]


class Meter:
    """Measures an engine of this machine, which nobody else may use meanwhile.

    Raises:
        OSError: If its files cannot be read from here.
    """

    def __init__(self, engine: Engine) -> None:
        """Finds the engine's files."""
        self.engine = engine
        self.data = Path(engine.call(engine.api.info)["DockerRootDir"])
        if not os.access(self.data, os.R_OK | os.X_OK):
            raise PermissionError(
                f"{self.data}, the engine's data, cannot be read; expected an engine of this "
                "machine, and to be root, since the disk is measured there"
            )

    def disk(self) -> int:
        """Returns bytes on the disk, each file once, without what is mounted inside."""
        seen, total, device = set(), 0, self.data.stat().st_dev
        for folder, folders, files in os.walk(self.data):
            here = Path(folder)
            folders[:] = [name for name in folders if _device(here / name) == device]
            for name in files:
                try:
                    found = os.lstat(here / name)
                except FileNotFoundError:
                    continue
                if found.st_ino not in seen:
                    seen.add(found.st_ino)
                    total += found.st_blocks * 512
        return total

    def memory(self, session: ContainerBranch) -> int:
        """Returns bytes charged to all containers, those that are gone included."""
        api = self.engine.api
        state = self.engine.call(api.inspect_container, session.start().name)["State"]
        for line in Path(f"/proc/{state['Pid']}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            above = Path("/sys/fs/cgroup", *(("memory",) if controllers else ()), path[1:]).parent
            for name in ("memory.usage_in_bytes", "memory.current"):
                if "memory" in controllers.split(",") or not controllers:
                    if (above / name).exists():
                        return int((above / name).read_text())
        raise OSError("no memory cgroup of the engine's containers can be read from here")

    def shims(self, sessions: Sequence[ContainerBranch]) -> int:
        """Returns bytes of the processes that the engine keeps beside containers."""
        api, total = self.engine.api, 0
        call = self.engine.call
        ids = {call(api.inspect_container, each.start().name)["Id"].encode() for each in sessions}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
                if b"shim" in words[0] and ids & set(words):
                    told = (place / "smaps_rollup").read_text()
                    total += 1024 * sum(map(int, re.findall(r"^Pss: +(\d+)", told, re.M)))
            except OSError:
                continue  # it has ended
        return total

    def size(self, session: ContainerBranch) -> int:
        """Returns bytes of the layers of a session above the task's image."""
        sizes = [
            self.engine.call(self.engine.api.inspect_image, each.image)["Size"]
            for each in (session.layer(), session.branches.base)
        ]
        return int(sizes[0] - sizes[1])


def _device(path: Path) -> int:
    try:
        return path.lstat().st_dev
    except FileNotFoundError:
        return -1
