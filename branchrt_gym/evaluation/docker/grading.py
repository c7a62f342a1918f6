"""The grading contract of swebench 5.x: from a log to `report.json`'s entry of an instance.

The code of the `swebench` package grades where it can be imported; else what is here, which reads
the logs of Python's test runners and says the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from branchrt_gym.evaluation.docker.log_parsers import (
    ERROR,
    FAILED,
    LOG_PARSERS,
    PASSED,
    SKIPPED,
    XFAIL,
)

__all__ = [
    "APPLY_FAILED",
    "APPLY_PASSED",
    "END",
    "EXIT_CODE",
    "START",
    "Expected",
    "Grader",
    "classify",
    "find_grader",
]

START: Final = ">>>>> Start Test Output"
END: Final = ">>>>> End Test Output"
EXIT_CODE: Final = ">>>>> Test Exit Code"
APPLY_FAILED: Final = ">>>>> Patch Apply Failed"
APPLY_PASSED: Final = ">>>>> Applied Patch"
BROKEN = (APPLY_FAILED, ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
NO_ENTRY = {
    "patch_is_None": False,
    "patch_exists": True,
    "patch_successfully_applied": False,
    "resolved": False,
    "infra_failure": False,
}

# Signs that a suite ran, though its log names no test; a count of none is no sign.
RAN = re.compile(
    "|".join(
        (
            r"Executed [1-9]\d* of \d+",
            r"TOTAL: [1-9]\d* (SUCCESS|FAILED)",
            r"[1-9]\d* passing",
            r"Tests:\s+[1-9]\d*",
            r"Test Suites:\s+(\d+ \w+, )*[1-9]\d* total",
            r"^# tests [1-9]\d*",
            r"[1-9]\d* specs?, \d+ failures?",
            r"': ok$",
        )
    ),
    re.MULTILINE,
)

# What a log says where the machine may be to blame; the first that is found counts. Advice only.
ENVIRONMENT, AMBIGUOUS = "environment", "ambiguous"
SIGNATURES = tuple(
    (reason, tier, re.compile("|".join(texts), re.MULTILINE))
    for reason, tier, texts in (
        (
            "browser_launch_failed",
            ENVIRONMENT,
            ("Failed to launch", "Failed to connect to the bus"),
        ),
        (
            "display_unavailable",
            ENVIRONMENT,
            ("cannot open display", "Missing X server", "unable to open X display"),
        ),
        (
            "out_of_memory",
            ENVIRONMENT,
            ("Cannot allocate memory", "OutOfMemoryError", "^Killed$"),
        ),
        (
            "container_unavailable",
            ENVIRONMENT,
            ("Error response from daemon", "Cannot connect to the Docker daemon"),
        ),
        (
            "network_unreachable",
            ENVIRONMENT,
            ("Could not resolve host", "Temporary failure in name resolution"),
        ),
        (
            "missing_module",
            AMBIGUOUS,
            ("Cannot find module", "MODULE_NOT_FOUND", "ModuleNotFoundError"),
        ),
        ("no_tests_collected", AMBIGUOUS, ("no tests ran", "collected 0 items")),
        ("tests_timed_out", AMBIGUOUS, (r"Timeout error: \d+ seconds exceeded",)),
    )
)


@dataclass(frozen=True)
class Expected:
    """What an instance is graded by.

    Attributes:
        instance_id: The instance.
        fail_to_pass: Tests that the bug fails. All of them must pass.
        pass_to_pass: Tests that pass without the fix. None of them may fail; skipped is no failure.
        log_parser: How its log is read, by name.
        fail_only: The log names only failures, so a test that is not in it passed.
    """

    instance_id: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    log_parser: str
    fail_only: bool = False


def classify(text: str) -> tuple[str, str] | None:
    """Returns why a log may say more of the machine than of the patch, and how surely; or None."""
    for reason, tier, pattern in SIGNATURES:
        if pattern.search(text):
            return reason, tier
    return None


@dataclass(frozen=True)
class Grader:
    """Grades the log of a patch that applied.

    Attributes:
        name: Whose code it is; part of the verifier's version.
        parsers: The names in `log_parser` that it knows.
        grade: `grade(expected, log)` returns the entry of `report.json`; `log` is the path of
            `test_output.txt`.
    """

    name: str
    parsers: Collection[str]
    grade: Callable[[Expected, Path], dict[str, Any]]


def find_grader(wanted: str = "auto") -> Grader:
    """Returns the code that grades.

    Args:
        wanted: "swebench", "own", or "auto": the first of these that there is.

    Raises:
        ValueError: If it is none of these, or the package is wanted and cannot be imported.
    """
    if wanted not in ("auto", "swebench", "own"):
        raise ValueError(f'`grading` is {wanted!r}; expected "auto", "swebench" or "own"')
    if wanted == "own":
        return OWN
    try:
        return _package()
    except Exception as error:  # whatever one of its many dependencies raises
        if wanted == "auto":
            return OWN
        raise ValueError(
            f"`grading` is 'swebench', which cannot be imported: {error}; install swebench>=5, or "
            "use 'own'"
        ) from error


def _package() -> Grader:
    from importlib import import_module
    from importlib.metadata import version

    grading = import_module("swebench.harness.grading")
    registry = import_module("swebench.harness.log_parsers").PARSER_REGISTRY
    spec = import_module("swebench.types").TestSpec

    def grade(expected: Expected, log: Path) -> dict[str, Any]:
        task = spec(
            instance_id=expected.instance_id,
            image="",
            eval_script_list=[],
            repo="",
            version="",
            FAIL_TO_PASS=list(expected.fail_to_pass),
            PASS_TO_PASS=list(expected.pass_to_pass),
            log_parser=expected.log_parser,
            eval_type="fail_only" if expected.fail_only else "pass_and_fail",
        )
        prediction = {"instance_id": expected.instance_id, "model_patch": "x"}
        report = grading.get_eval_report(task, prediction, str(log), True)
        return dict(report[expected.instance_id])

    return Grader(f"swebench {version('swebench')}", registry.keys(), grade)


def _grade(expected: Expected, log: Path) -> dict[str, Any]:
    text = log.read_text("utf-8")
    statuses = _statuses(text, expected.log_parser)
    if statuses is None:
        found = classify(text)
        advice = {} if found is None else {"infra_failure_reason": found[0]}
        return NO_ENTRY | {"infra_failure": bool(found and found[1] == ENVIRONMENT)} | advice
    lists = {
        "FAIL_TO_PASS": (expected.fail_to_pass, (PASSED, XFAIL)),
        "PASS_TO_PASS": (expected.pass_to_pass, (PASSED, XFAIL, SKIPPED)),
    }
    tests = {
        name: _split(cases, statuses, good, expected.fail_only)
        for name, (cases, good) in lists.items()
    }
    resolved = not any(each["failure"] for each in tests.values())
    nothing: dict[str, list[str]] = {"success": [], "failure": []}
    return NO_ENTRY | {
        "patch_successfully_applied": True,
        "resolved": resolved,
        "tests_status": tests | {"FAIL_TO_FAIL": nothing, "PASS_TO_FAIL": nothing},
    }


OWN = Grader("branchrt 1", LOG_PARSERS.keys(), _grade)


def _statuses(text: str, log_parser: str) -> dict[str, str] | None:
    """Returns each test's status; None where the log does not tell of a run."""
    if any(mark in text for mark in BROKEN) or START not in text or END not in text:
        return None
    parse = LOG_PARSERS[log_parser]
    # Runners that write beside the markers are read from the whole log.
    statuses = parse(text.split(START)[1].split(END)[0]) or parse(text)
    if not statuses and not RAN.search(text):
        return None
    code = re.search(re.escape(EXIT_CODE) + r":\s*(-?\d+)", text)
    # Nobody failed, they say, but the runner: then the log is not the runner's.
    if statuses and code and int(code[1]) and not {FAILED, ERROR} & set(statuses.values()):
        return None
    return statuses


def _split(
    cases: Iterable[str], statuses: Mapping[str, str], good: Collection[str], fail_only: bool
) -> dict[str, list[str]]:
    """Parts tests into those that are as they should be and the rest."""
    found: dict[str, list[str]] = {"success": [], "failure": []}
    for case in cases:
        if fail_only:
            succeeded, failed = statuses.get(case) != FAILED, True
        else:
            status = _status(case, statuses)
            succeeded = status in good
            failed = status in (None, FAILED, ERROR, SKIPPED)
        if succeeded:
            found["success"].append(case)
        elif failed:
            found["failure"].append(case)
    return found


def _status(case: str, statuses: Mapping[str, str]) -> str | None:
    """Returns a test's status; rows have names that break off within the parameters."""
    if case in statuses or case.count("[") <= case.count("]"):
        return statuses.get(case)
    same = [status for name, status in statuses.items() if name.startswith(case)]
    return same[0] if len({each in (PASSED, XFAIL) for each in same}) == 1 else None
