"""Checks of what any Gymnasium vector environment has: spaces, dtypes, infos, seeds, copies."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from branchrt_gym.testing.comparison import as_numpy, compared_runs, difference, picture
from branchrt_gym.testing.subject import SEED, Subject
from branchrt_gym.vector_env import BranchingVectorEnv

__all__ = ["CHECKS"]


def spaces(subject: Subject) -> Iterator[str]:
    """`observation_space` and `action_space` are the single spaces, batched over `num_envs`."""
    envs = subject.envs
    for name in ("observation_space", "action_space"):
        expected = batch_space(getattr(envs, f"single_{name}"), envs.num_envs)
        if getattr(envs, name) != expected:
            yield f"`{name}` is {getattr(envs, name)}, against {expected}"


def metadata(subject: Subject) -> Iterator[str]:
    """`metadata["autoreset_mode"]` is the mode that the environment keeps, an AutoresetMode."""
    envs = subject.envs
    said = envs.metadata.get("autoreset_mode")
    if not isinstance(said, AutoresetMode) or said != envs.autoreset_mode:
        yield f"{said!r}, with `autoreset_mode` {envs.autoreset_mode!r}"


def observations(subject: Subject) -> Iterator[str]:
    """Every observation, of slots that are not live too, lies in the space, in its dtype."""
    envs = subject.make()
    yield from _inside(envs, envs.reset(seed=SEED)[0], "`reset`")
    for turn, (_, result) in enumerate(subject.walk(envs, 10)):
        yield from _inside(envs, result[0], f"step {turn + 1}")
        yield from _inside(envs, envs.observe(), f"`observe` after step {turn + 1}")


def rewards_and_flags(subject: Subject) -> Iterator[str]:
    """Rewards are `[N]`, float64 in NumPy and of one dtype in torch; flags are `[N] bool`."""
    envs = subject.fresh()
    dtype: Any = np.dtype(np.float64) if envs.output == "numpy" else None
    for turn, (_, result) in enumerate(subject.walk(envs, 10)):
        _, reward, terminated, truncated, _ = result
        where = f"in step {turn + 1}"
        if dtype is None:
            dtype = reward.dtype
        yield from _array(envs, reward, dtype, (envs.num_envs,), f"{where} the reward")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            yield from _mask(envs, flag, f"{where} `{name}`")


def infos(subject: Subject) -> Iterator[str]:
    """`info["live"]` and `info["solved"]` are `[N] bool`; `live` is `envs.live` after the call.

    Only a branch that was live before a step is solved by it, and a reset solves none.
    """
    envs = subject.make()
    info = envs.reset(seed=SEED)[1]
    yield from _info(envs, info, np.zeros(envs.num_envs, bool), "`reset`")
    for turn, (stepped, result) in enumerate(subject.walk(envs, 10)):
        yield from _info(envs, result[4], stepped, f"step {turn + 1}")


def seeds(subject: Subject) -> Iterator[str]:
    """The same seed gives the same run, in a fresh environment and in one that was used."""
    used = subject.fresh()
    first = subject.run(used)
    second = subject.run(subject.fresh())
    yield from compared_runs(second, first, f"two fresh environments with seed {SEED}")
    used.reset(seed=SEED)
    what = f"an environment reset again with seed {SEED} against a fresh one"
    yield from compared_runs(subject.run(used), first, what)
    twin = subject.fresh()
    subject.run(twin)
    one, two = (as_numpy(envs.reset()[0]) for envs in (used, twin))
    if found := difference({"observation": one}, {"observation": two}):
        yield f"`reset()` after equal runs: {found}"
    what = "two environments after equal runs and `reset()`"
    yield from compared_runs(subject.run(used), subject.run(twin), what)


def seed_list(subject: Subject) -> Iterator[str]:
    """A list of one seed per root, s, s + 1, …, gives the run of the int s."""
    seeds = list(range(SEED, SEED + subject.envs.num_roots))
    one, two = subject.run(subject.fresh(seed=seeds)), subject.run(subject.fresh(seed=SEED))
    yield from compared_runs(one, two, f"seeds {SEED}, {SEED + 1}, … against seed {SEED}")


def outputs(subject: Subject) -> Iterator[str]:
    """`output="numpy"` and `output="torch"` give the same values."""
    one, two = (subject.run(subject.fresh(output=kind)) for kind in ("torch", "numpy"))
    yield from compared_runs(one, two, "torch against NumPy")


def pickling(subject: Subject) -> Iterator[str]:
    """A pickled environment goes on as the original, which does not notice."""
    envs = subject.fresh()
    subject.run(envs, 4)
    try:
        text = pickle.dumps(envs)
    except (pickle.PicklingError, TypeError, AttributeError):
        return  # rules that cannot be imported by name, for example
    copy = pickle.loads(text)
    one = subject.run(copy, first=4)
    yield from compared_runs(one, subject.run(envs, first=4), "the copy against the original")


def specification(subject: Subject) -> Iterator[str]:
    """`gymnasium.make_vec(envs.spec)` makes an equal environment; so does the spec as JSON."""
    spec = subject.envs.spec
    if spec is None:
        return
    specs = {"`envs.spec`": spec}
    try:
        specs["`EnvSpec.from_json(envs.spec.to_json())`"] = EnvSpec.from_json(spec.to_json())
    except (TypeError, ValueError):
        pass  # an argument that JSON does not know, which is the caller's
    own = subject.run(subject.fresh())
    for name, each in specs.items():
        made: Any = gymnasium.make_vec(each).unwrapped
        for attribute in ("num_envs", "num_roots", "num_contexts", "autoreset_mode", "output"):
            one, two = getattr(made, attribute), getattr(subject.envs, attribute)
            if one != two:
                yield f"`{attribute}` is {one!r} by {name}, against {two!r}"
        made.reset(seed=SEED)
        yield from compared_runs(subject.run(made), own, f"made by {name} against the original")


def snapshots(subject: Subject) -> Iterator[str]:
    """`restore` puts a snapshot back exactly, in a fresh environment too; later steps keep off."""
    envs = subject.fresh()
    subject.run(envs, 4)
    snapshot = envs.snapshot()
    before = picture(envs)
    first = subject.run(envs, first=4)
    for name, other in (("the same", envs), ("a fresh", subject.make())):
        shown = as_numpy(other.restore(snapshot))
        if found := difference({"observation": shown}, {"observation": before["observation"]}):
            yield f"`restore` into {name} environment: {found}"
        what = f"{name} environment after `restore` against the run after `snapshot`"
        yield from compared_runs(subject.run(other, first=4), first, what)


CHECKS = (
    spaces,
    metadata,
    observations,
    rewards_and_flags,
    infos,
    seeds,
    seed_list,
    outputs,
    snapshots,
    pickling,
    specification,
)


def _array(
    envs: BranchingVectorEnv, values: Any, dtype: Any, shape: tuple[int, ...], name: str
) -> Iterator[str]:
    kind = np.ndarray if envs.output == "numpy" else torch.Tensor
    if not isinstance(values, kind):
        yield f"{name} is a {type(values).__name__}, against a {kind.__name__}"
    elif values.dtype != dtype or tuple(values.shape) != shape:
        yield (
            f"{name} is {values.dtype} of shape {tuple(values.shape)}, against {dtype} of "
            f"shape {shape}"
        )
    elif isinstance(values, torch.Tensor) and values.device.type != envs.device.type:
        yield f"{name} is on {values.device}, against {envs.device}"


def _mask(envs: BranchingVectorEnv, values: Any, name: str) -> Iterator[str]:
    dtype = np.dtype(bool) if envs.output == "numpy" else torch.bool
    yield from _array(envs, values, dtype, (envs.num_envs,), name)


def _layout(envs: BranchingVectorEnv, given: Any, expected: Any, name: str) -> Iterator[str]:
    if isinstance(expected, dict):
        if not isinstance(given, dict) or set(given) != set(expected):
            yield f"{name} is not a dict of {sorted(expected)}, as its space"
            return
        for key, part in expected.items():
            yield from _layout(envs, given[key], part, f"{name}[{key!r}]")
    elif isinstance(expected, tuple):
        if not isinstance(given, tuple) or len(given) != len(expected):
            yield f"{name} is not a tuple of {len(expected)}, as its space"
            return
        for place, part in enumerate(expected):
            yield from _layout(envs, given[place], part, f"{name}[{place}]")
    else:
        dtype = expected.dtype
        if envs.output == "torch":
            dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        yield from _array(envs, given, dtype, expected.shape, name)


def _inside(envs: BranchingVectorEnv, observation: Any, where: str) -> Iterator[str]:
    single = envs.single_observation_space
    expected = create_empty_array(single, envs.num_envs)
    yield from _layout(envs, observation, expected, f"the observation of {where}")
    seen = as_numpy(observation)
    if envs.observation_space.contains(seen):
        return
    for slot, row in enumerate(iterate(envs.observation_space, seen)):
        if not single.contains(row):
            state = "live" if as_numpy(envs.live)[slot] else "not live"
            yield f"{where}: slot {slot}, {state}, has {row}, outside {single}"


def _info(envs: BranchingVectorEnv, info: Any, stepped: np.ndarray, where: str) -> Iterator[str]:
    for name in ("live", "solved"):
        if name not in info:
            yield f'{where} has no `info["{name}"]`'
            return
        yield from _mask(envs, info[name], f'`info["{name}"]` of {where}')
    live = as_numpy(envs.live)
    if found := difference({"info['live']": as_numpy(info["live"])}, {"info['live']": live}):
        yield f"{where}: {found} of `envs.live`"
    wrong = np.flatnonzero(as_numpy(info["solved"]) & ~stepped)
    if wrong.size:
        yield f"{where}: slot {wrong[0]} is solved, and was not live before"
