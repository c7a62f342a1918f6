"""Tasks and predictions of SWE-bench, read as swebench 5.x reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from branchrt_gym.errors import BranchRTError
from branchrt_gym.evaluation.docker.grading import END, EXIT_CODE, Expected, Grader

__all__ = [
    "Predictions",
    "SweBenchFileError",
    "SweBenchTask",
    "read_predictions",
    "read_tasks",
]

FIELDS = ("instance_id", "image", "repo", "version", "log_parser", "eval_type", "eval_script")
TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
HEAD = ("#!/bin/bash", "set -uxo pipefail")
CODE = "SWEBENCH_TEST_EXIT_CODE"


class SweBenchFileError(BranchRTError, ValueError):
    """A file of tasks or predictions is damaged or lacks what a run needs."""


@dataclass(frozen=True)
class SweBenchTask:
    """An instance: where it runs, and what it is graded by.

    Attributes:
        expected: The tests and the log's parser.
        image: The container image.
        eval_script: What is run, with the tests' own exit code written behind the end marker.
    """

    expected: Expected
    image: str
    eval_script: str

    @property
    def instance_id(self) -> str:
        """The instance."""
        return self.expected.instance_id

    @property
    def digest(self) -> str:
        """What a verdict depends on, the image's content apart."""
        return sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True)
class Predictions:
    """A candidate: one model's patches.

    Attributes:
        model: Its name, `model_name_or_path`.
        patches: Of each instance that it has a prediction of; empty where it made none.
    """

    model: str
    patches: Mapping[str, str]


def read_tasks(path: Path, grader: Grader) -> list[SweBenchTask]:
    """Reads tasks from a .jsonl, a row a line, or a .json, a list of rows.

    Args:
        path: The file.
        grader: Who will grade; a parser that it does not know is an error here.

    Raises:
        SweBenchFileError: Names the row and the field.
    """
    tasks = []
    for place, row in enumerate(_rows(path, "tasks")):
        where = f"`{path}`, row {place} ({row.get('instance_id', 'no instance_id')})"
        missing = [name for name in (*FIELDS, *TESTS) if name not in row]
        if missing:
            raise SweBenchFileError(
                f"{where} has no {', '.join(missing)}; expected a row of swebench 5.x, with "
                f"{', '.join((*FIELDS, *TESTS))}"
            )
        tasks.append(_task(row, where, grader))
    _once(path, [task.instance_id for task in tasks])
    if not tasks:
        raise SweBenchFileError(f"`{path}` has no tasks")
    return tasks


def _task(row: Mapping[str, Any], where: str, grader: Grader) -> SweBenchTask:
    texts = {name: row[name] for name in FIELDS if name != "version"}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise SweBenchFileError(f"{where}: `{name}` is {text!r}; expected a text")
    if "/" in row["instance_id"] or row["instance_id"] in ("", ".", ".."):
        raise SweBenchFileError(
            f"{where}: `instance_id` is {row['instance_id']!r}; expected a name for a folder"
        )
    if row["eval_type"] not in ("pass_and_fail", "fail_only"):
        raise SweBenchFileError(
            f"{where}: `eval_type` is {row['eval_type']!r}; expected pass_and_fail or fail_only"
        )
    if row["log_parser"] not in grader.parsers:
        raise SweBenchFileError(
            f"{where}: `log_parser` is {row['log_parser']!r}, which {grader.name} does not know; "
            "install the swebench package, which has it, or correct the row"
        )
    if row.get("image_assets") not in (None, "", "{}", {}):
        raise SweBenchFileError(
            f"{where}: `image_assets` are files to be fetched from elsewhere, which is not done; "
            "expected a task that is complete in its image and patch"
        )
    fails, passes = (_names(row[name], f"{where}: `{name}`") for name in TESTS)
    fail_only = row["eval_type"] == "fail_only"
    expected = Expected(row["instance_id"], fails, passes, row["log_parser"], fail_only)
    return SweBenchTask(expected, row["image"], _script(row["eval_script"]))


def _names(value: object, where: str) -> tuple[str, ...]:
    names = _json(value, where) if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SweBenchFileError(f"{where} is {value!r}; expected a list of tests, or JSON of one")
    return tuple(names)


def _script(text: str) -> str:
    lines = [line for line in text.strip().split("\n") if line not in HEAD]
    for place, line in enumerate(lines):
        if END in line:
            # Of the tests, since what comes behind them puts files back and succeeds.
            lines[place : place + 1] = [f"{CODE}=$?", line, f'echo "{EXIT_CODE}: ${CODE}"']
            break
    return "\n".join((*HEAD, *lines)) + "\n"


def read_predictions(path: Path) -> Predictions:
    """Reads one model's predictions: a .jsonl, or a .json with a list or an object of them.

    Raises:
        SweBenchFileError: If a prediction lacks its instance, or several models share the file.
    """
    patches: dict[str, str] = {}
    models = set()
    for place, row in enumerate(_rows(path, "predictions")):
        where = f"`{path}`, prediction {place}"
        name, patch = row.get("instance_id"), row.get("model_patch")
        model = row.get("model_name_or_path") or path.stem
        if not isinstance(name, str):
            raise SweBenchFileError(f"{where} has no `instance_id`")
        if not isinstance(patch, str | None) or not isinstance(model, str):
            raise SweBenchFileError(
                f"{where} ({name}): `model_patch` and `model_name_or_path` must be texts"
            )
        models.add(model)
        patches[name] = patch or ""
    if len(models) != 1:
        raise SweBenchFileError(
            f"`{path}` has predictions of {len(models)} models ({', '.join(sorted(models))}); "
            "expected those of one, since reports are kept under its name"
        )
    model = models.pop()
    if model.replace("/", "__") in (".", ".."):
        raise SweBenchFileError(f"`{path}`: the model is {model!r}; expected a name for a folder")
    return Predictions(model, patches)


def _rows(path: Path, kind: str) -> Iterator[Mapping[str, Any]]:
    if path.suffix not in (".json", ".jsonl"):
        raise SweBenchFileError(f"`{path}`: expected {kind} in a .json or a .jsonl")
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        rows = [_json(line, f"`{path}`") for line in text.split("\n") if line.strip()]
    else:
        rows = _json(text, f"`{path}`")
        if isinstance(rows, dict) and kind == "predictions":
            rows = list(rows.values())
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SweBenchFileError(f"`{path}`: expected {kind} as objects")
    yield from rows


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SweBenchFileError(f"{where} is no JSON: {error}") from error


def _once(path: Path, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SweBenchFileError(f"`{path}` has {twice[0]} twice; expected each instance once")
