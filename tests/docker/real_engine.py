"""A Docker engine of the tests' own: its network namespace, its socket, its data, its end."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PREFIX = "branchrt-dockerd-"
NEEDED = {"dockerd": "docker.io", "unshare": "util-linux", "setpriv": "util-linux"}
TRIES = 300  # of a tenth of a second each


def obstacle() -> str | None:
    """What keeps an engine from being started here, or None."""
    if os.geteuid() != 0:
        return "an engine is started by root only"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for program, package in NEEDED.items():
        if shutil.which(program, path=path) is None:
            return f"`{program}` is not installed (on Debian: {package})"
    return None


class RealEngine:
    """A dockerd that this process started; `url` is where it listens.

    It is stopped by its process id. If this process is killed the kernel ends dockerd, and the
    next engine cleans what is left of it.
    """

    def __init__(self) -> None:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        (self.folder / "owner").write_text(str(os.getpid()))
        self.socket = self.folder / "run/docker.sock"
        self.url = f"unix://{self.socket}"
        self.parent = self.folder.name  # of its containers' cgroups
        self._process: subprocess.Popen[bytes] | None = None
        # In memory, where files are made and removed ten times faster than on a busy disk. What a
        # container writes to its layer counts against its memory limit then.
        data = self.folder / "data"
        data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6g", "tmpfs", data], check=True)

    def start(self) -> None:
        """Starts dockerd, which ends with the calling thread, and waits until it answers."""
        run = self.folder / "run"
        run.mkdir(exist_ok=True)
        command = ["setpriv", "--pdeathsig", "TERM", "unshare", "--net", "--", "dockerd"]
        command += ["--data-root", str(self.folder / "data"), "--exec-root", str(run / "exec")]
        command += ["--pidfile", str(run / "docker.pid"), "-H", self.url]
        command += ["--storage-driver", "overlay2", "--cgroup-parent", self.parent]
        command += ["--iptables=false", "--ip6tables=false", "--bridge=none"]
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": path},
                start_new_session=True,
            )
        for _ in range(TRIES):
            if self.answers():
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        tail = (self.folder / "log").read_text(errors="replace")[-2000:]
        self.close()
        raise OSError(f"dockerd did not start:\n{tail}")

    def answers(self) -> bool:
        """Whether the engine answers a ping."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as end:
            end.settimeout(2.0)
            end.connect(str(self.socket))
            end.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in end.recv(100)
        return False

    def kill(self) -> None:
        """Ends dockerd as a crash would: with no word to anyone, and its containers live on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        # The kernel ends its containerd, soon; a new dockerd would take a dying one for its own.
        state = self.folder / "run/exec/containerd"
        with contextlib.suppress(OSError, ValueError):
            pid = int((state / "containerd.pid").read_text())
            for _ in range(TRIES):
                os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
        for each in (state / "containerd.pid", self.folder / "run/docker.pid", self.socket):
            each.unlink(missing_ok=True)

    def stop(self) -> None:
        """Ends dockerd in good order, and its containers with it; it takes seconds."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def close(self) -> None:
        """Stops the engine and removes all that it made."""
        # Nothing of it is kept, so nothing is waited for: an orderly stop takes 15 seconds.
        if self._process is not None:
            self.kill()
        remove(self.folder)


def remove(folder: Path) -> None:
    """Removes what an engine that has ended left: processes, mounts, cgroups, files."""
    for pid in processes_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for _ in range(50):
        if not processes_of(folder):
            break
        time.sleep(0.1)
    for mount in reversed(mounts_under(folder)):
        subprocess.run(["umount", "-l", mount], check=False)
    for group in Path("/sys/fs/cgroup").glob(f"**/{folder.name}"):
        for each in sorted(group.glob("**/"), reverse=True):
            with contextlib.suppress(OSError):
                each.rmdir()
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """Processes of an engine: those that name its folder, and those in its cgroups."""
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            ours = any(word.startswith(os.fsencode(folder) + b"/") for word in words)
            if ours or f"/{folder.name}/" in (place / "cgroup").read_text():
                found.append(int(place.name))
    return found


def mounts_under(folder: Path) -> list[str]:
    """Where file systems are mounted under a folder, in the order of mounting."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]


def sweep() -> None:
    """Removes what engines of killed test runs left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            owner = int((folder / "owner").read_text())
        except (OSError, ValueError):
            continue
        if not Path(f"/proc/{owner}").exists():
            remove(folder)
