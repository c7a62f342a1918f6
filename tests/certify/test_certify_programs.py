"""Programs ask only for what is allowed, reach every operation, and replay."""

import collections

import pytest
from fuse import Fuse
from gymnasium.vector import AutoresetMode

from branchrt_gym.certify import PROGRAMS, Chance, ScalarPopulation
from branchrt_gym.certify.expansion import branch_step
from branchrt_gym.certify.operations import BranchStep, Compact, Fork, Prune, Reset, Step


def apply(model, operation):
    """Applies an operation to the model, after checking that it is allowed."""
    live = model.live_slots()
    match operation:
        case Reset(seed, None):
            model.reset(list(seed) if isinstance(seed, tuple) else seed)
        case Reset(seed, mask):
            masked = {slot for slot, hit in enumerate(mask) if hit and model.slots[slot]}
            roots = {model.slots[slot].root for slot in masked}
            assert roots
            for root in roots:
                assert {slot for slot in model.root_slots(root) if slot in live} <= masked
            model.reset_masked(mask, seed)
        case Step(actions):
            assert len(actions) == model.num_envs
            model.step(actions)
        case Fork(parents, counts, rng):
            each = [counts] * len(parents) if isinstance(counts, int) else counts
            assert set(parents) <= set(live)
            assert min(each) >= 1
            assert sum(each) <= len(model.free_slots())
            model.fork(parents, counts, rng)
        case Prune(slots):
            assert slots
            kept = model.done_slots() if model.mode == AutoresetMode.DISABLED else []
            assert set(slots) <= {*live, *kept}
            model.prune(slots)
        case Compact():
            model.compact()
        case BranchStep(width, rng):
            branch_step(model, width, rng)


def state(model):
    return [
        branch and (branch.branch_id, branch.root, branch.trajectory()) for branch in model.slots
    ]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", list(PROGRAMS))
@pytest.mark.parametrize(("roots", "slots"), [(1, 1), (1, 7), (4, 4), (3, 11)])
def test_programs_are_valid_and_replay(name, mode, roots, slots):
    def fresh():
        return ScalarPopulation(Fuse, slots, num_roots=roots, autoreset_mode=mode)

    for seed in range(3):
        model, done = fresh(), []
        for operation in PROGRAMS[name](model, Chance(model, seed, "split")):
            apply(model, operation)
            done.append(operation)
        again = fresh()
        for operation in done:
            apply(again, operation)
        assert state(again) == state(model)


def test_every_operation_is_reached():
    seen = collections.Counter()
    for program in PROGRAMS.values():
        model = ScalarPopulation(Fuse, 8, num_roots=2)
        for operation in program(model, Chance(model, 1, "split")):
            apply(model, operation)
            seen[type(operation).__name__] += 1
    assert set(seen) == {
        "Reset", "Step", "Fork", "Prune", "Compact", "BranchStep", "RoundTrip"
    }  # fmt: skip
