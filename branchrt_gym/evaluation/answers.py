"""What a verifier's answer must be, and what verifiers share."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from branchrt_gym.evaluation.attempts import Attempt, Verdict

__all__ = [
    "Names",
    "check_room",
    "check_sizes",
    "describe",
    "failure",
    "function_name",
    "read_verdict",
]

CAUSE = 2000  # characters of a cause that are kept


def failure(cause: str, seconds: float = 0.0) -> Verdict:
    """Returns an infrastructure failure, its cause cut to 2,000 characters."""
    return Verdict(False, seconds=seconds, infrastructure=cause[:CAUSE] or "no cause was given")


def describe(error: BaseException) -> str:
    """Returns an exception in words, with the line that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].name}, line {frames[-1].lineno})" if frames else text


def read_verdict(value: object, seconds: float) -> Verdict:
    """Reads what a verifier's function or server answered; garbage is an infrastructure failure.

    Args:
        value: A bool; a number, which passes from 1.0 on and is the score; a `Verdict`; or a
            mapping with `Verdict`'s fields, of which only `passed` must be there.
        seconds: What the attempt took, for answers that state none.
    """
    try:
        return _read(value, seconds)
    except ValueError as error:
        return failure(f"garbage: {error}", seconds)


def _read(value: object, seconds: float) -> Verdict:
    if isinstance(value, bool | np.bool_):
        return Verdict(bool(value), score=float(value), seconds=seconds)
    if isinstance(value, Real):
        score = _number("the answer", value)
        return Verdict(score >= 1.0, score=score, seconds=seconds)
    if isinstance(value, Verdict):
        value = value._asdict()
    if not isinstance(value, Mapping):
        raise ValueError(f"the answer is {_kind(value)}; expected a bool, a number or a Verdict")
    cause = value.get("infrastructure")
    if cause is not None:
        if not isinstance(cause, str):
            raise ValueError(f"`infrastructure` is {_kind(cause)}; expected a text or none")
        return failure(cause, seconds)
    passed = value.get("passed")
    if not isinstance(passed, bool | np.bool_):
        raise ValueError(f"`passed` is {_kind(passed)}; expected a bool")
    score = _number("`score`", value.get("score", float(passed)))
    cost = _number("`cost`", value.get("cost", 0.0), least=0.0)
    stated = _number("`seconds`", value.get("seconds", 0.0), least=0.0)
    return Verdict(bool(passed), score, cost, stated or seconds)


def _number(name: str, value: object, least: float = -math.inf) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} is {_kind(value)}; expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= least):
        wanted = "a finite number" if least < 0 else "a finite number from 0 on"
        raise ValueError(f"{name} is {number}; expected {wanted}")
    return number


def _kind(value: object) -> str:
    return "missing or None" if value is None else f"of type {type(value).__name__}"


def check_sizes(name: str, count: int, capacity: int | None, timeout: float | None) -> None:
    """Refuses a verifier that could hold or finish nothing."""
    if count < 1:
        raise ValueError(f"`{name}` is {count}; expected 1 or more")
    if capacity is not None and capacity < count:
        raise ValueError(f"`capacity` is {capacity}; expected {count} or more, the `{name}`")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"`timeout` is {timeout}; expected seconds above 0, or None for no limit")


def check_room(given: int, held: int, capacity: int) -> None:
    """Refuses more attempts than a verifier has room for; it has taken none of them then."""
    if given > capacity - held:
        raise ValueError(
            f"`attempts` has {given}; expected at most {capacity - held}: of a `capacity` of "
            f"{capacity}, {held} are held. Poll, or make the verifier with a larger one"
        )


class Names:
    """What a function or server is told for the indices of an attempt.

    Args:
        tasks: `tasks[root]`, or None for the index itself.
        candidates: `candidates[candidate]`, likewise.
    """

    def __init__(self, tasks: Sequence[Any] | None, candidates: Sequence[Any] | None) -> None:
        """Keeps the sequences."""
        self.tasks, self.candidates = tasks, candidates

    def of(self, attempt: Attempt) -> tuple[Any, Any]:
        """Returns the task and the candidate."""
        root, candidate, _ = attempt
        return (
            root if self.tasks is None else self.tasks[root],
            candidate if self.candidates is None else self.candidates[candidate],
        )


def function_name(function: Callable[..., object]) -> str:
    """Returns the full name of a function, or of a callable object's class."""
    if isinstance(function, partial):
        return f"{function_name(function.func)} of {function.args!r}, {function.keywords!r}"
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
