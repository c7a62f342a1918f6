"""`RecordBranchStatistics` against returns that branches carry along, and Gymnasium's wrappers."""

import copy
import pickle

import gymnasium
import gymnasium.wrappers.vector as vector
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tally import Tally

from branchrt_gym import Beam, BranchingVectorEnv, Snapshot, load, save
from branchrt_gym.wrappers import statistics
from branchrt_gym.wrappers.statistics import RecordBranchStatistics

SLOTS, ROOTS = 10, 4
MODES = ["NextStep", "SameStep", "Disabled"]


class Earning(Tally):
    """A Tally whose luck is a reward, and which knows its return and length: the truth here."""

    def __init__(self):
        super().__init__()
        self.single_observation_space = spaces.Box(0, 1 << 30, (2,), np.float64)

    def transition(self, shared, branches, action):
        step = super().transition(shared, branches, action)
        reward = step.state["luck"] % 10
        step.state["tally"] = branches.state["tally"] + reward
        return step._replace(reward=reward.to(torch.float32))

    def observation(self, shared, branches):
        pair = [branches.state["tally"], branches.state["steps"]]
        return torch.stack(pair, dim=1).to(torch.float64)


def population(mode="Disabled", env=Earning, **options):
    options = {"num_roots": ROOTS, "autoreset_mode": mode, **options}
    return BranchingVectorEnv(env(), SLOTS, **options)


def check_truth(envs):
    """What the wrapper counted is what the branches know of themselves."""
    frontier = envs.population.frontier
    held = (frontier.status != 0).numpy()
    truth = torch.stack([frontier.state["tally"], frontier.state["steps"]], dim=1).numpy()
    assert np.array_equal(envs.episode_returns[held], truth[held, 0])
    assert np.array_equal(envs.episode_lengths[held], truth[held, 1])
    assert (envs.episode_returns[~held] == 0).all()


def step(envs, rng):
    """Steps, and checks the ends against an ordinary step's last observations."""
    before = envs.unwrapped.snapshot()
    actions = rng.integers(3, size=SLOTS)
    _, _, terminated, truncated, infos = envs.step(actions)
    ended = terminated | truncated
    if ended.any():
        twin = BranchingVectorEnv(
            Earning(),
            SLOTS,
            num_roots=ROOTS,
            autoreset_mode="Disabled",
            record_lineage=envs.unwrapped.frontier.lineage.recorded,
        )
        before.put(twin.frontier)
        twin._ready = True
        last = twin.step(actions)[0]
        assert np.array_equal(infos["_episode"], ended)
        assert np.array_equal(infos["episode"]["r"], np.where(ended, last[:, 0], 0))
        assert np.array_equal(infos["episode"]["l"], np.where(ended, last[:, 1], 0))
        assert (infos["episode"]["t"][ended] > 0).all()
    else:
        assert "episode" not in infos
    return int(ended.sum())


def change(envs, rng, snapshots):
    """Forks, prunes, moves or takes back at random."""
    base = envs.unwrapped
    live, free = np.flatnonzero(base.live), np.flatnonzero(base.roots == -1)
    kind = rng.choice(["fork", "fork", "prune", "compact", "snapshot", "restore", "reset"])
    if kind == "fork" and len(live) and len(free):
        number = int(rng.integers(1, len(free) + 1))
        base.fork(rng.choice(live, number), 1, str(rng.choice(["split", "shared"])))
    elif kind == "prune" and len(live) > 2:
        base.prune(rng.choice(live, 2, replace=False))
    elif kind == "compact":
        base.compact()
    elif kind == "snapshot":
        snapshots.append(base.snapshot())
    elif kind == "restore" and snapshots:
        base.restore(snapshots[int(rng.integers(len(snapshots)))])
    elif kind == "reset" and rng.random() < 0.2:
        envs.reset()
    elif not len(live) and base.autoreset_mode.value == "Disabled":
        envs.reset(seed=int(rng.integers(100)))


@pytest.mark.parametrize("lineage", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_right_whatever_happens_to_branches(mode, lineage):
    envs = RecordBranchStatistics(population(mode, record_lineage=lineage))
    rng = np.random.default_rng(7)
    envs.reset(seed=3)
    snapshots, ended = [], 0
    for _ in range(250):
        change(envs, rng, snapshots)
        ended += step(envs, rng)
        check_truth(envs)
    assert ended > 100
    assert envs.episode_count == ended
    assert len(envs.return_queue) == len(envs.length_queue) == len(envs.time_queue) == 100


def test_a_child_inherits_and_its_parent_goes_on():
    envs = RecordBranchStatistics(population(record_lineage=False))
    envs.reset(seed=0)
    for _ in range(2):
        envs.step(np.zeros(SLOTS, dtype=np.int64))
    parent = int(np.flatnonzero(envs.unwrapped.live)[0])
    inherited = envs.episode_returns[parent], envs.episode_start_times[parent]
    (child,) = envs.unwrapped.fork([parent])
    envs.unwrapped.prune([parent])
    rewards = envs.step(np.zeros(SLOTS, dtype=np.int64))[1]
    assert envs.episode_returns[child] == inherited[0] + rewards[child]
    assert envs.episode_start_times[child] == inherited[1]
    assert envs.episode_lengths[child] == 3
    assert envs.episode_count == len(envs.return_queue)


def test_what_ids_do_not_tell_comes_from_the_lineage():
    rng = np.random.default_rng(1)
    envs = RecordBranchStatistics(population())
    envs.reset(seed=1)
    for turn in range(12):
        base = envs.unwrapped
        live = np.flatnonzero(base.live)
        if not len(live):
            envs.reset()
            continue
        if turn % 3 == 0:  # a child of a child that is gone
            (child,) = base.fork(live[:1])
            base.fork([child])
            base.prune([live[0], child])
        elif turn % 3 == 1:
            base.branch_step(policy=Beam(2))
        else:  # behind the wrapper's back
            base.step(rng.integers(3, size=SLOTS))
        envs.step(rng.integers(3, size=SLOTS))
        check_truth(envs)


def test_without_a_lineage_that_is_an_error():
    envs = RecordBranchStatistics(population(record_lineage=False))
    envs.reset(seed=0)
    envs.unwrapped.step(np.zeros(SLOTS, dtype=np.int64))
    with pytest.raises(ValueError, match=r"did not see.*record_lineage=True"):
        envs.step(np.zeros(SLOTS, dtype=np.int64))
    inner = RecordBranchStatistics(vector.ClipReward(population(), -1, 1))
    inner.reset(seed=0)
    inner.unwrapped.step(np.zeros(SLOTS, dtype=np.int64))
    with pytest.raises(ValueError, match="no wrapper between"):
        inner.step(np.zeros(SLOTS, dtype=np.int64))


def test_snapshots_of_another_run_and_copies(tmp_path):
    rng = np.random.default_rng(0)
    envs = RecordBranchStatistics(population())
    envs.reset(seed=0)
    step(envs, rng), step(envs, rng)
    plain = Snapshot.take(envs.unwrapped.frontier)  # without statistics
    twin = copy.deepcopy(envs)
    again = pickle.loads(pickle.dumps(envs))
    step(envs, rng)
    envs.unwrapped.restore(plain)
    check_truth(envs)
    for other in (twin, again):
        assert other.population is other.unwrapped is not envs.unwrapped
        step(other, rng)
        check_truth(other)
        assert other.episode_count >= envs.episode_count - 1
    save(envs.unwrapped.frontier, tmp_path / "kept")
    assert load(tmp_path / "kept", Earning().contract).num_slots == SLOTS


def test_output_may_be_tensors():
    envs = RecordBranchStatistics(population("SameStep", output="torch"))
    envs.reset(seed=0)
    for _ in range(30):
        envs.unwrapped.fork(envs.unwrapped.live.nonzero()[:1, 0]) if (
            envs.unwrapped.roots == -1
        ).any() else None
        envs.step(torch.zeros(SLOTS, dtype=torch.int64))
        check_truth(envs)
    assert envs.episode_count > 0


def test_refusals():
    with pytest.raises(TypeError, match="expected a BranchingVectorEnv"):
        RecordBranchStatistics(gymnasium.make_vec("CartPole-v1", 2))
    envs = RecordBranchStatistics(RecordBranchStatistics(population()))
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="which the infos have already"):
        for _ in range(40):
            envs.step(np.zeros(SLOTS, dtype=np.int64))


# Gymnasium's wrappers -----------------------------------------------------------------------


class Pushed(Tally):
    """Takes numbers as actions."""

    def __init__(self):
        super().__init__()
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)

    def transition(self, shared, branches, action):
        return super().transition(shared, branches, (action[:, 0] * 64).round().long())


def double(values):
    return values * 2


class Picture(Earning):
    """Observes one small picture, for the wrappers of those."""

    def __init__(self):
        super().__init__()
        self.single_observation_space = spaces.Box(0, 255, (4, 4, 3), np.uint8)

    def observation(self, shared, branches):
        shade = (branches.state["luck"] % 256).to(torch.uint8)
        return shade[:, None, None, None].expand(-1, 4, 4, 3).clone()


class Named(Earning):
    """Observes a Dict."""

    def __init__(self):
        super().__init__()
        self.single_observation_space = spaces.Dict(
            {name: spaces.Box(0, 1 << 30, (1,), np.float64) for name in ("tally", "steps")}
        )

    def observation(self, shared, branches):
        return {n: branches.state[n][:, None].double() for n in ("tally", "steps")}


WIDE = spaces.Box(0, 1 << 30, (SLOTS, 2), np.float64)
ONE = spaces.Box(0, 1 << 30, (2,), np.float64)
OBSERVATIONS = {
    "DtypeObservation": (Earning, (np.float32,), lambda seen: seen.astype(np.float32)),
    "FilterObservation": (Named, (["steps"],), lambda seen: {"steps": seen["steps"]}),
    "FlattenObservation": (
        Named,
        (),
        lambda seen: np.concatenate([seen["steps"], seen["tally"]], axis=1),
    ),
    "RescaleObservation": (
        Earning,
        (np.float64(0), np.float64(2)),
        lambda seen: seen * (2 / (1 << 30)),
    ),
    "ReshapeObservation": (Earning, ((2, 1),), lambda seen: seen[:, :, None]),
    "GrayscaleObservation": (
        Picture,
        (),
        lambda seen: (seen * [0.2125, 0.7154, 0.0721]).sum(-1).astype(np.uint8),
    ),
    "ResizeObservation": (Picture, ((2, 2),), lambda seen: seen[:, :2, :2]),
    "TransformObservation": (Earning, (double, WIDE, ONE), double),
}
ACTIONS = {  # environment, arguments, actions, what the environment gets
    "TransformAction": (Tally, (lambda a: 2 - a,), lambda draw: (draw * 3).astype(int), None),
    "ClipAction": (Pushed, (), lambda draw: draw[:, None] * 4 - 2, lambda a: a.clip(-1, 1)),
    "RescaleAction": (
        Pushed,
        (np.float32(-2), np.float32(2)),
        lambda draw: draw[:, None] * 4 - 2,
        lambda a: a / 2,
    ),
}
REWARDS = {
    "ClipReward": ((0, 3), lambda rewards: rewards.clip(0, 3)),
    "TransformReward": ((double,), double),
}


def beside(
    wrap, env=Earning, mode="Disabled", act=lambda draw: (draw * 3).astype(int), bare_act=None
):
    """Runs one program on a wrapped and a bare population; yields the results of their steps."""
    wrapped, bare = wrap(population(mode, env)), population(mode, env)
    rng = np.random.default_rng(5)
    first = wrapped.reset(seed=2), bare.reset(seed=2)
    yield wrapped, (first[0][0],), (first[1][0],)
    for _ in range(40):
        live, free = np.flatnonzero(bare.live), np.flatnonzero(bare.roots == -1)
        if len(live) and len(free):
            parents = rng.choice(live, len(free))
            for envs in (wrapped.unwrapped, bare):
                envs.fork(parents)
        if len(live) > 3:
            for envs in (wrapped.unwrapped, bare):
                envs.prune(live[:1])
        actions = act(rng.random(SLOTS))
        plain = actions if bare_act is None else bare_act(actions)
        yield wrapped, wrapped.step(actions), bare.step(plain)
        assert np.array_equal(wrapped.unwrapped.live, bare.live)
        assert np.array_equal(wrapped.unwrapped.roots, bare.roots)


def same(one, other):
    if isinstance(other, dict):
        return set(one) == set(other) and all(same(one[key], other[key]) for key in other)
    return np.allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observation_wrappers_are_safe(name, mode):
    if name == "ResizeObservation":
        pytest.importorskip("cv2", reason="Gymnasium resizes with OpenCV")
    env, arguments, expected = OBSERVATIONS[name]
    for _, given, plain in beside(lambda e: getattr(vector, name)(e, *arguments), env, mode):
        assert same(given[0], expected(plain[0]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REWARDS)
def test_reward_wrappers_are_safe(name, mode):
    arguments, expected = REWARDS[name]
    steps = list(beside(lambda e: getattr(vector, name)(e, *arguments), mode=mode))[1:]
    assert steps
    for _, given, plain in steps:
        assert same(given[0], plain[0]) and same(given[1], expected(plain[1]))


@pytest.mark.parametrize("name", ACTIONS)
def test_action_wrappers_are_safe(name):
    env, arguments, act, inner = ACTIONS[name]
    for _, given, plain in beside(
        lambda e: getattr(vector, name)(e, *arguments),
        env,
        act=act,
        bare_act=inner or arguments[0],
    ):
        assert same(given[0], plain[0])


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_wrappers_of_one_environment_are_safe(mode):
    single = gymnasium.wrappers

    def wrap(envs):
        envs = vector.VectorizeTransformObservation(
            envs, single.TransformObservation, func=double, observation_space=ONE
        )
        envs = vector.VectorizeTransformReward(envs, single.TransformReward, func=double)
        return vector.VectorizeTransformAction(
            envs, single.TransformAction, func=lambda a: 2 - a, action_space=spaces.Discrete(3)
        )

    for _, given, plain in list(beside(wrap, mode=mode, bare_act=lambda a: 2 - a))[1:]:
        assert same(given[0], double(plain[0])) and same(given[1], double(plain[1]))


def test_the_table_names_every_wrapper():
    names = {name for name in vector.__all__ if "Jax" not in name and "Torch" not in name}
    assert {name for name in names if name not in statistics.__doc__} <= {"ArrayConversion"}


def test_observation_wrappers_raise_in_same_step_mode():
    with pytest.raises(ValueError):
        for _ in beside(lambda e: vector.TransformObservation(e, double, WIDE, ONE), mode=MODES[1]):
            pass


def test_infos_as_lists_are_safe():
    for _, given, plain in list(beside(vector.DictInfoToList, mode="NextStep"))[1:]:
        assert [info["live"] for info in given[4]] == plain[4]["live"].tolist()


def test_gymnasiums_statistics_are_wrong_after_a_fork_and_ours_right():
    # Move a wrapper up in the table of `branchrt_gym.wrappers.statistics` when this fails.
    def statistics(wrap):
        envs = wrap(population())
        envs.reset(seed=4)
        envs.step(np.zeros(SLOTS, dtype=np.int64))
        parent = int(np.flatnonzero(envs.unwrapped.live)[0])
        (child,) = envs.unwrapped.fork([parent])
        if hasattr(envs, "_look"):
            envs._look()
        return envs, parent, child

    ours, parent, child = statistics(RecordBranchStatistics)
    assert ours.episode_returns[child] == ours.episode_returns[parent] > 0
    theirs, parent, child = statistics(vector.RecordEpisodeStatistics)
    assert theirs.episode_returns[child] != theirs.episode_returns[parent]
    normal, parent, child = statistics(vector.NormalizeReward)
    assert normal.accumulated_reward[child] != normal.accumulated_reward[parent]


def test_normalized_observations_average_empty_slots():
    envs = vector.NormalizeObservation(population("NextStep"))
    envs.reset(seed=4)
    envs.step(np.zeros(SLOTS, dtype=np.int64))
    assert envs.obs_rms.count == pytest.approx(2 * SLOTS, abs=0.1)  # of which 2 * ROOTS are live
