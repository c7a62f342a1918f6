"""Evidence: what a figure was measured on, and the JSON lines that keep it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from branchrt_gym.certify.certificate import versions

__all__ = ["append_row", "commit", "hardware", "plain", "provenance", "read_rows"]


def provenance(command: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Returns what every row begins with: command, time, commit, hardware, versions and load.

    Take it before measuring: `load` is the system's one-minute average, the state of the machine
    that the figures were taken in.
    """
    return {
        "command": command,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        **commit(),
        "hardware": hardware(device),
        "versions": versions(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def commit() -> dict[str, Any]:
    """Returns the checkout's commit, and whether files other than evidence differ from it.

    Both are None where the package does not run from a checkout of its own.
    """
    unknown = {"commit": None, "dirty": None}
    root = Path(__file__).resolve().parents[2]
    try:
        top = _git(root, "rev-parse", "--show-toplevel")
        if Path(top).resolve() != root:
            return unknown
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)evidence")
    except (OSError, subprocess.SubprocessError):
        return unknown
    return {"commit": head, "dirty": bool(changed)}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip()


def hardware(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Returns the processor, its cores, memory, and the GPU where `device` is one."""
    found: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "device": torch.device(device).type,
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
    return found


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.machine()


def _memory_gib() -> float | None:
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    return round(pages / 2**30, 1)


def append_row(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Appends one row, as one line of JSON; dataclasses in it become objects."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, default=_plain, ensure_ascii=False, allow_nan=False)
    with target.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"  # a line that a crash cut off stays a line of its own
            file.write(b"\n" * torn)
        file.write(f"{line}\n".encode())


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row as it would be read again."""
    text = json.dumps(row, default=_plain, ensure_ascii=False, allow_nan=False)
    found: dict[str, Any] = json.loads(text)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"a row holds {type(value).__name__}; expected plain values and dataclasses")


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the rows of a file, oldest first.

    Raises:
        ValueError: For a line that is not a JSON object, with its number.
    """
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number} is {type(row).__name__}; expected a JSON object")
        rows.append(row)
    return rows
