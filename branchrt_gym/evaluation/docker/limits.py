"""What a container of an untrusted candidate may do; every relaxation is a named argument."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Limits"]

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a container. The defaults are the hard ones.

    No argument mounts a folder of the host, gives the engine's socket or makes a container
    privileged.

    Attributes:
        memory: Bytes of memory, without swap. Files in the writable folders count too.
        cpus: Processors' worth of time.
        pids: Processes and threads at once.
        work: Bytes of the working directory, which lies in memory where the root is read-only.
        tmp: Bytes of `/tmp`. shm: Bytes of `/dev/shm`.
        file: Bytes of a single file that is written.
        open_files: Files that a process holds open.
        output: Bytes of output that are kept, the first and the last half.
        printed: Bytes of output after which the container is killed.
        read_only: Whether the image's root is read-only. Then the working directory is a copy in
            memory that belongs to `user`. If False, what is written goes to the host's disk, which
            no engine limits by default.
        user: `"uid"` or `"uid:gid"` in numbers; None for the image's own user, often root.
        network: Docker's name of a network; `"none"` has a loopback only.
        capabilities: Names that are added to none at all, `("SYS_PTRACE",)` for example.
        new_privileges: Whether a setuid program may raise privileges.
        init: Whether process 1 is the engine's init, which reaps orphans; without it they count
            towards `pids`.
        lifetime: Seconds after which a container ends by itself, if nobody removes it.
    """

    memory: int = 1024 * MIB
    cpus: float = 1.0
    pids: int = 256
    work: int = 512 * MIB
    tmp: int = 128 * MIB
    shm: int = 16 * MIB
    file: int = 256 * MIB
    open_files: int = 1024
    output: int = 4 * MIB
    printed: int = 256 * MIB
    read_only: bool = True
    user: str | None = "1000:1000"
    network: str = "none"
    capabilities: tuple[str, ...] = ()
    new_privileges: bool = False
    init: bool = True
    lifetime: int = 24 * 3600

    def __post_init__(self) -> None:
        """Refuses what would be no limit at all."""
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float) and not value > 0:
                raise ValueError(f"`{field.name}` is {value}; expected a number above 0")
        if self.memory < 6 * MIB:
            raise ValueError(
                f"`memory` is {self.memory} bytes; expected {6 * MIB} or more, the engine's least"
            )
        if self.user is not None and not re.fullmatch(r"\d+(:\d+)?", self.user):
            raise ValueError(
                f"`user` is {self.user!r}; expected numbers, 'uid' or 'uid:gid', since the folders "
                "in memory are made to belong to it, or None for the image's own user"
            )

    def host_config(self, workdir: str) -> dict[str, Any]:
        """Returns arguments for the SDK's `create_host_config`."""
        config: dict[str, Any] = {
            "network_mode": self.network,
            "cap_drop": ["ALL"],
            "cap_add": list(self.capabilities) or None,
            "security_opt": [] if self.new_privileges else ["no-new-privileges"],
            "mem_limit": self.memory,
            "memswap_limit": self.memory,
            "cpu_period": 100_000,
            "cpu_quota": max(1000, round(self.cpus * 100_000)),
            "pids_limit": self.pids,
            "shm_size": self.shm,
            "ipc_mode": "private",
            "init": self.init,
            "read_only": self.read_only,
            "tmpfs": {"/tmp": _options(self.tmp, "mode=1777")},
            "ulimits": [
                {"Name": "nofile", "Soft": self.open_files, "Hard": self.open_files},
                {"Name": "fsize", "Soft": self.file, "Hard": self.file},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            # Process 1's output would be kept on the host's disk without end.
            "log_config": {"Type": "none", "Config": {}},
        }
        if self.read_only and workdir != "/tmp":
            owner, _, group = (self.user or "0").partition(":")
            whose = f"mode=755,uid={owner},gid={group or owner}"
            config["tmpfs"][workdir] = _options(self.work, whose)
        return config


def _options(size: int, more: str) -> str:
    return f"rw,exec,nosuid,nodev,size={size},{more}"
