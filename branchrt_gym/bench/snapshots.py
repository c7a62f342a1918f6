"""`branchrt bench snapshots`: forks of Gymnasium environments beside `copy.deepcopy`.

First copies and restored environments are compared with environments that nobody touched, bit for
bit; then both ways to copy are timed by turns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.estimates import Estimate, estimate, estimate_ratio
from branchrt_gym.bench.snapshot_cases import Case
from branchrt_gym.bench.snapshot_times import branch_bytes, call_times

__all__ = ["SnapshotSizes", "Snapshots", "compare_snapshots"]


@dataclass(frozen=True)
class SnapshotSizes:
    """How much is compared and measured.

    Attributes:
        points: Moments at which copies are compared.
        steps: Steps that each is followed.
        branches: Living branches whose memory is measured; 0 to leave it out.
    """

    points: int = 10
    steps: int = 200
    branches: int = 1000


@dataclass(frozen=True)
class Snapshots:
    """What an environment's copies came to; estimates are None where one differs.

    Attributes:
        case: The environment.
        sizes: How much was compared.
        provider: Who copies it.
        compared: Steps compared with the untouched environment's.
        mismatches: Points at which a step differs.
        first: The first of them, in words.
        deepcopy: `"exact"`, or what is wrong with `copy.deepcopy`.
        seconds: On a core, of a `fork`, a `snapshot`, a `restore`, a `step`; of a `deepcopy` where
            there is one; of `mj_copyData` alone into a kept slot, for MuJoCo.
        least: The least of these samples, which is what a call takes on a quiet machine.
        ratio: A fork over a deepcopy.
        branch_bytes: Resident memory of a living branch.
    """

    case: Case
    sizes: SnapshotSizes
    provider: str
    compared: int
    mismatches: int
    first: str | None
    deepcopy: str
    seconds: dict[str, Estimate] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)
    ratio: Estimate | None = None
    branch_bytes: float | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {
            "bench": "snapshots",
            "environment": self.case.env,
            "kwargs": self.case.kwargs,
            "sizes": asdict(self.sizes),
            "provider": self.provider,
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            "deepcopy": self.deepcopy,
            "seconds": self.seconds,
            "least": self.least,
            "ratio": self.ratio,
            "branch_bytes": self.branch_bytes,
        }


def compare_snapshots(
    case: Case,
    sizes: SnapshotSizes,
    *,
    repetitions: int = 20,
    seeds: int = 3,
    progress: Progress = lambda stage, done, total: None,
) -> Snapshots:
    """Compares copies of an environment with untouched ones, then measures what they cost.

    Args:
        case: The environment.
        sizes: How much to compare.
        repetitions: Timed batches of each call, by turns.
        seeds: Episodes that are copied.
        progress: Called with what is done.
    """
    from branchrt_gym.wrappers.verify import verify

    for name, count in (("repetitions", repetitions), ("seeds", seeds)):
        if count < 1:
            raise ValueError(f"`{name}` is {count}; expected 1 or more")
    stages = sizes.points + seeds + 1
    verified = verify(
        case.make,
        points=sizes.points,
        steps=sizes.steps,
        progress=lambda done, _: progress(f"{case.env}: comparing", done, stages),
    )
    found = Snapshots(
        case,
        sizes,
        verified.provider,
        compared=2 * sizes.points * sizes.steps,
        mismatches=len(verified.differences),
        first=next(iter(verified.differences), None),
        deepcopy=verified.deepcopy,
    )
    if not found.equal:
        return found
    times: dict[str, list[list[float]]] = {}
    deepcopied = verified.deepcopy_us is not None
    for seed in range(seeds):
        progress(f"{case.env}: timing, seed {seed + 1}", sizes.points + seed, stages)
        for name, samples in call_times(case, seed, repetitions, deepcopied).items():
            times.setdefault(name, []).append(samples)
    progress(f"{case.env}: filling memory", sizes.points + seeds, stages)
    memory = branch_bytes(case, sizes.branches) if sizes.branches else None
    progress("Done", stages, stages)
    return replace(
        found,
        seconds={name: estimate(samples) for name, samples in times.items()},
        least={name: min(map(min, samples)) for name, samples in times.items()},
        ratio=estimate_ratio(times["fork"], times["deepcopy"]) if deepcopied else None,
        branch_bytes=memory,
    )
