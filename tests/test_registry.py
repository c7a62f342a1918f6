"""Registration and Gymnasium's front doors, and a registered env with every kind of field."""

import subprocess
import sys
import warnings
from importlib import import_module

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import FlattenObservation
from test_contract import Maze, Swap, assert_same, everything, make
from test_vector_env_gymnasium import same

from branchrt_gym import BranchingVectorEnv, DeepTree, DeepTreeOracle, register, registrations
from branchrt_gym.errors import ContractError
from branchrt_gym.oracle import Oracle, bounded, child_key, episode_key, fold

ID = "branchrt/DeepTree-v0"
TREE = {"width": 97, "fanout": 3, "depth": 4}


class MazeOracle(Oracle):
    branch_fields = ("score", "grid")

    def __init__(self):
        rules = Maze()
        self.observation_space = rules.single_observation_space
        self.action_space = rules.single_action_space

    def make_context(self, key):
        return tuple(bounded(fold(key, i), 50) for i in range(4))

    def start(self):
        self.score = bounded(fold(self.key, 0), 9)
        self.odd = self.score % 2
        self.grid = np.zeros((2, 3), np.float32)

    def advance(self, action, key):
        draw = bounded(fold(key, 0), 50)
        self.score = (self.score + draw + self.context[action - 1]) % 1000
        self.odd = 1 - self.odd
        self.grid[0, 1] = np.float32(draw) / np.float32(10)
        return draw * 2.0, draw >= 45, self.depth >= 8, draw == 49

    def observe(self):
        return {
            "draw": np.int64(self.score % 60 + 3),
            "pair": (self.grid.copy(), np.array([self.odd, 1 - self.odd], np.int8)),
            "depth": np.array([self.depth + 3, self.depth]),
        }


class OtherOracle(MazeOracle):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Discrete(4)


class Undeclared(Maze):
    def __init__(self):
        super().__init__()
        self.reward_dtype = None


@pytest.fixture
def maze_id():
    register("test/Maze-v0", Maze, MazeOracle)
    yield "test/Maze-v0"
    del gymnasium.registry["test/Maze-v0"]
    import_module("branchrt_gym.registry")._REGISTRATIONS.pop("test/Maze-v0")


def steps(envs, count=10, low=0, high=3, seed=5):
    result = [envs.reset(seed=seed)]
    rng = np.random.default_rng(seed)
    return [*result, *(envs.step(rng.integers(low, high, envs.num_envs)) for _ in range(count))]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_nested_env_with_chance_is_gymnasiums_vector_of_oracles(maze_id, mode):
    envs = gymnasium.make_vec(maze_id, num_envs=5, num_contexts=1, autoreset_mode=mode)
    context = MazeOracle()
    context.reset(seed=5)
    sync = SyncVectorEnv([lambda: gymnasium.make(maze_id)] * 5, autoreset_mode=mode)
    assert envs.observation_space == sync.observation_space
    same(envs.reset(seed=5), sync.reset(seed=5, options={"context": context.context}))
    ended = 0
    for action in np.random.default_rng(0).integers(1, 5, (60, 5)):
        mine, their = envs.step(action), sync.step(action)
        same(mine, their)
        assert envs.observation_space.contains(mine[0])
        ended += mine[2].sum() + mine[3].sum()
    assert ended > 20
    if mode == AutoresetMode.NEXT_STEP:
        flat = FlattenObservation(gymnasium.make_vec(maze_id, num_envs=5, num_roots=2))
        assert flat.observation_space.contains(flat.reset(seed=1)[0])


def test_a_slot_that_is_not_live_observes_the_lowest_of_each_space():
    seen = make(3, 2).observe()
    assert seen["draw"][2] == 2
    assert seen["depth"][2].tolist() == [3, 0]
    assert not (seen["pair"][0][2].any() or seen["pair"][1][2].any())


def test_siblings_have_equal_futures_if_shared_and_their_own_if_split():
    envs = make(12, 1, seed=3)
    shared = envs.fork([0], 3, rng="shared")
    split = envs.fork([0], 8)
    assert envs.compact().tolist() == list(range(12))
    for _ in range(3):
        seen, reward, terminated, *_ = envs.step([2] * 12)
        if terminated.any():
            break
        assert len(set(reward[[0, *shared]])) == 1
        assert len({row.tobytes() for row in seen["pair"][0][[0, *shared]]}) == 1
        assert len(set(reward[split])) > 4


def test_keys_come_from_ancestry():
    envs = make(8, 1, seed=100)
    root = episode_key(100, 0)
    envs.fork([0, 0], [2, 1])  # slots 1 2 3
    envs.fork([0, 2], 1, rng="shared")  # slots 4 5
    envs.fork([0, 5])  # slots 6 7
    second = child_key(root, 0, 1)
    expected = [root, child_key(root, 0, 0), second, child_key(root, 0, 2), root, second]
    expected += [child_key(root, 2, 0), child_key(second, 1, 0)]
    assert [key % 2**64 for key in envs.frontier.key.tolist()] == expected
    assert envs.frontier.forks.tolist() == [3, 0, 1, 0, 2, 2, 0, 0]


def test_log_fields_are_stored_once_a_transition_and_exported():
    envs = make(6, 1)
    assert set(envs.frontier.state) == {"score", "grid", "odd"}
    envs.step([1] * 6)
    envs.fork([0], 2)
    envs.step([2, 3, 4, 1, 1, 1])
    envs.prune([1])
    paths = envs.trajectories([0, 1, 2])
    assert paths.log["said"].dtype == torch.int32
    assert paths.log["said"].shape == (3, 2, 2)
    assert paths.log["said"][:, :, 0].tolist() == [[1, 2], [1, 3], [1, 4]] == paths.action.tolist()
    assert paths.log["said"][2, 1, 1] == envs.frontier.state["score"][2]
    assert torch.equal(paths.log["high"], paths.reward / 2 > 20)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_what_is_masked_or_named_is_all_that_is_written(mode):
    def kept(envs, before, rows, but=()):
        for name, values in everything(envs).items():
            if name.startswith(("column.", "state.", "status")) and name not in but:
                assert torch.equal(values[rows], before[name][rows]), name

    def run(*, reset):
        envs = make(8, 3, autoreset_mode=mode, seed=8)
        envs.fork([0, 1], [2, 1])  # roots 0 1 2 0 0 1, then two free slots
        envs.step([1, 2, 3, 4] * 2)
        before = everything(envs)
        other = torch.arange(8) != int(envs.fork([1])[0])
        kept(envs, before, other, but=["column.forks"])
        kept(envs, before, other & (torch.arange(8) != 1))
        before = everything(envs)
        envs.prune([3])
        kept(envs, before, torch.arange(8) != 3)
        kept(envs, before, slice(None), but=["status"])
        if reset:
            before = everything(envs)
            options = {"reset_mask": mask}
            envs.reset(options=options)
            kept(envs, before, torch.from_numpy(~mask))
            assert options == {"reset_mask": mask}
        return envs

    mask = np.isin(np.arange(8), [0, 3, 4])  # all of root 0, and the slot just freed
    plain, masked = run(reset=False), run(reset=True)
    for _ in range(2):
        mine, without = (envs.step([1] * 8) for envs in (masked, plain))
        for one, two in zip(mine[1:4], without[1:4], strict=True):
            assert one[~mask].tolist() == two[~mask].tolist()
        assert mine[0]["draw"][~mask].tolist() == without[0]["draw"][~mask].tolist()


def test_make_vec_is_silent_and_its_spec_makes_it_again():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gymnasium.make_vec(ID, num_envs=6, num_roots=2, max_episode_steps=3, **TREE)
        assert isinstance(envs, BranchingVectorEnv)
        again = gymnasium.make_vec(envs.spec)
        read = gymnasium.make_vec(EnvSpec.from_json(envs.spec.to_json()))
    same(steps(envs), steps(again))
    same(steps(envs), steps(read))
    assert (envs.num_roots, read.num_roots, read.max_episode_steps) == (2, 2, 3)
    assert envs.spec.id == ID
    with pytest.raises(TypeError, match="wide"):
        gymnasium.make_vec(ID, num_envs=2, wide=3)


def test_metadata_is_each_instances_own():
    modes = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
    made = [gymnasium.make_vec(ID, num_envs=2, autoreset_mode=mode, **TREE) for mode in modes]
    for envs, mode in zip(made, modes, strict=True):
        assert envs.metadata["autoreset_mode"] is envs.autoreset_mode is mode
        envs.metadata["mine"] = True
    assert "autoreset_mode" not in DeepTree.metadata
    assert gymnasium.vector.VectorEnv.metadata == {}
    assert "mine" not in gymnasium.make_vec(ID, num_envs=2, **TREE).metadata
    try:
        envs.metadata["render_modes"].append("mine")
        assert DeepTree.metadata["render_modes"] == ["rgb_array", "ansi"]
    finally:
        del DeepTree.metadata["render_modes"][2:]


@pytest.mark.parametrize("extra", [{}, {"context": "spawn"}])
def test_sync_and_async_vectors_of_the_oracle(extra):
    sync = gymnasium.make_vec(ID, 2, vectorization_mode="sync", **TREE)
    many = gymnasium.make_vec(ID, 2, vectorization_mode="async", vector_kwargs=extra, **TREE)
    try:
        same(steps(many), steps(sync))
    finally:
        many.close()


def test_the_oracle_passes_gymnasiums_checker():
    for render_mode in (None, "rgb_array", "ansi"):
        env = gymnasium.make(ID, render_mode=render_mode, **TREE)
        assert isinstance(env.unwrapped, DeepTreeOracle)
        check_env(env.unwrapped)


def test_a_fresh_process_needs_no_import():
    code = f"""import gymnasium, pickle, sys
envs = gymnasium.make_vec("branchrt_gym:{ID}", num_envs=3, width=97)
assert "triton" not in sys.modules
print(envs.reset(seed=1)[0].shape, gymnasium.make("branchrt_gym:{ID}", width=97).reset(seed=1)[1])
pickle.loads(pickle.dumps(envs)).step([0, 1, 2])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "(3, 11) {'solved': False}\n"), done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("test/Bad-v0", MazeOracle, MazeOracle), TypeError, "`env_class`.*BranchEnv"),
        (("test/Bad-v0", Maze(), MazeOracle), TypeError, "`env_class`"),
        (("test/Bad-v0", Maze, Maze), TypeError, "`oracle_class`"),
        (("test/Bad-v0", type("<locals>.X", (Maze,), {}), MazeOracle), TypeError, "top level"),
        (("test/Bad-v0", Maze, OtherOracle), ContractError, "`single_action_space`"),
        (("test/Bad-v0", Undeclared, MazeOracle), ContractError, "`Undeclared.reward_dtype`"),
        (("no id at all!", Maze, MazeOracle), gymnasium.error.Error, "no id at all"),
    ],
)
def test_a_wrong_registration_registers_nothing(arguments, error, text):
    before = registrations(), dict(gymnasium.registry)
    with pytest.raises(error, match=text):
        register(*arguments)
    after = registrations(), dict(gymnasium.registry)
    import_module("branchrt_gym.registry")._REGISTRATIONS.pop(arguments[0], None)
    assert [sorted(one) for one in after] == [sorted(one) for one in before]
    registrations().clear()
    assert registrations()[ID].env_class is DeepTree


ACTIONS = {
    "box": (spaces.Box(-1, 1, (2,), np.float32), [0.5, -1], None),
    "discrete": (spaces.Discrete(4, start=-2), -2, 2),
    "many": (spaces.MultiDiscrete([2, 3], start=[1, 0]), [1, 2], [3, 2]),
    "binary": (spaces.MultiBinary(2), [1, 0], [256, 0]),
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_of_every_space_are_checked_and_recorded(kind):
    space, fine, wrong = ACTIONS[kind]
    rules = Swap()
    rules.single_action_space = space
    envs = make(3, 2, rules=rules)
    action = np.array([fine] * 3, None if kind == "box" else np.int64)
    envs.step(action if kind == "box" else action.astype(np.int8))
    envs.step(np.asarray(envs.action_space.sample()))
    recorded = envs.trajectories([0, 1]).action
    assert recorded[:, 0].tolist() == [fine] * 2
    assert recorded.numpy().dtype == space.dtype
    if wrong is not None:
        before = everything(envs)
        with pytest.raises(ValueError, match=r"`actions`.*slot 1"):
            envs.step(np.array([fine, wrong, wrong]))
        assert_same(everything(envs), before)
        envs.step(np.array([fine, fine, wrong]))  # slot 2 is free


def test_a_matrix_varies_what_both_classes_take():
    for matrix, error in (({"x": (1,)}, TypeError), ({"width": ()}, ValueError)):
        with pytest.raises(error, match=f"`matrix`.*{next(iter(matrix))}"):
            register("test/Tree-v0", DeepTree, DeepTreeOracle, matrix=matrix)
    assert "test/Tree-v0" not in gymnasium.registry
