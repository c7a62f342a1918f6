"""The kernel's count of processes that were killed for memory in a container.

The engine's own flag stays false where the killed process is not the container's first.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["INSIDE", "MemoryCounter", "oom_kills"]

GROUPS = Path("/sys/fs/cgroup")
# Where a container finds its own, for the two versions of control groups.
INSIDE = (f"{GROUPS}/memory/memory.oom_control", f"{GROUPS}/memory.events")


class MemoryCounter:
    """The file that counts, seen from outside the container, where nothing in it can change it.

    Attributes:
        pid: The container's first process, in this machine's numbers.
        file: None if it cannot be seen: the engine is elsewhere.
    """

    def __init__(self, container: str, pid: int) -> None:
        """Finds the file.

        Args:
            container: The id.
            pid: Its first process.
        """
        self.pid, self.file = pid, _find(container, pid)

    def read(self) -> int | None:
        """Returns the count; None if the file is not seen, or gone with the container."""
        try:
            return None if self.file is None else oom_kills(self.file.read_text())
        except OSError:
            return None


def oom_kills(text: str) -> int | None:
    """Returns the count out of the kernel's text."""
    found = re.search(r"^oom_kill (\d+)", text, re.M)
    return int(found[1]) if found else None


def _find(container: str, pid: int) -> Path | None:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if container not in path:
            continue  # this number is another process here
        if not controllers:
            place = GROUPS / path[1:] / "memory.events"
        elif "memory" in controllers.split(","):
            place = GROUPS / "memory" / path[1:] / "memory.oom_control"
        else:
            continue
        if place.exists():
            return place
    return None
