"""With one root per slot and no forks, the vector env is Gymnasium's `SyncVectorEnv` of oracles.

Both run on the same seeds, actions and context; whatever they return is compared to the bit.
"""

import copy
import importlib.util

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from branchrt_gym import BranchingVectorEnv, DeepTree, DeepTreeOracle
from branchrt_gym.oracle import context_key

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
MODES = [NEXT, SAME, DISABLED]
TREE = {"width": 97, "fanout": 3, "depth": 4, "window": 9}
SEED = 7


def ours(mode, num_envs=5, **more):
    rules = DeepTree(**TREE)
    return BranchingVectorEnv(rules, num_envs, num_contexts=1, autoreset_mode=mode, **more)


def theirs(mode, num_envs=5, *, limit=None, oracle_class=DeepTreeOracle, **more):
    def make():
        oracle = oracle_class(**TREE, **more)
        return gymnasium.wrappers.TimeLimit(oracle, limit) if limit else oracle

    return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


def context(seed):
    oracle = DeepTreeOracle(**TREE)
    oracle.reset(seed=seed)
    return oracle.context


class InOneContext(DeepTreeOracle):
    """Makes the context of SEED whatever the key, for wrappers that do not pass options on."""

    def make_context(self, key):
        return super().make_context(context_key(SEED))


def start(pair, seed=SEED, **more):
    """Resets both, the oracles in the context that our root 0 makes."""
    own, other = pair
    first = seed if isinstance(seed, int) else seed[0]
    return (
        own.reset(seed=seed, **more),
        other.reset(seed=seed, options={"context": context(first)}),
    )


def same(mine, their, where="result"):
    """Asserts that two results are equal to the bit; but `live`, ours alone, and `t`, a clock."""
    if isinstance(their, dict):
        names = [set(side) - {"live", "_live", "t"} for side in (mine, their)]
        assert names[0] == names[1], where
        for name in names[0]:
            same(mine[name], their[name], f"{where}[{name!r}]")
    elif isinstance(their, list | tuple):
        assert len(mine) == len(their), where
        for place, (one, two) in enumerate(zip(mine, their, strict=True)):
            same(one, two, f"{where}[{place}]")
    elif isinstance(their, np.ndarray) and their.dtype == object:
        assert mine.dtype == object, where
        same(list(mine), list(their), where)
    elif isinstance(their, torch.Tensor):
        assert mine.dtype == their.dtype, where
        assert torch.equal(mine, their), where
    elif their is None:
        assert mine is None, where
    else:
        np.testing.assert_array_equal(mine, their, err_msg=where, strict=True)


def actions_for(num_envs, steps, seed=0):
    return np.random.default_rng(seed).integers(TREE["fanout"], size=(steps, num_envs))


@pytest.mark.parametrize("mode", MODES)
def test_many_episodes_are_those_of_gymnasium(mode):
    # Rows fall out of step with each other, since odd ones are reset half-way.
    pair = ours(mode), theirs(mode)
    own, other = pair
    same(*start(pair))
    solved = ended = 0
    for number, action in enumerate(actions_for(5, 160)):
        mine, their = own.step(action), other.step(action)
        same(mine, their)
        infos = mine[4].get("final_info", mine[4]) if mode == SAME else mine[4]
        solved += infos["solved"].sum()
        done = mine[2] | mine[3]
        ended += done.sum()
        assert own.observation_space.contains(mine[0])
        mask = done.copy() if mode == DISABLED else np.zeros(5, bool)
        if number in (1, 50):
            mask |= np.arange(5) % 2 == 1
        if mask.any():
            both = (envs.reset(options={"reset_mask": mask}) for envs in pair)
            same(*both)
    assert ended > 100
    assert solved > 0


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_a_time_limit_truncates_as_gymnasiums(mode):
    for limit in (1, 3, 4, 9):  # at 4 both flags are up
        pair = ours(mode, max_episode_steps=limit), theirs(mode, limit=limit)
        start(pair)
        for action in actions_for(5, 15):
            same(*(envs.step(action) for envs in pair))


@pytest.mark.parametrize("mode", MODES)
def test_resets_between_steps_go_on_as_gymnasiums(mode):
    pair = ours(mode), theirs(mode)
    own, other = pair
    for seed in (3, [5, 0, 2**62, 5, 9], SEED):
        same(*start(pair, seed))
        for length in (1, 3, 4, 2, 4):  # with 4, every row waits for its autoreset
            for action in actions_for(5, length, seed=length):
                same(*(envs.step(action) for envs in pair))
            same(*(envs.reset() for envs in pair))
        # A masked reset with seeds: those rows start their seed's first episode.
        mask = np.array([False, True, True, False, True])
        seeds = [11, 12, 13, 14, 15]
        shared = other.envs[0].context
        their = other.reset(seed=seeds, options={"reset_mask": mask.copy(), "context": shared})
        mine = own.reset(seed=seeds, options={"reset_mask": mask})
        same(mine, their)
        same(own.reset(), other.reset())


def test_spaces_and_rendering_are_those_of_gymnasium():
    for render_mode in ("rgb_array", "ansi"):
        pair = ours(NEXT, render_mode=render_mode), theirs(NEXT, render_mode=render_mode)
        own, other = pair
        for name in ("observation_space", "action_space", "num_envs", "render_mode"):
            assert getattr(own, name) == getattr(other, name)
            if name.endswith("space"):
                assert getattr(own, f"single_{name}") == getattr(other, f"single_{name}")
        start(pair)
        for action in actions_for(5, 6):
            frames, their_frames = own.render(), other.render()
            assert isinstance(frames, tuple)
            if render_mode == "ansi":
                assert frames == their_frames
            else:
                same(frames, their_frames)
            own.step(action)
            other.step(action)


def as_image(envs):
    space = spaces.Box(0, 255, (3, 3, 3), np.uint8)

    def paint(seen):
        return np.tile(np.abs(seen[:, :9] * 255).reshape(-1, 3, 3, 1).astype(np.uint8), 3)

    return wrappers.TransformObservation(envs, paint, single_observation_space=space)


def as_dict(envs):
    parts = {name: spaces.Box(-1, 1, (2,), np.float32) for name in "ab"}

    def split(seen):
        return {"a": seen[:, :2], "b": seen[:, 2:4]}

    space = spaces.Dict(parts)
    return wrappers.TransformObservation(envs, split, single_observation_space=space)


def as_box_actions(envs):
    def choose(action):
        return np.clip(action * 3, 0, 2).astype(np.int64)[..., 0]

    one = spaces.Box(0, 1, (1,), np.float32)
    many = gymnasium.vector.utils.batch_space(one, envs.num_envs)
    return wrappers.TransformAction(envs, choose, many, one)


def flip(action):
    return 2 - action


# Each wrapper of `gymnasium.wrappers.vector`: what it needs beneath it, and its arguments.
WRAPPERS = {
    "VectorizeTransformObservation": (
        None,
        [gymnasium.wrappers.TransformObservation],
        {"func": np.negative, "observation_space": None},
    ),
    "VectorizeTransformAction": (
        None,
        [gymnasium.wrappers.TransformAction],
        {"func": flip, "action_space": spaces.Discrete(3)},
    ),
    "VectorizeTransformReward": (None, [gymnasium.wrappers.TransformReward], {"func": np.negative}),
    "DictInfoToList": (None, []),
    "TransformObservation": (None, [np.negative]),
    "FilterObservation": (as_dict, [["b"]]),
    "FlattenObservation": (as_dict, []),
    "GrayscaleObservation": (as_image, []),
    "ResizeObservation": (as_image, [(6, 5)]),
    "ReshapeObservation": (None, [(1, 11)]),
    "RescaleObservation": (None, [np.float32(0), np.float32(4)]),
    "DtypeObservation": (None, [np.float64]),
    "NormalizeObservation": (None, []),
    "TransformAction": (None, [flip]),
    "ClipAction": (as_box_actions, []),
    "RescaleAction": (as_box_actions, [-1.0, 1.0]),
    "TransformReward": (None, [np.negative]),
    "ClipReward": (None, [-50.0, 50.0]),
    "NormalizeReward": (None, []),
    "RecordEpisodeStatistics": (None, []),
    "RecordVideo": (None, [], {"episode_trigger": lambda _: True}),
    "HumanRendering": (None, []),
    "ArrayConversion": (None, [np, torch]),
    "JaxToNumpy": (None, []),
    "JaxToTorch": (None, []),
    "NumpyToTorch": (None, []),
}
NEEDS = {
    "ResizeObservation": ["cv2"],
    "RecordVideo": ["moviepy"],
    "HumanRendering": ["pygame", "cv2"],
    "ArrayConversion": ["array_api_compat"],
    "JaxToNumpy": ["array_api_compat", "jax"],
    "JaxToTorch": ["array_api_compat", "jax"],
    "NumpyToTorch": ["array_api_compat"],
}


def test_no_wrapper_of_gymnasium_is_forgotten():
    assert set(WRAPPERS) == set(wrappers.__all__)


def wrapped_run(name, envs, folder):
    """Returns everything that a wrapped env gives over some episodes, or the error it raises."""
    mode = envs.metadata["autoreset_mode"]
    beneath, arguments, *more = WRAPPERS[name]
    more = {**more[0]} if more else {}
    if name == "RecordVideo":
        more["video_folder"] = str(folder)
    try:
        envs = getattr(wrappers, name)(beneath(envs) if beneath else envs, *arguments, **more)
        record = [str(envs.observation_space), str(envs.action_space)]
        record.append(copy.deepcopy(envs.reset(seed=SEED)))
        for action in actions_for(5, 6 if name == "HumanRendering" else 14):
            if beneath is as_box_actions:
                action = (action - 1.2)[:, None].astype(np.float32)
            elif name in ("ArrayConversion", "NumpyToTorch"):
                action = torch.from_numpy(action)
            record.append(copy.deepcopy(envs.step(action)))
            done = np.asarray(record[-1][2])
            if mode == DISABLED and done.any():
                record.append(copy.deepcopy(envs.reset(options={"reset_mask": done})))
        if name == "RecordEpisodeStatistics":
            record.append([list(envs.return_queue), list(envs.length_queue)])
        if name == "RecordVideo":
            record.append(list(envs.recorded_frames))
        envs.close()
        if name == "RecordVideo":
            record.append(sorted(path.name for path in folder.iterdir()))
            assert record[-1]
    except Exception as error:
        return error
    return record


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.filterwarnings("ignore")
def test_a_wrapper_gives_what_it_gives_on_gymnasiums(name, mode, tmp_path, monkeypatch):
    for module in NEEDS.get(name, []):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{name} needs {module}, which is not installed")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    more = {"render_mode": "rgb_array"} if name in ("RecordVideo", "HumanRendering") else {}
    their = wrapped_run(name, theirs(mode, oracle_class=InOneContext, **more), tmp_path / "their")
    mine = wrapped_run(name, ours(mode, **more), tmp_path / "mine")
    if isinstance(their, Exception) or isinstance(mine, Exception):
        assert type(mine) is type(their), (mine, their)
        assert mode != NEXT or name.startswith("Jax"), their
    else:
        same(mine, their, name)
