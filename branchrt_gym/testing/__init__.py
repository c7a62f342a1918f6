"""`check_branching_env`: the contract of a branching vector environment, as checks to run."""

from __future__ import annotations

from typing import Any

from branchrt_gym.testing import branching, episodes, futures, interface, keeping, resets
from branchrt_gym.testing.subject import Make, Subject, remake

__all__ = ["check_branching_env"]

CHECKS = (
    *interface.CHECKS,
    *resets.CHECKS,
    *episodes.CHECKS,
    *branching.CHECKS,
    *futures.CHECKS,
    *keeping.CHECKS,
)


def check_branching_env(envs: Any, make: Make | None = None, *, chance: bool | None = None) -> None:
    """Checks that an environment keeps the contract of `BranchingVectorEnv`.

    `envs` itself is only looked at. The checks run on fresh environments of its kind: of its own
    sizes and mode, and of small ones in each autoreset mode, reset, stepped, forked, pruned,
    compacted, copied and called wrongly; what they return is compared exactly.

    Args:
        envs: A branching vector environment, of any rules, sizes, mode, output and device.
        make: Makes another one like it, given any of the constructor's keyword arguments
            (`num_envs`, `num_roots`, `num_contexts`, `autoreset_mode`, `output`,
            `record_lineage`, `max_episode_steps`, `debug`) to change. None calls the class of
            `envs` with the attributes named as its constructor's parameters.
        chance: Whether the rules' transitions use chance. True: children forked with
            rng="split" must be seen to differ; False: they must not; None: both may be.

    Cost: about three seconds for a small environment on the CPU; give few slots and small
    contexts.

    Raises:
        AssertionError: At the first check that fails; the text is the check's name, the rule,
            and what was seen.
        TypeError: If an environment like `envs` cannot be made without `make`.
    """
    envs = getattr(envs, "unwrapped", envs)
    if make is None:
        make = remake(envs)
        try:
            make()
        except TypeError as error:
            raise TypeError(
                f"`make` is None, and {type(envs).__name__} cannot be made again from its "
                f"attributes ({error}); expected an attribute named as each parameter of its "
                "constructor. Pass make=lambda **changes: …, which makes one"
            ) from error
    subject = Subject.of(envs, make, chance)
    for check in CHECKS:
        name, rule = check.__name__, " ".join((check.__doc__ or "").split())
        try:
            seen = next(check(subject), None)
        except Exception as error:
            raise AssertionError(
                f"`{name}`: {rule} Seen: {type(error).__name__}: {error}"
            ) from error
        if seen is not None:
            raise AssertionError(f"`{name}`: {rule} Seen: {seen}")
