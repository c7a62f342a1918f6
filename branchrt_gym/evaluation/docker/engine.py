"""A Docker engine: what is asked of it, what its failures mean, and what dead owners left in it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from branchrt_gym.errors import BranchRTError, MissingExtraError

if TYPE_CHECKING:
    from docker import DockerClient  # type: ignore[import-untyped]

__all__ = ["ATTEMPT", "OWNER", "RUN", "Engine", "EngineError", "owner"]

RUN, ATTEMPT, OWNER = "branchrt.run", "branchrt.attempt", "branchrt.owner"
DAY = 24 * 3600.0
PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)  # seconds before a removal is tried again

T = TypeVar("T")


class EngineError(BranchRTError):
    """The engine failed, not what ran in it: no verdict follows from this.

    Attributes:
        lost: Whether the engine did not answer, so that it may help to wait for it.
        status: The HTTP status of its answer, or None.
    """

    def __init__(self, text: str, *, lost: bool = False, status: int | None = None) -> None:
        """Keeps what is known."""
        super().__init__(text)
        self.lost, self.status = lost, status


class Engine:
    """A connection to a Docker engine, for use by several threads.

    Everything that is made through it bears the labels of its run and of its owner, this process,
    so that `reap` knows what nobody will remove any more.

    Attributes:
        run: The run's name, in the labels and the names of containers.
        api: The SDK's low-level client.

    Args:
        client: The SDK's client; if None, the one that the environment names (`DOCKER_HOST`).
        run: Letters and digits; made up if None.
        patience: Seconds to wait for an engine that does not answer.
        disk: Bytes that must be free where the engine keeps its data, as far as that can be seen
            from here.

    Raises:
        MissingExtraError: If the Docker SDK is not installed.
        EngineError: If the engine does not answer.
    """

    def __init__(
        self,
        client: DockerClient | None = None,
        *,
        run: str | None = None,
        patience: float = 60.0,
        disk: int = 2**30,
    ) -> None:
        """Connects, and asks the engine where its data lie."""
        self.run = uuid4().hex[:12] if run is None else run
        if not self.run.isalnum():
            raise ValueError(f"`run` is {run!r}; expected letters and digits, as in a name")
        self.patience, self.disk = patience, disk
        self._own = client is None
        self._client = _connect() if client is None else client
        self.api: Any = self._client.api
        self._numbers = 0
        self._lock = threading.Lock()
        self._data = Path(self.call(self.api.info).get("DockerRootDir", ""))

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls the SDK; whatever goes wrong is an `EngineError` that says how."""
        from docker.errors import (  # type: ignore[import-untyped]
            APIError,
            DockerException,
        )
        from requests.exceptions import RequestException

        name = getattr(function, "__name__", "call")
        try:
            return function(*args, **kwargs)
        except APIError as error:
            status = error.status_code
            text = f"the engine answered `{name}` with {status}: {error.explanation or error}"
            raise EngineError(text, lost=(status or 0) >= 502, status=status) from error
        except (DockerException, RequestException, HTTPException, OSError) as error:
            text = f"the engine was lost in `{name}`: {type(error).__name__}: {error}"
            raise EngineError(text, lost=True) from error

    def wait(self, enough: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the engine answers, for `patience` seconds or until `enough()`."""
        end = time.monotonic() + self.patience
        while not enough():
            try:
                self.call(self.api.ping)
                return True
            except EngineError:
                if time.monotonic() >= end:
                    break
                time.sleep(0.1)
        return False

    def name(self, what: str) -> str:
        """Returns a name that no other container has."""
        with self._lock:
            self._numbers += 1
            return f"branchrt-{self.run}-{what}-{self._numbers}"

    def labels(self, attempt: str) -> dict[str, str]:
        """Returns the labels of what is made for an attempt."""
        return {RUN: self.run, ATTEMPT: attempt, OWNER: owner()}

    def check_disk(self) -> None:
        """Raises an `EngineError` where too little is free for another container."""
        try:
            found = os.statvfs(self._data)
        except OSError:
            return  # the engine's files cannot be seen from here
        free = found.f_bavail * found.f_frsize
        if free < self.disk:
            raise EngineError(
                f"{free / 2**20:.0f} MiB are free in {self._data}, the engine's data; at least "
                f"{self.disk / 2**20:.0f} are wanted. Remove images, or lower `disk`"
            )

    def check_images(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the id of each image; raises a `ValueError` that names those not there."""
        ids, missing = {}, []
        for name in dict.fromkeys(names):
            try:
                ids[name] = str(self.call(self.api.inspect_image, name)["Id"])
            except EngineError as error:
                if error.status != 404:
                    raise
                missing.append(name)
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise ValueError(
                f"{len(missing)} of the tasks' images are not in the engine: "
                f"{', '.join(missing[:5])}{more}. Pull or build them before the run"
            )
        return ids

    def remove(self, container: str) -> None:
        """Kills and removes a container with its volumes; it may be gone, the engine away."""
        for pause in (*PAUSES, None):
            try:
                self.call(self.api.remove_container, container, v=True, force=True)
                return
            except EngineError as error:
                if error.status == 404:
                    return
                if pause is None:
                    raise
                if error.lost:
                    self.wait()
                time.sleep(pause)

    def reap(self, run: str | None = None) -> list[str]:
        """Removes what dead owners left: containers, volumes, networks and images.

        What a living process of this machine owns is spared. Of an owner elsewhere nothing is
        known from here: its containers are removed once they have stopped for a day.

        Args:
            run: Remove all of this run, whoever owns it.

        Returns:
            What was removed, in words.
        """
        wanted = {"label": OWNER if run is None else f"{RUN}={run}"}
        removed = []

        def dead(thing: dict[str, Any]) -> bool:
            found = thing.get("Labels") or {}
            return run is not None or _is_dead(found.get(OWNER, ""), thing)

        for each in filter(dead, self.call(self.api.containers, all=True, filters=wanted)):
            self.remove(each["Id"])
            removed.append(f"container {each['Names'][0].lstrip('/')}")
        images = self.call(self.api.images, all=True, filters=wanted)
        found = [
            *(("image", x["Id"], self.api.remove_image) for x in images if dead(x)),
            *(
                ("volume", x["Name"], self.api.remove_volume)
                for x in self.call(self.api.volumes, filters=wanted).get("Volumes") or []
                if dead(x)
            ),
            *(
                ("network", x["Id"], self.api.remove_network)
                for x in self.call(self.api.networks, filters=wanted)
                if dead(x)
            ),
        ]
        before = -1
        while len(removed) > before:  # an image goes after those that stand on it
            before, left = len(removed), []
            for kind, name, remove in found:
                try:
                    self.call(remove, name, **({"force": True} if kind != "network" else {}))
                    removed.append(f"{kind} {name}")
                except EngineError as error:
                    if error.lost:
                        raise
                    left.append((kind, name, remove))  # another has removed it, or still uses it
            found = left
        return removed

    def close(self) -> None:
        """Closes the connection, if it was made here."""
        if self._own:
            self._client.close()


def owner() -> str:
    """Returns what names this process among all that ever were: boot, namespace, id and start."""
    return "/".join((_boot(), _namespace(), str(os.getpid()), _started(os.getpid()) or "0"))


def _is_dead(label: str, thing: dict[str, Any]) -> bool:
    boot, namespace, pid, started = (*label.split("/"), "", "", "", "")[:4]
    if (boot, namespace) == (_boot(), _namespace()) and pid.isdigit():
        return _started(int(pid)) != started
    stopped = thing.get("State") not in ("running", "paused", "restarting")
    return "State" in thing and stopped and time.time() - thing["Created"] > DAY


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")


def _started(pid: int) -> str | None:
    """Returns when a process started, in ticks since the boot; None if there is none."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else rest[18]


def _connect() -> DockerClient:
    try:
        from docker import DockerClient
        from docker.errors import DockerException
    except ImportError as error:
        raise MissingExtraError("docker", "docker") from error
    try:
        return DockerClient.from_env(timeout=60, max_pool_size=64)
    except DockerException as error:
        raise EngineError(
            f"no Docker engine answers: {error}. Start one, or name it in DOCKER_HOST", lost=True
        ) from error
