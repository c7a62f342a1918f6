"""R2E-Gym's rows against an image of that shape, and against a plain reading of its reward rule."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_task import drain
from tasks import TASKS, diff

from branchrt_gym.evaluation import Attempt
from branchrt_gym.evaluation.docker.r2e import (
    R2ERowError,
    R2EVerifier,
    r2e_reward,
    r2e_statuses,
    r2e_task,
)

HIDDEN = """import pytest
from it import merge


def test_touching():
    assert merge([(1, 2), (2, 3)]) == [(1, 3)]


def test_overlap():
    assert merge([(1, 4), (2, 6)]) == [(1, 6)]


def test_known_to_fail():
    assert merge([(3, 1)]) == []


@pytest.fixture
def broken():
    raise RuntimeError("no")


def test_error(broken):
    pass


@pytest.mark.skip
def test_skipped():
    pass
"""
EXPECTED = {
    "test_touching": "PASSED",
    "test_overlap": "PASSED",
    "test_known_to_fail": "FAILED",
    "test_error": "ERROR",
}
# The shape of R2E-Gym's images: the repository with its own environment and run_tests.sh in
# /testbed, the tests in /r2e_tests.
SETUP = """
mkdir -p /testbed/.venv/bin
ln -s /usr/local/bin/python /testbed/.venv/bin/python
cd /testbed
git init -q
git add it.py
git -c user.name=base -c user.email=base commit -qm base
"""
RUN = ".venv/bin/python -W ignore -m pytest --no-header -rA -p no:cacheprovider r2e_tests\n"


def plain_reward(output, expected_json):
    """What R2E-Gym's runtime does with a log, step by step."""
    output = re.sub(r"\x1b\[[0-9;]*m|\r", "", output)
    statuses = {}
    if "short test summary info" in output:
        for line in output.split("short test summary info")[1].strip().split("\n"):
            parts = line.split("::")
            name = ".".join(parts[1:])
            for status in ("PASSED", "FAILED", "ERROR"):
                if status in line:
                    statuses[name if status == "PASSED" else name.split(" - ")[0]] = status
                    break
    expected = json.loads(expected_json)
    two = []
    for each in (statuses, expected):
        plain = {}
        for name, status in each.items():
            plain[re.sub(r"\x1b\[\d+m", "", name)] = status
        short = {}
        for name in sorted(plain):
            short[name.split(" - ")[0]] = plain[name]
        two.append(short)
    if len(two[0]) != len(two[1]):
        return 0.0
    for name, status in two[0].items():
        if name and (name not in two[1] or two[1][name] != status):
            return 0.0
    return 1.0


NAMES = st.sampled_from(["t", "T::t", "t - x", "\x1b[1mt\x1b[0m", "", "u", "u[a - b]", "FAILED"])
STATUSES = st.sampled_from(["PASSED", "FAILED", "ERROR", "SKIPPED"])
LINES = st.tuples(STATUSES, st.sampled_from([" a.py::", " ", " a.py", "\r ", "::"]), NAMES)


@st.composite
def logs(draw):
    lines = ["".join(line) for line in draw(st.lists(LINES, max_size=5))]
    marks = draw(st.integers(0, 2))
    for _ in range(marks):
        lines.insert(draw(st.integers(0, len(lines))), "=== short test summary info ===")
    return "\n".join(lines)


@settings(max_examples=1000, deadline=None)
@given(logs(), st.dictionaries(NAMES, STATUSES, max_size=3))
def test_the_reward_is_that_of_a_plain_reading(log, expected):
    assert r2e_reward(log, json.dumps(expected)) == plain_reward(log, json.dumps(expected))
    same = json.dumps(r2e_statuses(log))
    assert r2e_reward(log, same) == plain_reward(log, same)


def test_statuses_are_named_without_the_file():
    log = "x\n== short test summary info ==\nPASSED a.py::T::t\nFAILED a.py::u - why\nERROR a.py\n"
    assert r2e_statuses(log) == {"T.t": "PASSED", "u": "FAILED", "": "ERROR"}
    assert r2e_statuses("PASSED a.py::t") == {}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"docker_image": "i"}, "`expected_output_json` None"),
        ({"docker_image": "i", "expected_output_json": "["}, "cannot be read"),
        ({"docker_image": "i", "expected_output_json": "[]"}, "it is no object"),
        ({"docker_image": "swebench/i", "expected_output_json": "{}"}, "by other rules"),
    ],
)
def test_rows_that_are_none_of_theirs_are_refused(row, text):
    with pytest.raises(R2ERowError, match=text):
        r2e_task(row)


@pytest.fixture(scope="module")
def row(make_image):
    files = {
        "/testbed/it.py": TASKS[0].repository.bug,
        "/testbed/run_tests.sh": RUN,
        "/r2e_tests/__init__.py": "",
        "/r2e_tests/test_1.py": HIDDEN,
    }
    image = make_image("branchrt/r2e:1", SETUP, files)
    return {"docker_image": image, "expected_output_json": json.dumps(EXPECTED), "repo_name": "x"}


@pytest.mark.slow
def test_rows_are_graded_in_their_image(row, client):
    one = TASKS[0].repository

    def change(new):
        return diff("it.py", one.bug, new)

    fixed_all = one.fix.replace("merged = []", "merged = []\n    if (3, 1) in intervals: return []")
    candidates = {
        change(one.fix): True,
        "": False,  # its tests run all the same
        change(one.wrong): False,
        change(fixed_all): False,  # a test that is expected to fail passes
        diff("other.py", "a\n", "b\n"): False,  # does not apply
        change(one.fix) + diff("r2e_tests/test_1.py", None, "def test_x(): pass\n"): True,
        change(one.fix + "\nimport os\nos._exit(0)\n"): False,
        change(one.fix + "\nimport time\ntime.sleep(1e6)\n"): False,
    }
    seen = {}
    with R2EVerifier(
        [row],
        [list(candidates)],
        seconds=25.0,
        workers=2,
        client=client,
        observe=lambda attempt, outcome, verdict: seen.update({attempt: outcome}),
    ) as verifier:
        found = drain(verifier, [Attempt(0, place) for place in range(len(candidates))])
    for attempt, verdict in found.items():
        output = seen[attempt].output
        plain = plain_reward(output, row["expected_output_json"])
        wanted = list(candidates.values())[attempt.candidate]
        assert (verdict.passed, verdict.score, plain) == (wanted, wanted, wanted), output
    assert client.containers.list(all=True) == []
