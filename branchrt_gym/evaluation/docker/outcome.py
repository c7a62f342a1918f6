"""The words of containers: what one is made from, and how a command in it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from branchrt_gym.evaluation.docker.limits import Limits

__all__ = ["Outcome", "Spec"]


@dataclass(frozen=True, slots=True)
class Spec:
    """What a clean container is made from; two of the same spec are interchangeable.

    Attributes:
        image: Its name. workdir: An absolute path, where commands run.
        limits: What it may do.
        env: More variables of the environment, as pairs.
    """

    image: str
    workdir: str
    limits: Limits = field(default_factory=Limits)
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended.

    Attributes:
        exit_code: None where it was killed from outside.
        output: What was kept of both streams, in the order in which it came.
        seconds: From its start to its end.
        timed_out: Whether it took longer than it might, ended inside or outside.
        memory_kills: Processes that were killed for memory while it ran.
        printed: Bytes that it printed. truncated: Whether some are not in `output`.
        flooded: Whether it printed so much that it was killed.
        first_byte: When its first output came, in seconds of `time.monotonic`, or None.
        applied: Whether the patch was applied; None if there was none.
        log: What applying it said.
    """

    exit_code: int | None
    output: str
    seconds: float
    timed_out: bool = False
    memory_kills: int = 0
    printed: int = 0
    truncated: bool = False
    flooded: bool = False
    first_byte: float | None = None
    applied: bool | None = None
    log: str = ""

    @property
    def finished(self) -> bool:
        """Whether it ran, and ended by itself."""
        return self.applied is not False and self.exit_code is not None and not self.timed_out
