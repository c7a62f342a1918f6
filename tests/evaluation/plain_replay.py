"""The rule of a replay once more, in plain Python, and real outcomes read without our readers."""

import json
import os
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest

DATA = Path(
    os.environ.get("BRANCHRT_SWEBENCH")
    or Path(__file__).parents[3] / "shared" / "data" / "swebench"
)
needs_data = pytest.mark.skipif(
    not (DATA / "evaluation").is_dir(),
    reason="no recorded SWE-bench outcomes beside the checkout; name their folder in "
    "BRANCHRT_SWEBENCH",
)
CHOICES = {
    "latest:7": "7 latest",
    "best:7": "7 best",
    "best:7:345": "7 strongest not above 345",
    "all": "all 39",
}


@dataclass
class Plain:
    """A submission, as its files have it."""

    name: str
    date: str
    resolved: list[bool]
    cost: list[float]
    calls: list[int]

    @property
    def limits(self) -> int:
        """Attempts that hit a limit."""
        return sum(c >= 3 or n >= 250 for c, n in zip(self.cost, self.calls, strict=True))


def plain_submissions() -> list[Plain]:
    """All submissions with believable outcomes, by date and name."""
    found = []
    for folder in sorted((DATA / "evaluation" / "bash-only").iterdir()):
        details = folder / "per_instance_details.json"
        if not details.is_file():
            continue
        rows = sorted(json.loads(details.read_text()).items())
        stated = json.loads((folder / "metadata.json").read_text())
        resolved = [row["resolved"] for _, row in rows]
        if abs(100 * sum(resolved) / len(rows) - stated["resolved"]) > 1:
            continue
        cost = [row["cost"] for _, row in rows]
        calls = [row["api_calls"] for _, row in rows]
        found.append(Plain(folder.name, stated["date"], resolved, cost, calls))
    return sorted(found, key=lambda each: (each.date, each.name))


def plain_choice(name: str) -> list[Plain]:
    """One of the choices of submissions, by name."""
    every = plain_submissions()
    best = sorted(every, key=lambda each: sum(each.resolved), reverse=True)
    return {
        "latest:7": every[-7:],
        "best:7": best[:7],
        "best:7:345": [each for each in best if sum(each.resolved) <= 345][:7],
        "all": every,
    }[name]


PLAIN_ORDERS = {
    "current_chronological": lambda all_of: sorted(all_of, key=lambda each: (each.date, each.name)),
    "low_empty_first": lambda all_of: sorted(
        all_of, key=lambda each: (each.limits, each.date, each.name)
    ),
    "low_cost_first": lambda all_of: sorted(
        all_of, key=lambda each: (sum(each.cost), each.date, each.name)
    ),
    "oracle_best": lambda all_of: sorted(
        all_of, key=lambda each: (-sum(each.resolved), each.date, each.name)
    ),
}


def plain_replay(
    sequence: list[Plain], share: float, copies: int = 1
) -> tuple[int, int, float, float, int]:
    """Attempts, with the last round in full, dollars, likewise, and roots solved."""
    count = len(sequence[0].resolved)
    roots = count * copies
    wanted = ceil(Fraction(str(share)) * roots)
    solved: set[int] = set()
    attempts, dollars = 0, 0.0
    stopped = None
    for submission in sequence:
        for root in [root for root in range(roots) if root not in solved]:
            attempts += 1
            dollars += submission.cost[root % count]
            if submission.resolved[root % count]:
                solved.add(root)
                if len(solved) == wanted:
                    stopped = attempts, dollars
        if stopped:
            return stopped[0], attempts, stopped[1], dollars, wanted
    return attempts, attempts, dollars, dollars, len(solved)
