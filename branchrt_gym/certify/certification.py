"""Runs the rows of a matrix and makes the certificate."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from gymnasium.vector import AutoresetMode

from branchrt_gym.certify import matrix as matrices
from branchrt_gym.certify.certificate import Certificate, RowResult, device_name, versions
from branchrt_gym.certify.compare import Comparison, compare_program
from branchrt_gym.certify.compare_search import compare_search
from branchrt_gym.certify.matrix import Row
from branchrt_gym.certify.operations import Chance
from branchrt_gym.certify.population import ScalarPopulation
from branchrt_gym.certify.programs import PROGRAMS
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.frontier import check_device
from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.registry import Registration, registrations
from branchrt_gym.search_fused import unfit
from branchrt_gym.search_plan import TIERS
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["certify", "run_row"]

Progress = Callable[[int, int, Row], None]


def certify(
    env_id: str,
    matrix: str = "quick",
    *,
    device: str = "cpu",
    jobs: int = 1,
    tier: str | None = None,
    progress: Progress | None = None,
    rows: Sequence[Row] | None = None,
) -> Certificate:
    """Compares a registered environment, and the runtime under it, with its oracle.

    Args:
        env_id: Id it was registered under.
        matrix: Name of the matrix.
        device: Torch device that the batched side runs on.
        jobs: Rows that run at a time, in processes of their own if more than one; these import
            the calling program's main module, which so needs `if __name__ == "__main__":`.
        tier: Which tier searches run in where they fit it; None deals all of them out on a GPU,
            and is eager on the CPU. `"fused"` runs there in Triton's interpreter.
        progress: Called before each row with the rows done, all rows, and the row; and once at
            the end with the last row. With several jobs later rows may be running or done.
        rows: These instead of the matrix's own, which then only gives the certificate its name.

    Returns:
        The certificate, but for the times the same whatever `jobs` is. A row stops at its first
        difference, the others still run.

    Raises:
        ValueError: For an id that is not registered, an unknown matrix or tier, or fewer than one
            job.
    """
    known = registrations()
    if env_id not in known:
        raise ValueError(
            f"`env_id` is {env_id!r}; expected one of {', '.join(sorted(known))}, or "
            "module:id, which imports the module that registers it"
        )
    registration = known[env_id]
    check_device(device)
    if tier is not None and tier not in TIERS[1:]:
        raise ValueError(f"`tier` is {tier!r}; expected one of {', '.join(map(repr, TIERS[1:]))}")
    if jobs < 1:
        raise ValueError(f"`jobs` is {jobs}; expected 1 or more")
    if rows is None:
        rows = matrices.rows(registration, matrix, device=device)
        if tier is not None or device != "cpu":
            rows = [_with_tier(registration, row, tier) for row in rows]
    chosen = tuple(rows)
    start = time.perf_counter()
    results = []
    running = _run(registration, chosen, jobs)
    for number, row in enumerate(chosen):
        if progress is not None:
            progress(number, len(chosen), row)
        results.append(next(running))
    if progress is not None and chosen:
        progress(len(chosen), len(chosen), chosen[-1])
    hashes = {
        registration.env_class(**registration.kwargs, **row.parameters).contract.hash
        for row in chosen
    }
    return Certificate(
        environment=env_id,
        contract_hash=tuple(sorted(hashes)),
        matrix=matrix,
        rows=tuple(results),
        versions=versions(),
        device=device_name(device),
        seconds=time.perf_counter() - start,
    )


def _with_tier(registration: Registration, row: Row, tier: str | None = None) -> Row:
    """Gives a search its tier, or deals one out; one that does not fit runs in eager torch."""
    tier = ("fused", "captured", "eager")[row.number % 3] if tier is None else tier
    if row.kind != "search" or tier == "eager":
        return row
    env = CheckedEnv(registration.env_class(**registration.kwargs, **row.parameters))
    budget, width = row.settings["budget"], row.settings["beam"]
    policy = Beam(width) if budget is None else BestFirst(budget, width)
    reason = unfit(
        env, torch.device(row.device), policy, row.settings["levels"], fused=tier == "fused"
    )
    return replace(row, tier=tier if reason is None else "eager")


def _run(registration: Registration, rows: Sequence[Row], jobs: int) -> Iterator[RowResult]:
    """Runs the rows, `jobs` at a time, and yields their results in order."""
    if jobs == 1:
        yield from map(partial(run_row, registration), rows)
        return
    # Each process starts anew: a copy of this one might hold locks of torch's threads.
    with ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(max(1, torch.get_num_threads() // jobs),),
    ) as pool:
        yield from pool.map(partial(run_row, registration), rows)


def run_row(registration: Registration, row: Row) -> RowResult:
    """Runs one row: both sides, compared."""
    start = time.perf_counter()
    tier = row.tier
    with _collecting_nothing():
        if row.kind == "search":
            comparison = _run_search(registration, row)
        else:
            comparison, tier = _run_population(registration, row)
    return RowResult(
        row=replace(row, tier=tier),
        comparisons=comparison.compared,
        mismatches=int(comparison.difference is not None),
        seconds=time.perf_counter() - start,
        difference=comparison.difference,
    )


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Spares the model, millions of objects without cycles, being looked through for cycles."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _run_population(registration: Registration, row: Row) -> tuple[Comparison, str]:
    parameters = {**registration.kwargs, **row.parameters}
    settings = row.settings
    rules = registration.env_class(**parameters)
    mode = AutoresetMode[settings["autoreset_mode"]]
    envs = BranchingVectorEnv(
        rules,
        num_envs=row.num_envs,
        num_roots=row.num_roots,
        num_contexts=row.num_contexts,
        autoreset_mode=mode,
        output=settings["output"],
        device=row.device,
        # On a GPU steps without a lineage run as one kernel, if there is one.
        record_lineage=row.device == "cpu" or row.num_envs > row.num_roots,
        max_episode_steps=settings["max_episode_steps"],
    )
    model = ScalarPopulation(
        lambda: registration.oracle_class(**parameters),
        row.num_envs,
        num_roots=row.num_roots,
        num_contexts=row.num_contexts,
        autoreset_mode=mode,
        max_episode_steps=settings["max_episode_steps"],
        score=rules.score,
    )
    chance = Chance(model, settings["seed"], settings["rng"], settings["steps"])
    try:
        comparison = compare_program(envs, model, PROGRAMS[settings["program"]](model, chance))
        return comparison, envs.step_tier or "eager"
    finally:
        envs.close()


def _run_search(registration: Registration, row: Row) -> Comparison:
    parameters = {**registration.kwargs, **row.parameters}
    seed = row.settings["seed"]
    return compare_search(
        registration.env_class(**parameters),
        lambda: registration.oracle_class(**parameters),
        [seed + 3 * root for root in range(row.num_roots)],
        width=row.settings["beam"],
        depth=row.settings["levels"],
        num_contexts=row.num_contexts,
        rng=row.settings["rng"],
        device=torch.device(row.device),
        tier=row.tier,
        budget=row.settings["budget"],
        stop_solved=row.settings["stop_solved"],
    )
