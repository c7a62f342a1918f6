"""Which test had which status, read from a test runner's output, as swebench 5.x reads it.

The parsers of SWE-bench's Python repositories, by the names that its rows have in `log_parser`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

__all__ = ["ERROR", "FAILED", "LOG_PARSERS", "PASSED", "SKIPPED", "XFAIL"]

FAILED, PASSED, SKIPPED, ERROR, XFAIL = "FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL"
STATUSES = (FAILED, PASSED, SKIPPED, ERROR, XFAIL)
COUNT = re.compile(r"\[\d+\]")  # of skipped tests, where a test's name stands else
CONTROL = dict.fromkeys(range(1, 32))
BANNER = re.compile(r"_* (.*)\.py:(.*) _*")
DJANGO_OK = (" ... ok", " ... OK", " ...  OK")
DJANGO_WORDS = ((" ... FAIL", "FAIL:", FAILED), (" ... ERROR", "ERROR:", ERROR))
DJANGO_VERSION = "--version is equivalent to version"
DJANGO_APPLYING = "Applying sites.0002_alter_domain_unique...test_no_migrations"
DJANGO_LATE = [  # "ok" stands a line below the test, behind one of these
    re.compile(rf"^(.*?)\s\.\.\.\s{text}\nok$", re.MULTILINE)
    for text in (
        r"Testing against Django installed in (?:(?s:.*?)) silenced\)\.",
        r"Internal Server Error: /.*/",
        r"System check identified no issues \(0 silenced\)",
    )
]

Statuses = dict[str, str]


def _summary(log: str) -> Iterator[list[str]]:
    """Yields the words of the lines of pytest's summary: a status, a name, and more."""
    for line in log.split("\n"):
        if line.startswith(STATUSES):
            if line.startswith(FAILED):
                line = line.replace(" - ", " ")
            words = line.split()
            if len(words) > 1 and not _is_count(words):
                yield words


def _is_count(words: list[str]) -> bool:
    return words[0] == SKIPPED and COUNT.fullmatch(words[1]) is not None


def _pytest(log: str) -> Statuses:
    return {words[1]: words[0] for words in _summary(log)}


def _pytest_options(log: str) -> Statuses:
    """As pytest's, but of a path among the parameters only the last part."""
    return {_short(words[1]): words[0] for words in _summary(log)}


def _short(name: str) -> str:
    main, opened, rest = name.partition("[")
    option, closed, _ = rest.rpartition("]")
    if not opened or not closed:
        return name
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.rpartition("/")[2]
    return f"{main}[{option}]"


def _pytest_v2(log: str) -> Statuses:
    """Names may have spaces, lines colours; old versions have the status at the end."""
    found = {}
    for line in log.split("\n"):
        line = re.sub(r"\[(\d+)m", "", line).translate(CONTROL)
        if line.startswith(STATUSES):
            words = (line.split(" - ", 1)[0] if line.startswith(FAILED) else line).split()
            if len(words) > 1 and not _is_count(words):
                found[" ".join(words[1:])] = words[0]
        elif line.endswith(STATUSES):
            words = line.split()
            if len(words) > 1:
                found[" ".join(words[:-1])] = words[-1]
    return found


def _matplotlib(log: str) -> Statuses:
    return _pytest(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def _seaborn(log: str) -> Statuses:
    found = {}
    for line in log.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith(FAILED):
            found[words[1]] = FAILED
        elif f" {PASSED} " in line:
            if words[1] == PASSED:
                found[words[0]] = PASSED
        elif line.startswith(PASSED):
            found[words[1]] = PASSED
    return found


def _sympy(log: str) -> Statuses:
    found = {f"{file}.py:{name}": FAILED for file, name in BANNER.findall(log)}
    for line in log.split("\n"):
        line = line.strip()
        if line.startswith("test_"):
            for end, status in ((" E", ERROR), (" F", FAILED), (" ok", PASSED)):
                if line.endswith(end):
                    found[line.split()[0]] = status
    return found


def _django(log: str) -> Statuses:
    found: Statuses = {}
    last = None  # the test whose line goes on below
    for line in log.split("\n"):
        line = line.strip()
        if DJANGO_VERSION in line:
            found[DJANGO_VERSION] = PASSED
        if " ... " in line:
            last = line.split(" ... ")[0]
        for end in DJANGO_OK:
            if line.endswith(end):
                if line.startswith(DJANGO_APPLYING):
                    line = line.split("...", 1)[-1].strip()
                found[line.rsplit(end, 1)[0]] = PASSED
                break
        if " ... skipped" in line:
            found[line.split(" ... skipped")[0]] = SKIPPED
        for end, begin, status in DJANGO_WORDS:
            if line.endswith(end):
                found[line.split(end)[0]] = status
            if line.startswith(begin) and len(line.split()) > 1:
                found[line.split()[1]] = status
        if line.startswith("ok") and last is not None:
            found[last] = PASSED
    for pattern in DJANGO_LATE:
        for match in pattern.finditer(log):
            found[match.group(1)] = PASSED
    return found


LOG_PARSERS: dict[str, Callable[[str], Statuses]] = {
    "parse_log_pytest": _pytest,
    "parse_log_pytest_options": _pytest_options,
    "parse_log_pytest_v2": _pytest_v2,
    "parse_log_django": _django,
    "parse_log_matplotlib": _matplotlib,
    "parse_log_seaborn": _seaborn,
    "parse_log_sympy": _sympy,
    **{f"parse_log_{name}": _pytest for name in ("astroid", "flask", "marshmallow", "pvlib")},
    **{f"parse_log_{name}": _pytest for name in ("pyvista", "sqlfluff", "xarray")},
    **{f"parse_log_{name}": _pytest_options for name in ("pydicom", "requests", "pylint")},
    **{f"parse_log_{name}": _pytest_v2 for name in ("astropy", "scikit", "sphinx")},
}
