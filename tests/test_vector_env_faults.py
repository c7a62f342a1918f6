"""Callers' mistakes: a clear error each, and afterwards every bit is as before."""

import sys
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from branchrt_gym import Beam, BranchingVectorEnv, DeepTree
from branchrt_gym.errors import (
    ClosedError,
    DeviceError,
    FrontierFullError,
    LineageFullError,
    NotResetError,
    OptionsError,
    SlotError,
)

MODES = list(AutoresetMode)
TREE = {"width": 97, "fanout": 3, "depth": 4}


def make(num_envs=6, num_roots=2, seed=3, tree=TREE, **more):
    envs = BranchingVectorEnv(DeepTree(**tree), num_envs, num_roots=num_roots, **more)
    if seed is not None:
        envs.reset(seed=seed)
    return envs


def midway(**more):
    """Slots 0 2 3 are live, 1 and 5 free, and 4 waits for its root to restart, or has ended."""
    envs = make(num_roots=3, **more)  # roots 0 1 2
    envs.fork([0, 1])  # slots 3 4
    envs.step([1] * 6)
    envs.prune([1])
    envs.step([2] * 6)
    if envs.autoreset_mode == AutoresetMode.DISABLED:
        envs.frontier.release(torch.arange(6) == 4, 2)
    else:
        envs.prune([4])
    return envs


def everything(envs):
    tensors = {name: value.clone() for name, value in envs.snapshot().tensors.items()}
    return tensors | {"rng": str(envs.np_random.bit_generator.state), "seen": envs.observe()}


def assert_same(mine, their):
    assert mine.keys() == their.keys()
    for name, values in mine.items():
        if isinstance(values, str):
            assert values == their[name], name
        else:
            assert np.asarray(values).tobytes() == np.asarray(their[name]).tobytes(), name


def masked(mask, **more):
    return lambda envs: envs.reset(options={"reset_mask": mask}, **more)


YES = np.ones(6, bool)
BAD = {
    "actions of another shape": (lambda e: e.step([0] * 5), ValueError, "`actions`.*(5,).*(6,)"),
    "actions with an axis more": (lambda e: e.step([[0]] * 6), ValueError, "`actions`.*(6, 1)"),
    "one action": (lambda e: e.step(1), ValueError, "`actions`.*()"),
    "float actions": (lambda e: e.step([0.0] * 6), ValueError, "`actions`.*float.*integers"),
    "bool actions": (lambda e: e.step(YES), ValueError, "`actions`.*bool.*integers"),
    "object actions": (lambda e: e.step(np.array(["", 0])), (ValueError, TypeError), "`actions`"),
    "no actions": (lambda e: e.step(None), (ValueError, TypeError), "`actions`"),
    "text actions": (lambda e: e.step(["a"] * 6), (ValueError, TypeError), "`actions`"),
    "ragged actions": (lambda e: e.step([0, [1]] * 3), (ValueError, TypeError), "`actions`"),
    "an action too high": (lambda e: e.step([0, 0, 3] * 2), ValueError, "`actions`.*3.*2.*0 … 2"),
    "an action too low": (lambda e: e.step([-1] * 6), ValueError, "`actions`.*-1.*0.*0 … 2"),
    "fork of a free slot": (lambda e: e.fork([0, 1]), SlotError, "`parents`.*slot 1.*free.*live"),
    "fork of a finished slot": (lambda e: e.fork([4]), SlotError, "`parents`.*slot 4.*finished"),
    "fork of no slot": (lambda e: e.fork([-1]), SlotError, "`parents`.*-1.*0 … 5"),
    "fork of a slot beyond": (lambda e: e.fork([6]), SlotError, "`parents`.*6.*0 … 5"),
    "fork of floats": (lambda e: e.fork([0.0]), TypeError, "`parents`.*float"),
    "fork of a mask": (lambda e: e.fork(YES), TypeError, "`parents`.*bool"),
    "fork of one number": (lambda e: e.fork(0), TypeError, "`parents`.*list of slots"),
    "fork of text": (lambda e: e.fork(["0"]), (TypeError, ValueError), "`parents`"),
    "fork of too many": (lambda e: e.fork([0, 2, 3]), FrontierFullError, "3.*2 of 6"),
    "fork with too high counts": (lambda e: e.fork([0, 2], [1, 2]), FrontierFullError, "3.*2 of 6"),
    "fork of very many": (lambda e: e.fork([0], 10**13), FrontierFullError, "10{13}.*2 of 6"),
    "very high counts": (lambda e: e.fork([0, 2], [10**13, 1]), FrontierFullError, "2 of 6"),
    "counts that wrap": (lambda e: e.fork([0, 2] * 2, [2**62] * 4), FrontierFullError, "2 of 6"),
    "a negative count": (lambda e: e.fork([0], -1), ValueError, "`counts`.*-1.*0 or more"),
    "negative counts": (lambda e: e.fork([0, 2], [2, -1]), ValueError, "`counts`.*-1.*0 or more"),
    "counts of another length": (lambda e: e.fork([0], [1, 1]), ValueError, "`counts`.*(2,).*(1,)"),
    "float counts": (lambda e: e.fork([0], 1.0), ValueError, "`counts`.*float"),
    "unknown rng": (lambda e: e.fork([0], rng="same"), ValueError, "`rng`.*same.*split"),
    "prune of a free slot": (lambda e: e.prune([0, 1]), SlotError, "`slots`.*1.*free"),
    "prune of a slot beyond": (lambda e: e.prune([6]), SlotError, "`slots`.*6.*0 … 5"),
    "prune by a short mask": (lambda e: e.prune(YES[:5]), ValueError, "`mask`.*(5,).*(6,)"),
    "prune of floats": (lambda e: e.prune([0.5]), TypeError, "`slots`.*float"),
    "a list as mask": (masked([True] * 6), OptionsError, "`reset_mask`.*list.*bool.*(6,)"),
    "no mask": (masked(None), OptionsError, "`reset_mask`.*None"),
    "a mask of ints": (masked(np.ones(6, int)), OptionsError, "`reset_mask`.*int64.*bool"),
    "a short mask": (masked(YES[:5]), OptionsError, "`reset_mask`.*(5,).*(6,)"),
    "a mask of two axes": (masked(YES[None]), OptionsError, "`reset_mask`.*(1, 6)"),
    "an empty mask": (masked(~YES), OptionsError, "`reset_mask`.*no True"),
    "a mask that strands a branch": (masked(np.arange(6) == 0), OptionsError, "root 0.*slot 3"),
    "an unknown option": (lambda e: e.reset(options={"maks": 1}), OptionsError, "`options`.*maks"),
    "unknown options": (lambda e: e.reset(options={1: 1, "a": 1}), OptionsError, "`options`.*1.*a"),
    "a negative seed": (lambda e: e.reset(seed=-1), ValueError, "`seed`.*-1"),
    "a seed too high": (lambda e: e.reset(seed=2**63 - 2), ValueError, "`seed`"),
    "a negative one of seeds": (lambda e: e.reset(seed=[1, -2, 3]), ValueError, "`seed`.*-2"),
    "too few seeds": (lambda e: e.reset(seed=[1, 2]), ValueError, "`seed`.*2.*3"),
    "a float seed": (lambda e: e.reset(seed=1.0), TypeError, "`seed`.*float"),
    "a bool seed": (lambda e: e.reset(seed=True), TypeError, "`seed`.*bool"),
    "no seed among seeds": (lambda e: e.reset(seed=[1, None, 2]), TypeError, "`seed`.*None"),
    "a mask and a bad seed": (masked(YES, seed=-1), ValueError, "`seed`.*-1"),
    "an unknown id": (lambda e: e.trajectories([0, 99]), ValueError, "99"),
    "a negative id": (lambda e: e.trajectories([-1]), ValueError, "-1"),
    "float ids": (lambda e: e.trajectories([0.0]), TypeError, "`branch_ids`.*float"),
    "a single id": (lambda e: e.trajectories(0), TypeError, "`branch_ids`"),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BAD)
def test_a_mistake_has_a_clear_error_and_changes_nothing(name, mode):
    call, error, text = BAD[name]
    envs, twin = midway(autoreset_mode=mode), midway(autoreset_mode=mode)
    before = everything(envs)
    text = text.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(error, match=f"(?s){text}"):
        call(envs)
    assert_same(everything(envs), before)
    for _ in range(3):
        one, two = envs.step([1] * 6), twin.step([1] * 6)
        assert_same(dict(enumerate(one[:4])), dict(enumerate(two[:4])))
    assert_same(everything(envs), everything(twin))


def test_prune_of_a_slot_that_waits_for_its_restart():
    envs = midway()
    before = everything(envs)
    with pytest.raises(SlotError, match="`slots` names slot 4, which waits"):
        envs.prune([0, 4])
    assert_same(everything(envs), before)


CALLS = {
    "step": lambda e: e.step([0] * 6),
    "fork": lambda e: e.fork([0]),
    "prune": lambda e: e.prune([0]),
    "compact": lambda e: e.compact(),
    "render": lambda e: e.render(),
    "branch_step": lambda e: e.branch_step(),
    "observe": lambda e: e.observe(),
    "snapshot": lambda e: e.snapshot(),
    "trajectories": lambda e: e.trajectories([0]),
    "reset": masked(YES),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_before_the_first_reset_and_after_close(call):
    envs = make(seed=None)
    with pytest.raises(NotResetError, match=f"`?{call}.*before the first reset"):
        CALLS[call](envs)
    envs.reset(seed=3)
    assert_same(everything(envs), everything(make()))
    snapshot = envs.snapshot()
    envs.close()
    envs.close()
    for closed in (CALLS[call], lambda e: e.reset(), lambda e: e.restore(snapshot)):
        with pytest.raises(ClosedError, match="after `close`"):
            closed(envs)
    assert issubclass(NotResetError, gymnasium.error.ResetNeeded)


@pytest.mark.parametrize(
    ("name", "value", "also"),
    [
        ("num_envs", 0, {"num_roots": None}),
        ("num_roots", 0, {}),
        ("num_roots", 7, {}),
        ("num_contexts", 0, {}),
        ("num_contexts", 3, {}),
        ("autoreset_mode", "NEXT", {}),
        ("output", "jax", {}),
        ("render_mode", "human", {}),
        ("max_episode_steps", 0, {}),
        ("device", "warp9", {}),
        ("lineage_capacity", -1, {}),
        ("lineage_capacity", 0, {"record_lineage": True}),
        ("lineage_capacity", 1, {}),  # not even the roots fit
    ],
)
def test_wrong_arguments(name, value, also):
    with pytest.raises((ValueError, TypeError), match=f"`{name}`.*{value}"):
        make(**{name: value} | also)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_cuda_without_a_gpu():
    with pytest.raises(DeviceError, match=r"`device` is \"cuda\".*device=\"cpu\""):
        make(device="cuda")


def test_without_triton_the_cpu_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    envs = midway()
    envs.compact()
    assert envs.branch_step(policy=Beam(1))[1].shape == (9,)


@pytest.mark.parametrize("kind", ["reversed", "read-only", "strided", "big-endian", "int32"])
def test_any_array_of_integers_will_do(kind):
    def of(values, dtype=int):
        values = np.array(values, dtype)
        if kind == "read-only":
            values.setflags(write=False)
        if kind == "big-endian":
            values = values.astype(values.dtype.newbyteorder(">"))
        if kind == "int32" and dtype is int:
            values = values.astype(np.int32)
        return {"reversed": values[::-1].copy()[::-1], "strided": np.repeat(values, 2)[::2]}.get(
            kind, values
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine, plain = midway(), midway()
        for envs, array in ((mine, of), (plain, lambda values, dtype=int: np.array(values, dtype))):
            envs.fork(array([3, 0]), array([0, 2]))
            envs.step(array([0, 1, 2, 0, 1, 2]))
            envs.prune(array([1]))
            envs.prune(array([0, 0, 1, 0, 0, 0], bool))
            envs.trajectories(array([0, 2]))
            envs.reset(options={"reset_mask": array([1, 0, 0, 1, 1, 1], bool)})
            envs.reset(seed=array([5, 6, 7]))
    assert_same(everything(mine), everything(plain))


def test_empty_lists_are_no_mistake():
    envs = midway()
    before = everything(envs)
    assert envs.fork([]).tolist() == envs.fork([], []).tolist() == []
    envs.prune([])
    paths = envs.trajectories([])
    assert paths.action.shape[0] == paths.root.shape[0] == 0
    assert_same(everything(envs), before)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capacity", range(3, 60, 4))
def test_a_full_lineage_says_how_much_to_ask_for_and_changes_nothing(mode, capacity):
    acts = [
        lambda e: e.step([1] * 6),
        lambda e: e.fork(np.flatnonzero(e.live)[:1]),
        lambda e: e.prune(np.flatnonzero(e.live)[:1]),
        lambda e: e.reset(),
        lambda e: e.reset(options={"reset_mask": YES}),
        lambda e: e.branch_step(policy=Beam(2)),
    ]
    for seed in range(4):
        envs = make(6, 2, autoreset_mode=mode, lineage_capacity=capacity, tree=TREE | {"depth": 2})
        rng = np.random.default_rng(seed)
        for _ in range(40):
            before = everything(envs)
            try:
                acts[rng.integers(len(acts)) if seed else -1](envs)
            except LineageFullError as error:
                assert "`lineage_capacity`" in str(error)
                assert int(str(error).split("`lineage_capacity` of ")[1].split()[0]) > capacity
                assert_same(everything(envs), before)
            except FrontierFullError:
                assert_same(everything(envs), before)
    envs.reset(seed=1)
    assert envs.live.tolist() == [True] * 2 + [False] * 4
