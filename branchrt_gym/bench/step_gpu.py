"""`branchrt bench step --device cuda`: fused steps of Blackjack, a root in each slot.

The device's time is read from events around a step, behind a flush of the cache that hides the
launch; the host's is what calls take that do not wait for the device.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from branchrt_gym.bench.deep_tree import Progress
from branchrt_gym.bench.measure import Summary, summarize
from branchrt_gym.bench.step import SEED, HandSizes
from branchrt_gym.envs.blackjack import Blackjack
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["DeviceSteps", "measure_steps"]

FLUSHED = 512 << 20  # bytes written before each repetition, more than any cache holds
FEW = 1024  # slots whose steps cost the host more than the device
CALLS = 50  # steps that the host's time is taken over
WARM = 16  # steps after which every graph is made and as many roots end as later
ADDRESSES = 4  # of actions, by turns


@dataclass(frozen=True)
class DeviceSteps:
    """What fused steps came to; without times where a result differs.

    Attributes:
        sizes: The sizes.
        compared: Values compared: of all slots with eager steps, of some with their oracles.
        mismatches: How many differ.
        first: The first of them, in words.
        seconds: Of the device for a step, by autoreset mode.
        live: The share of slots that were live, likewise.
        host_seconds: Of the host for a step of `FEW` slots, by whether results are copied.
    """

    sizes: HandSizes
    compared: int
    mismatches: int
    first: str | None
    seconds: dict[str, Summary] | None = None
    live: dict[str, float] | None = None
    host_seconds: dict[str, Summary] | None = None

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return self.mismatches == 0

    def row(self) -> dict[str, Any]:
        """Returns the figures as a row of evidence."""
        seconds, live = self.seconds or {}, self.live or {}
        slots = self.sizes.slots
        rates = {mode: slots / spent.interquartile_mean for mode, spent in seconds.items()}
        return {
            "bench": "step on the device",
            "env": self.sizes.env,
            "sizes": asdict(self.sizes),
            "compared": self.compared,
            "mismatches": self.mismatches,
            "first_difference": self.first,
            "seconds": seconds,
            "live_share": live,
            "slots_per_second": rates,
            "live_steps_per_second": {mode: rate * live[mode] for mode, rate in rates.items()},
            "host_seconds": self.host_seconds or {},
        }


def measure_steps(
    sizes: HandSizes,
    *,
    repetitions: int = 20,
    device: str = "cuda",
    progress: Progress = lambda stage, done, total: None,
) -> DeviceSteps:
    """Compares fused steps with eager ones and with oracles, then times them in each mode.

    Args:
        sizes: Slots, oracles and steps compared.
        repetitions: Timed steps.
        device: A CUDA device.
        progress: Told of each stage.
    """
    modes = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
    stages = 2 + len(modes)
    progress("Stepping both ways and comparing", 0, stages)
    found = DeviceSteps(sizes, *compare_steps(sizes, device))
    if not found.equal:
        return found
    seconds, live = {}, {}
    for done, mode in enumerate(modes, start=1):
        progress(f"Timing steps in {mode.name}", done, stages)
        spent, share = _on_device(_make(sizes.slots, device, autoreset_mode=mode), repetitions)
        seconds[mode.name], live[mode.name] = summarize(spent), share
    progress("Timing the host", 1 + len(modes), stages)
    host = {
        name: summarize(_on_host(_make(FEW, device, copy=copy), repetitions))
        for name, copy in (("static", False), ("copied", True))
    }
    progress("Done", stages, stages)
    return replace(found, seconds=seconds, live=live, host_seconds=host)


def compare_steps(sizes: HandSizes, device: str) -> tuple[int, int, str | None]:
    """Returns how many values were compared, how many differ, and the first of these in words."""
    fused = _make(sizes.slots, device, tier="fused")
    eager = _make(sizes.slots, device, tier="eager")
    oracles = SyncVectorEnv([sizes.oracle] * sizes.oracles)
    oracles.reset(seed=SEED)
    chance = np.random.default_rng(SEED)
    compared = mismatches = 0
    first = None
    for step in range(1, sizes.steps + 1):
        actions = torch.from_numpy(chance.integers(2, size=sizes.slots))
        ours = _named(fused.step(actions.to(device)))
        assert fused.step_tier == "fused"
        few = oracles.step(actions[: sizes.oracles].numpy())
        sides = {"eager steps": _named(eager.step(actions.to(device)))}
        sides["the oracles"] = _named((*few[:4], {}))
        for other, theirs in sides.items():
            for name, wanted in theirs.items():
                got = ours[name][: wanted.shape[0]]
                differs = got != wanted.to(got.device, got.dtype)
                compared += differs.numel()
                count = int(differs.sum())
                mismatches += count
                if count and first is None:
                    slot = int(differs.nonzero()[0, 0])
                    first = (
                        f"`{name}` of slot {slot} after {step} steps: {other} have "
                        f"{wanted[slot].item()}, fused ones {got[slot].item()}"
                    )
    return compared, mismatches, first


def _named(outcome: tuple[Any, ...]) -> dict[str, Tensor]:
    """The parts of what a step returned, by name."""
    seen, reward, terminated, truncated, info = outcome
    named = {f"observation[{place}]": part for place, part in enumerate(seen)}
    named |= {"reward": reward, "terminated": terminated, "truncated": truncated}
    return {name: torch.as_tensor(part) for name, part in {**named, **info}.items()}


def _make(slots: int, device: str, **more: Any) -> BranchingVectorEnv:
    arguments = {"output": "torch", "copy": False, "tier": "fused", **more}
    envs = BranchingVectorEnv(Blackjack(), slots, device=device, **arguments)
    envs.reset(seed=SEED)
    return envs


def _warm(envs: BranchingVectorEnv) -> list[Tensor]:
    """Steps until every graph is made; returns the actions that they read."""
    generator = torch.Generator(envs.device).manual_seed(SEED)
    actions = [
        torch.randint(2, (envs.num_envs,), device=envs.device, generator=generator)
        for _ in range(ADDRESSES)
    ]
    for step in range(WARM * ADDRESSES):
        envs.step(actions[step % ADDRESSES])
    return actions


def _on_device(envs: BranchingVectorEnv, repetitions: int) -> tuple[list[float], float]:
    """Returns the seconds of each step on the device, and the share of slots that were live."""
    actions = _warm(envs)
    scratch = torch.empty(FLUSHED, dtype=torch.uint8, device=envs.device)
    spent, live = [], []
    for repetition in range(repetitions):
        live.append(float(envs.live.double().mean()))
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)  # type: ignore[no-untyped-call]
        scratch.fill_(repetition % 2)
        begin.record()
        envs.step(actions[repetition % ADDRESSES])
        end.record()
        end.synchronize()
        spent.append(float(begin.elapsed_time(end)) / 1e3)
    return spent, sum(live) / len(live)


def _on_host(envs: BranchingVectorEnv, repetitions: int) -> list[float]:
    """Returns the seconds of the host for a step, once per repetition."""
    actions = _warm(envs)
    spent = []
    for _ in range(repetitions):
        torch.cuda.synchronize(envs.device)
        begin = time.perf_counter()
        for call in range(CALLS):
            envs.step(actions[call % ADDRESSES])
        spent.append((time.perf_counter() - begin) / CALLS)
    return spent
