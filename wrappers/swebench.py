"""SWE-bench outcomes on record, replayed: an evaluation's decisions without its dollars.

`SweBenchReplay` verifies attempts out of a table, for `EvalFrontier`. `SweBench` is the same table
as a branching environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from branchrt_gym.evaluation.attempts import Verdicts
from branchrt_gym.evaluation.orderings import CandidateTable
from branchrt_gym.wrappers.swebench_files import (
    Submission,
    SweBenchFilesError,
    read_submission,
    submission_folders,
)

__all__ = ["SweBenchReplay", "choose"]

CHOICE = re.compile(r"(latest|best):(\d+)(?::(\d+))?")


@dataclass(frozen=True, eq=False)
class SweBenchReplay:
    """Recorded outcomes of `C` submissions on `R` instances; a `BatchVerifier`.

    Attributes:
        instances: The ids, ascending; root `r` is instance `r % len(instances)`.
        table: What is known before verdicts: see `CandidateTable`.
        resolved: `[R, C] bool`, the verdicts.
        digests: By submission and instance the patch's digest; empty where no patch is on record.
        left_out: Submissions that could not be read, and why.
    """

    instances: tuple[str, ...]
    table: CandidateTable
    resolved: NDArray[np.bool_]
    digests: Mapping[tuple[str, str], str]
    left_out: Mapping[str, str]

    @classmethod
    def load(
        cls, directory: str | Path, submissions: Sequence[str] = ("all",), split: str | None = None
    ) -> SweBenchReplay:
        """Reads submissions of the public layout.

        Args:
            directory: A checkout, with `evaluation/<split>/<submission>`.
            submissions: As in `choose`.
            split: Which split; None for the only one.

        Raises:
            SweBenchFilesError: If files are missing, damaged or contradict each other, or a
                submission that was named cannot be read.
        """
        read, left_out = {}, {}
        for folder in submission_folders(Path(directory), split):
            try:
                read[folder.name] = read_submission(folder)
            except SweBenchFilesError as error:
                left_out[folder.name] = str(error)
        return cls.of(choose(submissions, read, left_out), left_out)

    @classmethod
    def of(
        cls, submissions: Iterable[Submission], left_out: Mapping[str, str] | None = None
    ) -> SweBenchReplay:
        """Makes the table of submissions, in their order; an instance that one lacks is absent."""
        given = list(submissions)
        instances = sorted({name for each in given for name in each.outcomes})
        for each in given:
            unknown = [name for name, row in each.outcomes.items() if row.resolved is None]
            if unknown:
                raise SweBenchFilesError(
                    f"`{each.name}` has no verdict of {len(unknown)} instances, such as "
                    f"{unknown[0]}: a replay needs them all; run the harness and give its report"
                )
        if given and all(each.rest is not None for each in given):
            raise SweBenchFilesError(
                f"`{given[0].name}` and all others list only some instances, so that nothing tells "
                "which others there are; add a submission with per_instance_details.json"
            )
        rows = [[each.outcomes.get(name, each.rest) for each in given] for name in instances]
        shape = (len(instances), len(given))

        def column(name: str, dtype: Any) -> NDArray[Any]:
            values = [[row and getattr(row, name) for row in line] for line in rows]
            return np.array([[each or 0 for each in line] for line in values], dtype).reshape(shape)

        present = np.array([[row is not None for row in line] for line in rows]).reshape(shape)
        known = all(row is None or row.empty is not None for line in rows for row in line)
        table = CandidateTable(
            names=tuple(each.name for each in given),
            num_roots=len(instances),
            dates=tuple(each.date for each in given),
            cost=column("cost", np.float64),
            calls=column("calls", np.int64),
            empty=column("empty", np.bool_) if known else None,
            limit_hit=column("limit_hit", np.bool_),
            present=None if present.all() else present,
        )
        digests = {
            (each.name, name): row.digest
            for each in given
            for name, row in each.outcomes.items()
            if row.patch is not None
        }
        return cls(
            tuple(instances), table, column("resolved", np.bool_), digests, dict(left_out or {})
        )

    @property
    def version(self) -> str:
        """Of the verdicts: a digest of all that is on record."""
        content = sha256(repr((self.instances, self.table.names)).encode())
        for array in (self.resolved, self.table.cost, self.table.present):
            content.update(b"" if array is None else array.tobytes())
        return f"swebench-replay-{content.hexdigest()[:16]}"

    @property
    def tasks(self) -> tuple[str, ...]:
        """An id for each root: the instance's, and which repetition of it."""
        count = len(self.instances)
        return tuple(
            self.instances[root % count] + (f"#{root // count}" if root >= count else "")
            for root in range(self.table.num_roots)
        )

    def repeated(self, num_roots: int) -> SweBenchReplay:
        """Returns a replay of `num_roots` roots, root `r` a copy of instance `r % R`.

        It shows how decisions scale. It proves nothing about new tasks: the copies have no verdicts
        of their own.
        """
        if num_roots < 1:
            raise ValueError(f"`num_roots` is {num_roots}; expected 1 or more")
        row = np.arange(num_roots) % self.table.num_roots
        return SweBenchReplay(
            self.instances,
            self.table.repeated(num_roots),
            self.resolved[row],
            self.digests,
            self.left_out,
        )

    def content(self, root: int, candidate: int) -> str:
        """Returns the digest of an attempt's patch, "" where none is on record."""
        instance = self.instances[root % len(self.instances)]
        return self.digests.get((self.table.names[candidate], instance), "")

    def verify(self, roots: Any, candidates: Any) -> Verdicts:
        """Returns the recorded verdicts and dollars of `M` attempts; seconds are not on record."""
        if isinstance(roots, np.ndarray):
            cost = self.table.cost
            assert cost is not None
            return Verdicts(self.resolved[roots, candidates], cost=cost[roots, candidates])
        import torch

        told = self.verify(roots.cpu().numpy(), candidates.cpu().numpy())
        passed, price = map(torch.from_numpy, (told.passed, told.cost))
        return Verdicts(passed.to(roots.device), cost=price.to(roots.device))


def choose(
    wanted: Sequence[str],
    read: Mapping[str, Submission],
    left_out: Mapping[str, str] | None = None,
) -> list[Submission]:
    """Picks submissions out of those that could be read.

    Args:
        wanted: Names, or parts of names that fit one submission, in the order of the manifest; or
            one of `all`, `latest:N` (by date and name) and `best:N` or `best:N:MOST` (the `N` with
            the most instances resolved, or with the most but not above `MOST`; this choice of what
            to study looks at the verdicts).
        read: The submissions by name.
        left_out: Those that could not be read, and why.
    """
    oldest_first = sorted(read.values(), key=lambda each: (each.date, each.name))
    if list(wanted) == ["all"]:
        return oldest_first
    rule = CHOICE.fullmatch(wanted[0]) if len(wanted) == 1 else None
    if rule is None:
        return [_named(part, read, left_out or {}) for part in wanted]
    kind, number, most = rule.groups()
    count = int(number)
    found = oldest_first
    if kind == "best":
        bound = float("inf") if most is None else int(most)
        best_first = sorted(oldest_first, key=lambda each: -each.resolved)
        found = [each for each in best_first if each.resolved <= bound]
    if not 1 <= count <= len(found):
        raise SweBenchFilesError(f"`{wanted[0]}` asks for {count} of {len(found)} submissions")
    return found[:count] if kind == "best" else found[-count:]


def _named(part: str, read: Mapping[str, Submission], left_out: Mapping[str, str]) -> Submission:
    names = [*read, *left_out]
    fitting = [part] if part in names else [name for name in names if part and part in name]
    if len(fitting) != 1:
        shown = ", ".join((fitting or names)[:8])
        raise SweBenchFilesError(
            f"submission {part!r} fits {len(fitting)} of {len(names)} folders; expected a name or "
            f"a part of just one of: {shown}{', …' if len(fitting or names) > 8 else ''}"
        )
    if fitting[0] in left_out:
        raise SweBenchFilesError(left_out[fitting[0]])
    return read[fitting[0]]
