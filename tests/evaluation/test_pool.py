"""The process pool: limits that kill, crashes with their causes, and nothing left behind.

The functions are closures, so they are sent by value and no worker imports this file.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from branchrt_gym.errors import ClosedError
from branchrt_gym.evaluation.attempts import Attempt, Verifier
from branchrt_gym.evaluation.pool import PoolVerifier

SOON = 60.0  # seconds in which everything happens, by far

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs process groups")


def collect(verifier, count):
    """Polls until so many verdicts are there."""
    found = []
    end = time.monotonic() + SOON
    while len(found) < count and time.monotonic() < end:
        found += verifier.poll(1.0)
    assert len(found) == count
    return found


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pid):
    """Waits until a process has ended."""
    end = time.monotonic() + SOON
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def read_when_there(path):
    """Waits for a number in a file, which was renamed into place."""
    end = time.monotonic() + SOON
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return int(path.read_text())


def behave():
    """Returns a function that does what its task says."""

    def function(task, candidate):
        import os
        import signal
        import sys
        from collections import namedtuple

        match task:
            case "passes":
                return candidate == "good"
            case "number":
                return 0.25
            case "mapping":
                return {"passed": True, "score": 0.5, "cost": 2.0, "seconds": 9.0}
            case "verdict":  # `Verdict`, without what its import costs
                fields = "passed score cost seconds infrastructure"
                return namedtuple("Verdict", fields)(True, 0.5, 2.0, 9.0, None)
            case "cause":
                return {"infrastructure": "no disk"}
            case "raises":
                raise KeyError("no such thing")
            case "exits":
                sys.exit(4)
            case "dies":
                print("disk on fire", file=sys.stderr, flush=True)
                os._exit(3)
            case "killed":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hangs":
                while True:
                    pass
            case "object":
                return object()
            case "none":
                return None
            case "long":
                return "x" * 10**7
            case "huge":
                return 10**5000
            case "nan":
                return float("nan")
            case "forks":
                os.fork()
                return True
            case "orphan":
                if os.fork() == 0:
                    import time

                    time.sleep(1000)
                os._exit(7)
            case "floods":
                for _ in range(3000):
                    print("x" * 1000)
                    print("y" * 1000, file=sys.stderr)
                return True
            case "closes":
                os.closerange(3, 256)
                return True
            case "scribbles":
                for descriptor in range(3, 64):
                    try:
                        os.write(descriptor, b"\xff{]\n")
                    except OSError:
                        pass
                return True

    return function


INFRASTRUCTURE = {
    "raises": "KeyError: 'no such thing' (function, line ",
    "exits": "SystemExit: 4",
    "dies": "the worker ended with exit code 3; it last wrote: disk on fire",
    "killed": "the worker was ended by SIGSEGV",
    "hangs": "no verdict after 1.0 s: the worker was killed",
    "object": "garbage: the answer is of type object",
    "none": "garbage: the answer is missing or None",
    "long": "garbage: the answer has 10,000,002 characters",
    "huge": "garbage: the answer is of type int",
    "cause": "no disk",
    "nan": "garbage: the answer is nan",
    "orphan": "the worker ended with exit code 7",
    "closes": "the worker ",
    "scribbles": "garbage: the worker wrote something else",
}
VERDICTS = {
    "passes": (True, 1.0, 0.0),
    "number": (False, 0.25, 0.0),
    "mapping": (True, 0.5, 2.0),
    "verdict": (True, 0.5, 2.0),
    "forks": (True, 1.0, 0.0),
    "floods": (True, 1.0, 0.0),
}


def test_whatever_a_function_does_there_is_one_verdict_each():
    tasks = [task for pair in zip(INFRASTRUCTURE, ["passes"] * 99, strict=False) for task in pair]
    tasks += VERDICTS
    attempts = [Attempt(root, 0, "d") for root in range(len(tasks))]
    with PoolVerifier(
        behave(), tasks=tasks, candidates=["good"], workers=2, timeout=1.0, capacity=99
    ) as verifier:
        assert isinstance(verifier, Verifier)
        verifier.submit(attempts)
        found = dict(collect(verifier, len(tasks)))
        assert verifier.poll(None) == []
    assert set(found) == set(attempts)
    for attempt, verdict in found.items():
        task = tasks[attempt.root]
        if task in INFRASTRUCTURE:
            assert verdict.infrastructure is not None, task
            assert verdict.infrastructure.startswith(INFRASTRUCTURE[task]), task
            assert len(verdict.infrastructure) <= 2000 and not verdict.passed
        else:
            assert verdict.infrastructure is None, task
            assert (verdict.passed, verdict.score, verdict.cost) == VERDICTS[task]
            stated = task in ("mapping", "verdict")
            assert verdict.seconds == 9.0 if stated else 0 < verdict.seconds < SOON


def test_a_limit_kills_the_worker_and_all_that_it_started(tmp_path):
    def function(task, candidate):
        import os
        import subprocess
        import time

        child = subprocess.Popen(["sleep", "1000"])
        for name, pid in (("worker", os.getpid()), ("child", child.pid)):
            (tmp_path / "part").write_text(str(pid))
            (tmp_path / "part").rename(tmp_path / name)
        time.sleep(1000)

    with PoolVerifier(function, workers=1, timeout=2.0) as verifier:
        verifier.submit([Attempt(0, 0)])
        [(_, verdict)] = collect(verifier, 1)
        assert verdict.infrastructure.startswith("no verdict after 2.0 s")
        for name in ("worker", "child"):
            assert gone(read_when_there(tmp_path / name))


def test_a_verdict_in_time_counts_however_late_it_is_read():
    with PoolVerifier(lambda *_: True, workers=1, timeout=0.5) as verifier:
        verifier.submit([Attempt(0, 0)])
        time.sleep(1.0)
        [(_, verdict)] = collect(verifier, 1)
        assert verdict.passed and verdict.infrastructure is None


def test_workers_are_kept_and_state_with_them():
    def counting():
        seen = []

        def function(task, candidate):
            seen.append(task)
            return len(seen)

        return function

    with PoolVerifier(counting(), workers=1, capacity=20) as verifier:
        verifier.submit([Attempt(root, 0) for root in range(20)])
        found = collect(verifier, 20)
    assert [verdict.score for _, verdict in found] == list(range(1, 21))
    assert [attempt.root for attempt, _ in found] == list(range(20))


def test_workers_work_at_once(tmp_path):
    def function(task, candidate):
        import time

        (tmp_path / f"{task}").touch()
        while not (tmp_path / f"{1 - task}").exists():  # only another worker can make it
            time.sleep(0.01)
        return True

    with PoolVerifier(function, workers=2, timeout=SOON) as verifier:
        assert verifier.capacity == 4
        verifier.submit([Attempt(0, 0), Attempt(1, 0)])
        assert all(verdict.passed for _, verdict in collect(verifier, 2))


@pytest.mark.parametrize("kill", [True, False])
def test_cancelling(tmp_path, kill):
    def function(task, candidate):
        import os
        import time

        if task == 0:
            (tmp_path / "part").write_text(str(os.getpid()))
            (tmp_path / "part").rename(tmp_path / "worker")
            while not (tmp_path / "go").exists():
                time.sleep(0.01)
        return True

    with PoolVerifier(function, workers=1, capacity=4, kill_cancelled=kill) as verifier:
        verifier.submit([Attempt(root, 0) for root in range(4)])
        worker = read_when_there(tmp_path / "worker")
        verifier.cancel([Attempt(0, 0), Attempt(2, 0)])
        verifier.submit([Attempt(4, 0)])
        assert alive(worker) is not kill
        (tmp_path / "go").touch()
        found = [attempt.root for attempt, _ in collect(verifier, 3 if kill else 4)]
    assert found == ([] if kill else [0]) + [1, 3, 4]


def test_the_queue_is_bounded_also_by_what_was_not_polled():
    with PoolVerifier(lambda *_: True, workers=1, capacity=2) as verifier:
        verifier.submit([Attempt(0, 0)])
        with pytest.raises(ValueError, match="`attempts` has 2; expected at most 1"):
            verifier.submit([Attempt(1, 0), Attempt(2, 0)])
        verifier.submit([Attempt(1, 0)])
        assert len(collect(verifier, 2)) == 2
        verifier.submit([Attempt(1, 1), Attempt(2, 1)])
        assert len(collect(verifier, 2)) == 2


def test_polling_ends_in_time():
    def function(task, candidate):
        import time

        time.sleep(1000)

    with PoolVerifier(function, workers=1, timeout=None) as verifier:
        verifier.submit([Attempt(0, 0)])
        assert verifier.poll(0) == []
        assert verifier.poll(0.05) == []


def test_nothing_is_left_after_an_exception(tmp_path):
    def function(task, candidate):
        import os
        import time

        (tmp_path / "part").write_text(str(os.getpid()))
        (tmp_path / "part").rename(tmp_path / "worker")
        time.sleep(1000)

    open_before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), PoolVerifier(function, workers=1) as verifier:
        verifier.submit([Attempt(0, 0)])
        worker = read_when_there(tmp_path / "worker")
        raise KeyError
    assert gone(worker)
    assert set(os.listdir("/proc/self/fd")) <= open_before
    verifier.close()
    assert verifier.poll(None) == []
    verifier.cancel([Attempt(0, 0)])
    with pytest.raises(ClosedError, match="after `close`"):
        verifier.submit([Attempt(0, 0)])


SCRIPT = """
import os, pathlib, signal, sys
from branchrt_gym.evaluation.attempts import Attempt
from branchrt_gym.evaluation.pool import PoolVerifier

GOOD = {"good"}

class Task:
    def __init__(self, name):
        self.name = name

def judge(task, candidate):
    import time
    if task.name == "waits":
        part = pathlib.Path(sys.argv[1] + ".part")
        part.write_text(str(os.getpid()))
        part.rename(sys.argv[1])
        time.sleep(1000)
    return candidate in GOOD

verifier = PoolVerifier(judge, tasks=[Task("a"), Task("waits")], candidates=["good", "bad"])
verifier.submit([Attempt(0, 0), Attempt(0, 1)])
found = []
while len(found) < 2:
    found += verifier.poll(60)
print(sorted(verdict.passed for _, verdict in found), flush=True)
verifier.submit([Attempt(1, 0)])
while not os.path.exists(sys.argv[1]):
    verifier.poll(0.05)
how = sys.argv[2]
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "raises":
    raise KeyError
elif how == "forks" and os.fork() == 0:
    sys.exit()  # ends with the finalizers, of which this one is not its own
if how == "forks":
    os.wait()
    assert os.path.exists(f"/proc/{verifier._workers[0].pid}")
"""


@pytest.mark.parametrize("how", ["raises", "killed", "forks"])
def test_a_script_needs_no_guard_and_its_workers_end_with_it(tmp_path, how):
    script, pid = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(SCRIPT.replace("sys.argv[1]", repr(str(pid))))
    done = subprocess.run(
        [sys.executable, "-P", str(script), "-", how], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[False, True]\n", done.stderr
    assert done.returncode == {"raises": 1, "killed": -signal.SIGKILL}.get(how, 0), done.stderr
    assert gone(read_when_there(pid))


def test_a_function_that_cannot_be_sent_or_loaded_is_refused():
    class Stubborn:
        def __reduce__(self):
            raise TypeError("I stay")

    stubborn = Stubborn()
    with pytest.raises(ValueError, match="cannot be pickled: I stay"):
        PoolVerifier(lambda *_: stubborn)

    def fail():
        raise RuntimeError("no licence")

    class Costly:
        def __reduce__(self):
            return fail, ()

    with pytest.raises(ValueError, match="cannot be loaded in a process: RuntimeError: no licence"):
        PoolVerifier(lambda *_: True, tasks=Costly())

    def die():
        import os

        os._exit(9)

    class Deadly:
        def __reduce__(self):
            return die, ()

    with pytest.raises(ValueError, match="cannot be loaded in a process: the worker ended with"):
        PoolVerifier(lambda *_: True, candidates=Deadly())


def test_a_start_without_end_is_given_up():
    def wait():
        import time

        time.sleep(1000)

    class Slow:
        def __reduce__(self):
            return wait, ()

    with pytest.raises(ValueError, match=r"in a process: not ready after 0\.5 s"):
        PoolVerifier(lambda *_: True, tasks=Slow(), start_timeout=0.5)


def test_a_worker_that_cannot_be_replaced_fails_an_attempt_each(tmp_path):
    def load():
        import os

        if os.path.exists(str(tmp_path / "broken")):
            raise RuntimeError("gone")
        return ["task"] * 3

    class Tasks:
        def __reduce__(self):
            return load, ()

    def function(task, candidate):
        import os

        (tmp_path / "broken").touch()
        os._exit(5)

    with PoolVerifier(function, tasks=Tasks(), workers=1, capacity=3) as verifier:
        verifier.submit([Attempt(root, 0) for root in range(3)])
        causes = [verdict.infrastructure for _, verdict in collect(verifier, 3)]
    assert causes[0].startswith("the worker ended with exit code 5")
    assert all(cause.startswith("RuntimeError: gone") for cause in causes[1:])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"workers": 0}, "`workers` is 0; expected 1"),
        ({"workers": 4, "capacity": 3}, "`capacity` is 3; expected 4 or more"),
        ({"timeout": -1.0}, "`timeout` is -1.0; expected seconds above 0"),
    ],
)
def test_mistakes_are_named(given, says):
    with pytest.raises(ValueError, match=says):
        PoolVerifier(lambda *_: True, **given)
