"""The files of public SWE-bench submissions, and what an attempt on record says.

A submission's folder is `evaluation/<split>/<submission>`: `per_instance_details.json` has
`{instance: {resolved, cost, api_calls}}`, `results.json` lists of instance ids (of those that
failed, none), `metadata.json` the leaderboard's row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

__all__ = [
    "COST_LIMIT",
    "RESOLVED",
    "STEP_LIMIT",
    "Outcome",
    "Submission",
    "SweBenchFilesError",
    "date_of",
    "listed",
    "read_object",
    "read_submission",
    "short",
    "submission_folders",
]

COST_LIMIT, STEP_LIMIT = 3.0, 250  # of mini-swe-agent's benchmark configuration, v1.0 to v2.x
DETAILS, METADATA = "per_instance_details.json", "metadata.json"
RESULTS = ("results.json", "results/results.json")
RESOLVED = ("resolved", "resolved_ids")  # in results.json, and in a harness's own report
EMPTY = ("no_generation", "empty_patch_ids")
ALL = ("submitted_ids",)  # where there is such a list, no instance is missing
NEAR = 1.0  # points that a published share may be off: some leave an instance out
DATE = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")


class SweBenchFilesError(ValueError):
    """Files of a SWE-bench run are missing, damaged, or contradict each other."""


@dataclass(frozen=True)
class Outcome:
    """One attempt, as it is on record.

    Attributes:
        resolved: The harness's verdict; None where there is none yet.
        cost: Dollars. calls: Calls of the model. Both 0 where they are not on record.
        empty: Whether the patch is empty; None where it is not known.
        exit_status: Why the agent ended, such as "Submitted"; None where it is not known.
        patch: The patch, or None where only its outcome is on record.
    """

    resolved: bool | None = None
    cost: float = 0.0
    calls: int = 0
    empty: bool | None = None
    exit_status: str | None = None
    patch: str | None = None

    @property
    def limit_hit(self) -> bool:
        """Whether a limit ended the attempt, by its exit status, else by its cost and calls."""
        if self.exit_status is not None:
            return self.exit_status in ("LimitsExceeded", "TimeExceeded")
        return self.cost >= COST_LIMIT or self.calls >= STEP_LIMIT

    @property
    def digest(self) -> str:
        """What is verified, as a digest: of the patch, or "" where it is not on record."""
        return "" if self.patch is None else sha256(self.patch.encode()).hexdigest()


@dataclass(frozen=True)
class Submission:
    """A candidate of every instance it has an outcome of.

    Attributes:
        name: Of its folder.
        date: As 2026-02-17, of the metadata or the name; "" where neither has one.
        outcomes: By instance id.
        rest: The outcome of all other instances, where only some are listed; else None.
    """

    name: str
    date: str
    outcomes: Mapping[str, Outcome]
    rest: Outcome | None = None

    @property
    def resolved(self) -> int:
        """How many instances it resolved."""
        return sum(bool(outcome.resolved) for outcome in self.outcomes.values())


def submission_folders(directory: Path, split: str | None = None) -> list[Path]:
    """Returns the submissions' folders of one split, by name.

    Args:
        directory: A checkout, that has `evaluation/<split>/<submission>`; or a split's folder.
        split: Which; None for the only one.
    """
    if not directory.is_dir():
        raise SweBenchFilesError(
            f"`{directory}` is no folder; expected one with evaluation/<split>/<submission>"
        )
    splits = [each for each in sorted(directory.glob("evaluation/*")) if each.is_dir()]
    if not splits and split is None:
        splits = [directory]
    found = [each for each in splits if split in (None, each.name)]
    names = ", ".join(each.name for each in splits)
    if len(found) != 1:
        raise SweBenchFilesError(
            f"`split` is {split!r}, and `{directory}` has {names or 'none'}; expected one of them"
        )
    folders = [each for each in sorted(found[0].iterdir()) if each.is_dir()]
    if not any((each / name).is_file() for each in folders for name in (DETAILS, *RESULTS)):
        raise SweBenchFilesError(
            f"`{found[0]}` has no submission with a {DETAILS} or {RESULTS[0]}; expected the layout "
            "evaluation/<split>/<submission>/, as in the SWE-bench/experiments repository"
        )
    return folders


def read_submission(folder: Path) -> Submission:
    """Reads a submission's folder of the public layout.

    Raises:
        SweBenchFilesError: If there is no outcome per instance, a file is damaged, or the outcomes
            contradict the share that the metadata states, by more than a point.
    """
    details = read_object(folder / DETAILS)
    results = next((each for name in RESULTS if (each := read_object(folder / name))), None)
    if details is None and results is None:
        raise SweBenchFilesError(
            f"`{folder.name}` has neither {DETAILS} nor {RESULTS[0]}: its outcomes per instance "
            "were not published; leave it out"
        )
    metadata = read_object(folder / METADATA) or {}
    resolved, empty = (listed(results or {}, names) for names in (RESOLVED, EMPTY))
    if details is None:
        ids = sorted({each for ids in (results or {}).values() if _is_ids(ids) for each in ids})
        if resolved is None:
            raise SweBenchFilesError(
                f"`{folder / RESULTS[0]}` has no list {' or '.join(map(repr, RESOLVED))}; expected "
                "instance ids"
            )
        rows = {name: Outcome(name in resolved) for name in ids}
    else:
        rows = {name: _outcome(folder, name, row) for name, row in sorted(details.items())}
        solved = {name for name, row in rows.items() if row.resolved}
        if resolved is not None and resolved != solved:
            name = min(resolved ^ solved)
            raise SweBenchFilesError(
                f"`{folder.name}`: {RESULTS[0]} and {DETAILS} differ in {len(resolved ^ solved)} "
                f"instances, such as {name}; expected the same verdicts: take both from one commit"
            )
    if empty is not None:
        rows = {name: replace(row, empty=name in empty) for name, row in rows.items()}
    listed_all = details is not None or listed(results or {}, ALL) is not None
    rest = None if listed_all else Outcome(False, empty=None if empty is None else False)
    found = Submission(folder.name, date_of(folder.name, metadata), rows, rest)
    if listed_all:
        _check_share(found, metadata.get("resolved"))
    return found


def read_object(path: Path) -> dict[str, Any] | None:
    """Returns the object in a file, None where there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise SweBenchFilesError(f"`{path}` is no UTF-8 text: {error}") from error
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        hint = " (a git LFS pointer: run git lfs pull)" if text.startswith("version https") else ""
        raise SweBenchFilesError(f"`{path}` is no JSON{hint}: {error}") from error
    if not isinstance(found, dict):
        raise SweBenchFilesError(f"`{path}` has a {type(found).__name__}; expected an object")
    return found


def _outcome(folder: Path, name: str, row: Any) -> Outcome:
    resolved = row.get("resolved") if isinstance(row, dict) else None
    if not isinstance(resolved, bool):
        raise SweBenchFilesError(
            f"`{folder / DETAILS}` has {short(row)} for {name}; expected an object with "
            "`resolved` true or false, and `cost` and `api_calls`"
        )
    cost, calls = row.get("cost") or 0.0, row.get("api_calls") or 0
    if not all(
        isinstance(each, int | float) and 0 <= each < float("inf") for each in (cost, calls)
    ):
        raise SweBenchFilesError(
            f"`{folder / DETAILS}` has {short(row)} for {name}; expected `cost` in dollars and "
            "`api_calls`, 0 or more, or null"
        )
    return Outcome(resolved, float(cost), int(calls))


def _is_ids(ids: object) -> bool:
    return isinstance(ids, list) and all(isinstance(each, str) for each in ids)


def listed(results: dict[str, Any], names: tuple[str, ...]) -> set[str] | None:
    """Returns the instance ids under the first of these names; None where there is none."""
    return next((set(results[name]) for name in names if _is_ids(results.get(name))), None)


def date_of(name: str, metadata: dict[str, Any]) -> str:
    """Returns the metadata's date, else that which the name begins with, else ""."""
    found = DATE.match(str(metadata.get("date", ""))) or DATE.match(name)
    return "-".join(found.groups()) if found else ""


def _check_share(found: Submission, stated: Any) -> None:
    share = 100 * found.resolved / max(len(found.outcomes), 1)
    if isinstance(stated, int | float) and abs(share - stated) > NEAR:
        raise SweBenchFilesError(
            f"`{found.name}` has {found.resolved} of {len(found.outcomes)} instances resolved, "
            f"{share:.1f} %, but its {METADATA} says {stated:.1f} %: the outcomes are incomplete; "
            "leave it out"
        )


def short(value: object) -> str:
    """Shows a value within a line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
