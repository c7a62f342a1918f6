"""What the Blackjack bench is asked for, and what it finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from branchrt_gym.bench.measure import Summary, ratio, summarize
from branchrt_gym.evaluation.attempts import target_count
from branchrt_gym.evaluation.profile import Gain, Profile

__all__ = [
    "ENVIRONMENTS",
    "FRONTIER",
    "FRONTIER_GPU",
    "HOST",
    "RUN_ALL",
    "BlackjackComparison",
    "BlackjackSizes",
    "Outcome",
]

RUN_ALL, HOST, FRONTIER, FRONTIER_GPU = "run_all", "host", "frontier", "frontier_gpu"
ENVIRONMENTS = {
    "gpu": "branchrt/Blackjack-v0, batched",
    "gymnasium": "Gymnasium's BlackjackEnv.step()",
    "nemo": "NeMo Gym's Blackjack server over HTTP",
}


@dataclass(frozen=True)
class BlackjackSizes:
    """What is to be reached.

    Attributes:
        roots: Deals.
        candidates: Rollouts of each, at most.
        target: Share of the roots to be won.
        env: `"gpu"`, batched and in process; `"gymnasium"`, one step at a time; `"nemo"`, served.
        seed: Of the first root.
    """

    roots: int = 32_768
    candidates: int = 8
    target: float = 0.8
    env: str = "gpu"
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the name of the environment, and the target."""
        if self.env not in ENVIRONMENTS:
            names = ", ".join(ENVIRONMENTS)
            raise ValueError(f"`env` is {self.env!r}; expected one of {names}")
        target_count(self.target, self.roots)

    @property
    def needed(self) -> int:
        """Roots to be won."""
        return target_count(self.target, self.roots) or self.roots


@dataclass(frozen=True)
class Outcome:
    """What a controller came to.

    Attributes:
        episodes: Hands played: what is paid for.
        attempts_to_target: Hands up to the one that reached the target; None if none did.
        solved: Roots won.
    """

    episodes: int
    attempts_to_target: int | None
    solved: int


@dataclass
class BlackjackComparison:
    """What controllers needed for the same target; times are empty where decisions differ.

    Attributes:
        sizes: What was to be reached.
        device: Where the batched environment and the decisions of `frontier_gpu` are.
        compared: Values compared. mismatches: how many differ. first: the first, in words.
        outcomes: By controller.
        seconds: By controller, until the target.
        faster: Run-all's seconds over the controller's.
        over_host: The host controller's seconds over each frontier's.
        profiles: A profiled run of each, apart from the timed ones.
        more: What else the environment has to say.
    """

    sizes: BlackjackSizes
    device: str
    compared: int = 0
    mismatches: int = 0
    first: str | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seconds: dict[str, Summary] = field(default_factory=dict)
    faster: dict[str, Summary] = field(default_factory=dict)
    over_host: dict[str, Summary] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    @property
    def allowed(self) -> float | None:
        """Attempts of run-all over those up to the target: what stopping can save at most."""
        needed = self.outcomes[HOST].attempts_to_target if HOST in self.outcomes else None
        return self.sizes.roots * self.sizes.candidates / needed if needed else None

    @property
    def gains(self) -> dict[str, Gain]:
        """What each frontier brings by its profile, over the host controller's."""
        return {
            name: self.profiles[name].against(self.profiles[HOST])
            for name in self.over_host
            if name in self.profiles
        }

    def differ(self, what: str, wanted: Any, found: Any) -> None:
        """Compares two arrays or values, exactly, and notes what differs."""
        ours, theirs = np.asarray(found), np.asarray(wanted)
        if ours.shape != theirs.shape:
            self.compared, count = self.compared + 1, 1
            text = f"{what}: {theirs.shape} in the oracle, {ours.shape} here"
        else:
            differs = ours != theirs
            self.compared, count = self.compared + ours.size, int(differs.sum())
            place = tuple(np.argwhere(differs)[0].tolist()) if count else ()
            text = f"{what} at {place}: {theirs[place]} in the oracle, {ours[place]} here"
        self.mismatches += count
        if count and self.first is None:
            self.first = text

    def summarize(self, times: dict[str, list[float]]) -> None:
        """Keeps the seconds of all repetitions."""
        self.seconds = {name: summarize(samples) for name, samples in times.items()}
        self.faster = {name: ratio(times[RUN_ALL], each) for name, each in times.items()}
        ours = [name for name in times if name in (FRONTIER, FRONTIER_GPU)]
        self.over_host = {name: ratio(times[HOST], times[name]) for name in ours}

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        return {
            "bench": "blackjack",
            "env": self.sizes.env,
            "sizes": asdict(self.sizes),
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            "outcomes": self.outcomes,
            "attempts_fewer": self.allowed,
            "seconds_to_target": self.seconds,
            "faster_than_run_all": self.faster,
            "faster_than_host": self.over_host,
            "profiles": {name: profile.row() for name, profile in self.profiles.items()},
            "gains": self.gains,
            **self.more,
        }
