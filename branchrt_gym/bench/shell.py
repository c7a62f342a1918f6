"""`branchrt bench shell`: forks of shell sessions, and branches beside independent containers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.estimates import Estimate, estimate
from branchrt_gym.bench.shell_meter import Meter
from branchrt_gym.evaluation.docker.container_branch import ContainerBranch, ContainerBranches
from branchrt_gym.evaluation.docker.engine import Engine

__all__ = ["ForkTimes", "Room", "ShellComparison", "ShellSizes", "measure_shell"]

MB = 10**6

# A repository with its tests, built as a task's image has it: sources, compiled files that do not
# hold a time, fixtures that do not compress.
BUILD = """
mkdir -p /testbed/package /testbed/tests /testbed/fixtures && cd /testbed && python - <<'END'
import random, pathlib
chance = random.Random(0)
for i in range({modules}):
    factors = (chance.randrange(10**6) for _ in range(60))
    lines = [f"def f{{j}}(x):\\n    return x * {{k}} + {{j}}\\n" for j, k in enumerate(factors)]
    pathlib.Path(f"package/m{{i}}.py").write_text("\\n".join(lines))
    pathlib.Path(f"tests/test_m{{i}}.py").write_text(
        f"from package import m{{i}}\\n\\ndef test_f():\\n    assert m{{i}}.f7(0) == 7\\n"
    )
for i in range(8):
    pathlib.Path(f"fixtures/{{i}}").write_bytes(chance.randbytes({fixtures} // 8))
END
python -m compileall -q --invalidation-mode unchecked-hash package
printf '#!/bin/bash\\ncd /testbed && python -B -m pytest -rA --tb=no "$@"\\n' >/run_tests.sh
chmod +x /run_tests.sh; cat fixtures/* | sha256sum
export PYTHONHASHSEED=0 PYTEST_ADDOPTS="-p no:cacheprovider"
"""
# What a branch does: a change, right in every other one, and its tests.
CHANGE = (
    "printf 'def f7(x):\\n    return {}\\n' >>package/m{}.py"
    " && rm -f package/__pycache__/m{}.*.pyc && head -c {} /dev/zero | tr '\\0' x >log{}"
)
TEST = "/run_tests.sh tests/test_m{}.py tests/test_m{}.py"
DIGEST = "find /testbed -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
PROBE = f"{DIGEST}; env | sort"


@dataclass(frozen=True)
class ShellSizes:
    """What is measured.

    Attributes:
        ancestors: Megabytes (10**6 bytes) in layers below the session that forks.
        child: Megabytes that a child writes.
        branches: Branches of the repository, and independent containers.
        modules: Python modules of the repository, with a test each.
        fixtures: Megabytes of other files in it.
    """

    ancestors: int = 100
    child: int = 1
    branches: int = 32
    modules: int = 200
    fixtures: int = 40


@dataclass(frozen=True)
class ForkTimes:
    """What a fork took. Milliseconds, and bytes of the engine's disk.

    Attributes:
        first_ms: The first fork, which commits the ancestors' files; its child has started.
        first_bytes: What that left on the disk beside the files that were there.
        commit_ms: A fork of a session that wrote a child's share since the last one.
        start_ms: The start of a child.
        new_bytes: The most that a fork and a child that wrote its share added.
    """

    first_ms: float
    first_bytes: int
    commit_ms: Estimate
    start_ms: Estimate
    new_bytes: int


@dataclass(frozen=True)
class Room:
    """What containers took that live at one time; each ran its commands, and waits.

    Attributes:
        seconds: To make them all, one after the other, their commands included.
        disk: Bytes on the engine's disk.
        memory: Bytes charged to their cgroups, the page cache of their files included; and all of
            what they share, which the engine wrote, as if it were in the page cache.
        shims: Bytes of the engine's own process beside each container, its share of common pages.
    """

    seconds: float
    disk: int
    memory: int
    shims: int

    def takes(self, what: str) -> int:
        """Returns bytes of disk or of memory, the engine's processes included; 1 or more."""
        return max(1, self.disk if what == "disk" else self.memory + self.shims)


@dataclass(frozen=True)
class ShellComparison:
    """What was found; figures are None where a branch differs from its replay.

    Attributes:
        sizes: The sizes.
        compared: Exit codes, outputs and digests compared. mismatches: How many differ.
        forks: Of a fork.
        branched: Of the branches, with the state that they share.
        independent: Of as many containers that build the state each, as the replay does.
    """

    sizes: ShellSizes
    compared: int
    mismatches: int
    forks: ForkTimes | None = None
    branched: Room | None = None
    independent: Room | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {"bench": "shell", **asdict(self)}


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    begin = perf_counter()
    result = function()
    return 1e3 * (perf_counter() - begin), result


def measure_forks(
    branches: ContainerBranches, meter: Meter, sizes: ShellSizes, repetitions: int
) -> ForkTimes:
    """Forks along a line of sessions, each of which writes its share and forks again."""

    def fork(session: ContainerBranch) -> tuple[float, float, ContainerBranch]:
        commit, (child,) = _timed(session.fork)
        start, _ = _timed(child.start)
        return commit, start, child

    session = branches.open()
    session.run(f"mkdir /w; cd /w; head -c {sizes.ancestors * MB} /dev/urandom >ancestors")
    before = meter.disk()
    commit, start, session = fork(session)
    first_ms, first_bytes = commit + start, meter.disk() - before
    write = f"head -c {sizes.child * MB} /dev/urandom >"
    session.run(f"{write}first")
    commits, starts, added = [], [], []
    for number in range(repetitions):
        before = meter.disk()
        commit, start, child = fork(session)
        child.run(f"{write}child{number}")
        added.append(meter.disk() - before)
        commits.append(commit)
        starts.append(start)
        session.prune()
        session = child
    session.prune()
    return ForkTimes(first_ms, first_bytes, estimate([commits]), estimate([starts]), max(added))


def _work(session: ContainerBranch, number: int, sizes: ShellSizes) -> list[tuple[Any, str]]:
    """Runs a branch's commands; returns what it saw, without the seconds that tests print."""
    here, other = number % sizes.modules, (number + 1) % sizes.modules
    value = "7" if number % 2 else "8"
    commands = (
        CHANGE.format(value, here, here, 100_000, number),
        TEST.format(here, other),
    )
    seen = [session.run(command) for command in commands]
    return [(each.exit_code, re.sub(r"in \d+\.\d+s", "", each.output)) for each in seen]


def _probed(session: ContainerBranch) -> tuple[int | None, str]:
    found = session.run(PROBE)
    return found.exit_code, found.output


def measure_shell(
    image: str,
    sizes: ShellSizes,
    *,
    engine: Engine | None = None,
    repetitions: int = 5,
    progress: Progress = lambda stage, done, total: None,
) -> ShellComparison:
    """Measures forks, then branches of one built repository beside containers that build it each.

    Args:
        image: Of the engine, with bash, Python and pytest.
        sizes: The sizes.
        engine: Where; None for the one that the environment names.
        repetitions: Forks that are timed.
        progress: Called with what is done.

    Raises:
        OSError: If the engine's disk and cgroups cannot be read from here.
    """
    branches = ContainerBranches(image, engine=engine, seconds=300.0)
    try:
        return _measure(branches, sizes, repetitions, progress)
    finally:
        branches.close()


def _measure(
    branches: ContainerBranches, sizes: ShellSizes, repetitions: int, progress: Progress
) -> ShellComparison:
    meter, total = Meter(branches.engine), 2 * sizes.branches + 1
    build = BUILD.format(modules=sizes.modules, fixtures=sizes.fixtures * MB)
    witness = branches.open()
    witness.run("python -c 'import pytest'")  # what the image's files take is nobody's
    progress("Forks", 0, total)
    forks = measure_forks(branches, meter, sizes, repetitions)
    seen: list[list[Any]] = [[], []]
    rooms = []
    for kind, title in enumerate(("Branches", "Independent containers")):
        branches.sweep()
        disk, memory, begin = meter.disk(), meter.memory(witness), perf_counter()
        sessions: Sequence[ContainerBranch]
        if kind == 0:
            root = branches.open()
            built = [root.run(build)] * sizes.branches
            sessions = root.fork(sizes.branches)
        else:
            sessions = [branches.open() for _ in range(sizes.branches)]
            built = []
        for number, session in enumerate(sessions):
            progress(title, 1 + kind * sizes.branches + number, total)
            if kind:
                built.append(session.run(build))
            result = built[number]
            seen[kind].append((result.exit_code, result.output))
            seen[kind] += _work(session, number, sizes)
        seconds = perf_counter() - begin
        charged = meter.memory(witness) - memory + (0 if kind else meter.size(root))
        rooms.append(Room(seconds, meter.disk() - disk, charged, meter.shims(sessions)))
        seen[kind] += map(_probed, sessions)
        for session in sessions:
            session.prune()
        if kind == 0:
            root.prune()
    differ = sum(a != b for a, b in zip(*seen, strict=True))
    failed = any(code != 0 for code, _ in seen[0][:1])
    if differ or failed:
        return ShellComparison(sizes, len(seen[0]), differ + failed)
    return ShellComparison(sizes, len(seen[0]), 0, forks, *rooms)
