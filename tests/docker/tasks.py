"""SWE-bench tasks of our own: twelve small Python repositories, each with a bug, its fix, hidden
tests, and candidates' patches, most of them hostile, with the verdict that each has to get.
"""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from repositories import REPOSITORIES
from small_repository import Repository

BASE = "tests/test_it.py"
MODULE = "it.py"
IMAGE = "branchrt/task-{}:1"
SETUP = """
cd /testbed
git init -q
git add -A
git -c user.name=base -c user.email=base commit -qm base
chown -R 1000:1000 .
"""
# As SWE-bench's: the tests are put back, those of the fix put in, run, and put back again.
SCRIPT = """#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
git checkout HEAD {base}
git apply -v - <<'EOF_TESTS'
{patch}EOF_TESTS
: '>>>>> Start Test Output'
python -m pytest --no-header -rA -p no:cacheprovider {base}
: '>>>>> End Test Output'
git checkout HEAD {base}
"""

# What hostile candidates add to a module that is right or wrong otherwise.
HANG = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1e6)
"""
FORK = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
MEMORY = "\nheld = []\nwhile True:\n    held.append(bytearray(1 << 24))\n"
# Past pytest, which keeps what a module prints: its copy of the log's stream.
LOG = """
import os, stat
here = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and os.path.exists(
    f"/proc/self/fd/{fd}") and stat.S_ISFIFO(os.stat(f"/proc/self/fd/{fd}").st_mode)]
log = os.fdopen(os.dup(here[0]), "w")
"""
PRINT = f"""{LOG}
import sys
log.write("a line\\n" * 1_000_000)
log.close()
sys.stdout.write("a line\\n" * 1_000_000)
"""
NETWORK = f"""{LOG}
import socket
with log:
    for place in (("1.1.1.1", 53), ("172.17.0.1", 22), ("pypi.org", 443), ("127.0.0.1", 2375)):
        try:
            socket.create_connection(place, timeout=1)
            print("REACHED", *place, file=log)
        except OSError as error:
            print("no way to", *place, error, file=log)
    for path in ("/var/run/docker.sock", "/run/docker.sock"):
        try:
            socket.socket(socket.AF_UNIX).connect(path)
            print("REACHED", path, file=log)
        except OSError as error:
            print("no way to", path, error, file=log)
"""
OUTSIDE = f"""{LOG}
import ctypes
def attempts():
    for path in ("/evil", "/etc/evil", "/usr/bin/evil", "/root/evil", "/home/evil", "/var/evil",
                 "/sys/evil", "/sys/fs/cgroup/evil", "/proc/sys/kernel/core_pattern",
                 "/proc/sysrq-trigger", "/proc/1/root/evil", "../../../../evil", "/dev/sda"):
        yield path, lambda path=path: open(path, "a").write("x")
    libc = ctypes.CDLL(None, use_errno=True)
    def done(code):
        if code:
            raise OSError(ctypes.get_errno(), "no")
    yield "mount", lambda: done(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    yield "unshare", lambda: done(libc.unshare(0x10000000))
    yield "chroot", lambda: os.chroot("/tmp")
    yield "mknod", lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(8, 0))
    yield "setuid", lambda: os.setuid(0)
    yield "nice", lambda: os.nice(-5)
with log:
    for name, attempt in attempts():
        try:
            attempt()
            print("ESCAPED by", name, file=log)
        except OSError as error:
            print("refused:", name, error, file=log)
"""
FORGE = f"""{LOG}
with log:
    for name in %r:
        print("PASSED", name, file=log)
"""
CLEAR = """def pytest_collection_modifyitems(items):
    items.clear()
"""


@dataclass(frozen=True)
class Candidate:
    """A patch, and what must come of it.

    `resolved` is the verdict; `applied` whether the patch goes in; `log` what stands in the log,
    and `never` what must not.
    """

    patch: str
    resolved: bool
    applied: bool = True
    log: str = ""
    never: str = "ESCAPED"


def diff(path: str, old: str | None, new: str | None) -> str:
    """A patch of one file in git's form; None where there is no file."""
    lines = difflib.unified_diff(
        (old or "").splitlines(True),
        (new or "").splitlines(True),
        "/dev/null" if old is None else f"a/{path}",
        "/dev/null" if new is None else f"b/{path}",
    )
    kind = "new file mode 100644\n" if old is None else ""
    kind = "deleted file mode 100644\n" if new is None else kind
    return f"diff --git a/{path} b/{path}\n{kind}" + "".join(lines)


class Task:
    """A repository as a task, with its candidates by kind."""

    def __init__(self, repository: Repository) -> None:
        self.repository = each = repository
        self.instance_id = f"own__{each.name}-1"
        self.image = IMAGE.format(each.name)
        self.files = {MODULE: each.bug, BASE: each.seen}
        self.fail_to_pass = [f"{BASE}::{name}" for name in each.fails]
        self.pass_to_pass = [f"{BASE}::{name}" for name in each.passes]

    @property
    def row(self) -> dict:
        """The task as swebench 5.x has it."""
        hidden = diff(BASE, self.repository.seen, self.repository.seen + self.repository.hidden)
        return {
            "instance_id": self.instance_id,
            "image": self.image,
            "repo": f"own/{self.repository.name}",
            "version": "1",
            "FAIL_TO_PASS": json.dumps(self.fail_to_pass),
            "PASS_TO_PASS": json.dumps(self.pass_to_pass),
            "log_parser": "parse_log_pytest",
            "eval_type": "pass_and_fail",
            "eval_script": SCRIPT.format(base=BASE, patch=hidden),
            "patch": diff(MODULE, self.repository.bug, self.repository.fix),
        }

    def candidates(self) -> dict[str, Candidate]:
        """A candidate of each kind."""
        bug, fix, seen = self.repository.bug, self.repository.fix, self.repository.seen

        def change(new: str) -> str:
            return diff(MODULE, bug, new)

        elsewhere = "".join(f"# {line}" for line in bug.splitlines(True))
        forged = FORGE % [*self.fail_to_pass, *self.pass_to_pass]
        no_tests = diff(BASE, seen, None) + diff("tests/conftest.py", None, CLEAR)
        link = (
            "diff --git a/way b/way\nnew file mode 120000\n--- /dev/null\n+++ b/way\n"
            "@@ -0,0 +1 @@\n+/tmp\n\\ No newline at end of file\n"
        )
        return {
            "right": Candidate(change(fix), True),
            "wrong": Candidate(change(self.repository.wrong), False),
            "empty": Candidate("", False, False),
            "no_apply": Candidate(diff(MODULE, elsewhere, fix), False, False),
            "hang": Candidate(change(fix + HANG), False),
            "fork": Candidate(change(fix + FORK), False),
            "memory": Candidate(change(fix + MEMORY), False),
            "no_tests": Candidate(no_tests, False),
            "print": Candidate(change(fix + PRINT), True, log="a line\n"),
            "network": Candidate(change(fix + NETWORK), True, log="no way to", never="REACHED"),
            "outside": Candidate(change(fix + OUTSIDE), True, log="refused: mount"),
            "outside_patch": Candidate(
                change(fix) + diff("../../tmp/evil", None, "x\n"), False, False
            ),
            "through_link": Candidate(
                link + diff("way/evil", None, "x\n") + change(fix), False, False
            ),
            "forge": Candidate(change(bug + forged), False),
        }


TASKS = [Task(each) for each in REPOSITORIES]
KINDS = list(TASKS[0].candidates())


def make_images(make_image, tasks: Iterable[Task]) -> None:
    """Makes the tasks' images; `make_image` is the fixture of that name."""
    for task in tasks:
        files = {f"/testbed/{path}": text for path, text in task.files.items()}
        make_image(task.image, SETUP, files)


def write_tasks(folder: Path, tasks: Iterable[Task]) -> Path:
    """Writes `tasks.jsonl`."""
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(task.row) + "\n" for task in tasks))
    return path


def write_predictions(folder: Path, name: str, patches: dict[str, str]) -> Path:
    """Writes the predictions of one model, `name`: a patch of each instance."""
    path = folder / f"preds_{name}.json"
    rows = {
        instance: {"instance_id": instance, "model_name_or_path": name, "model_patch": patch}
        for instance, patch in patches.items()
    }
    path.write_text(json.dumps(rows))
    return path


def write_kinds(folder: Path, tasks: list[Task], kinds: Iterable[str] = KINDS) -> list[Path]:
    """Writes the predictions of each kind as those of one model."""
    return [
        write_predictions(
            folder, kind, {task.instance_id: task.candidates()[kind].patch for task in tasks}
        )
        for kind in kinds
    ]


def write_two_roots(folder: Path, tasks: list[Task]) -> list[Path]:
    """Writes two models: one has no patch for the first task; the other is wrong on the second."""
    first, second = tasks[:2]
    kinds = {"a": ("empty", "right"), "b": ("right", "wrong")}
    return [
        write_predictions(
            folder,
            name,
            {
                first.instance_id: first.candidates()[of_first].patch,
                second.instance_id: second.candidates()[of_second].patch,
            },
        )
        for name, (of_first, of_second) in kinds.items()
    ]
