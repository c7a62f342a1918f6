"""The fused and captured forms of `search` against the eager tier.

On the GPU if there is one, else in Triton's interpreter.
"""

import pickle
from dataclasses import replace
from functools import partial

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from branchrt_gym import (
    Beam,
    BestFirst,
    Contract,
    DeepTree,
    SharedCounter,
    Transition,
    branch,
    make_roots,
    search,
)
from branchrt_gym.checked import CheckedEnv
from branchrt_gym.contract import BranchEnv, TransitionKernel
from branchrt_gym.envs.blackjack import Blackjack
from branchrt_gym.kernels import bounded, fold
from branchrt_gym.kernels.keys_triton import bounded_device, fold_device
from branchrt_gym.search_captured import CapturedBeam
from branchrt_gym.search_eager import beam, best_first
from branchrt_gym.search_fused import FusedBeam, FusedBestFirst

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
roots_of = partial(make_roots, device=DEVICE)


@triton.jit
def dice_transition(shared, context, depth, key, state, action, params: tl.constexpr):
    """`Dice.transition`."""
    scale: tl.constexpr = params[0]
    score, luck = state
    roll = bounded_device(fold_device(key, action), 12).to(tl.int32) - 4
    reward = roll * scale
    score = score + reward.to(score.dtype)
    terminated = roll == 3
    truncated = (roll == 2) & (action == 0)
    return (score, luck ^ key), reward, terminated, truncated, (roll == 7) & (depth > 1)


class Dice(BranchEnv):
    """Chance in everything: rewards, ends of both kinds, and solving, also before an end.

    Scores are `scale` times small numbers, so that ties are many, and may leave the range that the
    fused form orders in one pass; `start` puts them at the end of the dtype's range.
    """

    reward_dtype = torch.int32

    def __init__(self, scale=1, fanout=3, dtype=torch.int32, start=0):
        rules = DeepTree(width=8, fanout=fanout)
        self.scale, self.dtype, self.start = scale, dtype, start
        self.contract = Contract({"score": branch((), dtype), "luck": branch((), torch.int64)})
        self.single_observation_space = rules.single_observation_space
        self.single_action_space = rules.single_action_space

    def initial_shared(self, keys):
        return {}

    def initial(self, shared, context_index, keys):
        return {"score": torch.full_like(keys, self.start).to(self.dtype), "luck": keys}

    def transition(self, shared, branches, action):
        roll = bounded(fold(branches.key, action), 12).to(torch.int32) - 4
        score = branches.state["score"] + (roll * self.scale).to(self.dtype)
        return Transition(
            state={"score": score, "luck": branches.state["luck"] ^ branches.key},
            reward=roll * self.scale,
            terminated=roll == 3,
            truncated=(roll == 2) & (action == 0),
            solved=(roll == 7) & (branches.depth > 1),
        )

    def transition_kernel(self, device):
        return TransitionKernel(dice_transition, (self.scale,))


class TorchAlone(Dice):
    """Without a form in Triton."""

    transition_kernel = BranchEnv.transition_kernel


def differences(found, expected):
    """Names what differs; places that are empty have no score and no state."""
    (ours, choices, transitions), (theirs, wanted, count) = found, expected
    there = theirs.branch_id >= 0
    names = ("branch_id", "depth", "terminated", "truncated", "solved")
    wrong = [name for name in names if not torch.equal(getattr(ours, name), getattr(theirs, name))]
    if ours.branch_id.shape != theirs.branch_id.shape:
        return wrong
    wrong += ["score"] if not torch.equal(ours.score[there], theirs.score[there]) else []
    rows = there.flatten()
    columns = {**theirs.state, **({} if theirs.key is None else {"key": theirs.key})}
    for name, column in columns.items():
        mine = ours.key if name == "key" else ours.state[name]
        wrong += [name] if not torch.equal(mine[rows], column[rows]) else []
    wrong += ["transitions"] if transitions != count else []
    if len(choices) != len(wanted):
        return [*wrong, f"{len(choices)} levels, not {len(wanted)}"]
    return wrong + [
        f"choices of level {level}"
        for level, (mine, his) in enumerate(zip(choices, wanted, strict=True))
        if not torch.equal(mine, his)
    ]


RULES = {
    "deep": lambda: DeepTree(width=97, fanout=4, depth=5),
    "two by two": lambda: DeepTree(width=31, fanout=2, depth=9, value_range=1),
    "dice": Dice,
    "dice, wide scores": lambda: Dice(scale=10_000_019),
    "dice, lowest scores": lambda: Dice(start=-(2**31)),
    "dice, 64 bits": lambda: Dice(scale=1 << 20, dtype=torch.int64, start=-(2**62)),
    "one action": lambda: Dice(fanout=1),
}


@pytest.mark.parametrize("stop_solved", [True, False])
@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("rules", RULES)
def test_fused_equals_eager(rules, width, stop_solved):
    for rng, seed in (("split", 0), ("shared", 7)):
        env = CheckedEnv(RULES[rules]())
        roots = roots_of(env, range(seed, seed + 3), num_contexts=2)
        plan = FusedBeam(env, roots, width, 5, rng, stop_solved)
        plan.run()
        expected = beam(env, roots, width, 5, rng, stop_solved)
        assert differences(plan.found(), expected) == []


@pytest.mark.parametrize(("width", "fanout"), [(11, 3), (20, 5)])
def test_fused_of_more_children_than_a_warp(width, fanout):
    for stop_solved in (True, False):
        for start in (0, -(2**31)):
            env = CheckedEnv(Dice(fanout=fanout, start=start))
            roots = roots_of(env, 1)
            plan = FusedBeam(env, roots, width, 4, "split", stop_solved)
            plan.run()
            assert differences(plan.found(), beam(env, roots, width, 4, "split", stop_solved)) == []


@pytest.mark.parametrize("stop_solved", [True, False])
@pytest.mark.parametrize(
    ("rules", "width"),
    [
        *((rules, width) for rules in RULES.values() for width in (1, 5)),
        (Dice, 13),
        (Blackjack, 7),
        (lambda: SharedCounter(width=16, depth=6, target=4), 6),
    ],
)
def test_levels_of_the_captured_form_equal_eager(rules, width, stop_solved):
    for rng in ("split", "shared"):
        env = CheckedEnv(rules())
        roots = roots_of(env, 3, num_contexts=2)
        plan = CapturedBeam(env, roots, width, 4, rng, stop_solved)
        expected = beam(env, roots, width, 4, rng, stop_solved)
        for _ in range(2):  # the second overwrites what the first left
            plan.run()
            assert differences(plan.found(), expected) == []


@pytest.mark.parametrize("wrong", [True, False])
def test_a_compiled_transition_that_differs_is_not_used(monkeypatch, wrong):
    def compiled(function, **options):
        def run(*arguments):
            made = function(*arguments)
            return made._replace(state={n: x + wrong for n, x in made.state.items()})

        return run

    env = CheckedEnv(DeepTree(width=97, depth=5))
    plan = CapturedBeam(env, roots_of(env, 3), 4, 5, "split", True, compiled=False)
    monkeypatch.setattr(torch, "compile", compiled)
    chosen = plan._compile()
    assert (chosen == env.rules.transition) is wrong
    assert (plan.note is None) is not wrong and (not wrong or "changes what" in plan.note)


@pytest.mark.parametrize("stop_solved", [True, False])
@pytest.mark.parametrize("width", [1, 4, 29])
@pytest.mark.parametrize("rules", ["deep", "dice", "dice, lowest scores", "dice, 64 bits"])
def test_fused_best_first_equals_eager(rules, width, stop_solved):
    for rng, budget, depth in (("split", 9, 3), ("shared", 5, 9)):
        env = CheckedEnv(RULES[rules]())
        roots = roots_of(env, range(5, 8), num_contexts=2)
        plan = FusedBestFirst(env, roots, BestFirst(budget, width), depth, rng, stop_solved)
        plan.run()
        expected = best_first(env, roots, width, budget, depth, rng, stop_solved)
        assert differences(plan.found(), expected) == []


def test_fused_best_first_of_more_candidates_than_a_warp():
    env = CheckedEnv(Dice(fanout=5))
    roots = roots_of(env, 2)
    plan = FusedBestFirst(env, roots, BestFirst(11, 40), 9, "split", False)
    plan.run()
    expected = best_first(env, roots, 40, 11, 9, "split", False)
    assert differences(plan.found(), expected) == []


def test_search_says_which_tier_ran():
    env = DeepTree(width=97, depth=4)
    roots = roots_of(env, 3)
    eager, fused = (
        search(env, roots, Beam(4), 4, tier="eager"),
        search(env, roots, Beam(4), 4, tier="fused"),
    )
    assert (eager.tier, eager.note) == ("eager", None)
    assert (fused.tier, fused.note) == ("fused", None)
    assert torch.equal(eager.score, fused.score)
    ours, theirs = eager.trajectories(), fused.trajectories()
    assert torch.equal(ours.action, theirs.action) and torch.equal(ours.reward, theirs.reward)
    again = search(env, roots, Beam(4), 4, tier="fused")
    assert len(roots.plans) == 1 and torch.equal(
        again.population.branch_id, fused.population.branch_id
    )


def test_plans_are_kept_for_what_they_were_made_for():
    env = DeepTree(width=97, depth=4)
    roots = roots_of(env, 3)
    for width in (1, 2, 3, 4, 5):
        search(env, roots, Beam(width), 4, tier="fused")
    assert len(roots.plans) == 4
    other = search(DeepTree(width=97, depth=4, value_range=7), roots, Beam(5), 4, tier="fused")
    assert torch.equal(
        other.score, search(env, roots, Beam(5), 4, tier="eager").score
    )  # the same contexts
    roots.state["position"].add_(1)  # read where it is
    moved = search(env, roots, Beam(5), 4, tier="fused")
    assert torch.equal(moved.score, search(env, roots, Beam(5), 4, tier="eager").score)


@pytest.mark.parametrize(
    ("env", "policy", "tier", "text"),
    [
        (TorchAlone(), Beam(3), "fused", "TorchAlone has no `transition_kernel`"),
        (DeepTree(width=97), BestFirst(3, 4095), "fused", "4098 candidates"),
        (DeepTree(width=97), BestFirst(3), "captured", "CUDA"),
        (DeepTree(width=97), Beam(2000), "fused", "one block takes 4096"),
        (Dice(dtype=torch.int64), Beam(20), "fused", "not int32"),
        (DeepTree(width=97), Beam(3), "captured", "CUDA"),
        (DeepTree(width=97), Beam(3), "quick", "expected one of 'auto'"),
    ],
)
def test_a_tier_that_does_not_fit_is_refused(env, policy, tier, text):
    with pytest.raises(ValueError, match=text):
        search(env, 2, policy, 3, tier=tier, device="cpu" if text == "CUDA" else DEVICE)


class Strided(DeepTree):
    """Returns columns of one tensor, and a number expanded, as an author may."""

    def initial(self, shared, context_index, keys):
        fields = super().initial(shared, context_index, keys)
        return {
            "score": torch.zeros((), dtype=torch.int32, device=keys.device).expand(len(keys)),
            "position": torch.stack([fields["position"], fields["score"]], 1)[:, 0],
        }


def test_what_an_author_returns_need_not_be_contiguous():
    env = Strided(width=97, depth=4)
    for policy in (Beam(2), BestFirst(5, 3)):
        eager, fused = (
            search(env, 3, policy, 4, tier=tier, device=DEVICE) for tier in ("eager", "fused")
        )
        assert torch.equal(eager.population.branch_id, fused.population.branch_id)
        assert torch.equal(eager.score, fused.score)


def test_roots_that_kernels_could_not_read_are_refused():
    env = DeepTree(width=97, depth=4)
    roots = roots_of(env, 4)
    wrong = replace(roots, state={**roots.state, "score": roots.state["score"].long()})
    with pytest.raises(ValueError, match=r"`score` of the roots is torch\.int64"):
        search(env, wrong, Beam(2), 4, tier="fused")
    spread = torch.stack([roots.key, roots.key], 1)[:, 0]
    with pytest.raises(ValueError, match=r"`key` of the roots .* strides"):
        search(env, replace(roots, key=spread), Beam(2), 4, tier="fused")


def test_roots_are_pickled_without_plans_and_compared_by_identity():
    env = DeepTree(width=97, depth=4)
    roots = roots_of(env, 2)
    search(env, roots, Beam(2), 4, tier="fused")
    copy = pickle.loads(pickle.dumps(roots))
    assert roots.plans and copy.plans == {} and torch.equal(copy.key, roots.key)
    assert roots == roots and roots != copy


def test_new_tensors_in_the_roots_are_seen():
    env = CheckedEnv(DeepTree(width=97, depth=3))
    roots = roots_of(env, 2)
    plan = CapturedBeam(env, roots, 2, 3, "split", True)
    roots.context_index.copy_(torch.tensor([1, 0]))
    plan.run()
    assert differences(plan.found(), beam(env, roots, 2, 3, "split", True)) == []
    search(env, roots, Beam(2), 3, tier="fused")
    roots.state["position"] = roots.state["position"] + 1
    fused = search(env, roots, Beam(2), 3, tier="fused")
    assert torch.equal(fused.score, search(env, roots, Beam(2), 3, tier="eager").score)


def test_a_search_under_inference_mode():
    env = DeepTree(width=97, depth=5)
    with torch.inference_mode():
        result = search(env, 3, Beam(4), 5, device=DEVICE)
    assert torch.equal(result.score, search(env, 3, Beam(4), 5, device=DEVICE).score)
