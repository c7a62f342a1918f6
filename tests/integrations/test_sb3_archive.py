"""`ForkFromArchive`: what Stable-Baselines3's rollout buffer holds around a branching."""

import numpy as np
import pytest
import torch
from tally import TURN, tallies

pytest.importorskip("stable_baselines3", reason="needs the extra `sb3`")

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

from branchrt_gym.integrations.sb3 import BranchingVecEnv, ForkFromArchive

ROWS, LENGTH = 4, 24
QUICK = {"seed": 0, "device": "cpu"}


def population(spare=ROWS):
    return BranchingVecEnv(tallies(ROWS, spare), spare_slots=spare)


def tally_of(observations):
    return observations[:, 2]


class Watch(BaseCallback):
    """Keeps each rollout, the observations after it, and what its first rows came from."""

    def __init__(self, archive):
        super().__init__()
        self.archive, self.rollouts, self.sources = archive, [], []
        self.branch = archive._branch
        archive._branch = self._branch

    def _branch(self, entry):
        self.sources.append((len(self.rollouts), entry))
        self.branch(entry)

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        names = ("observations", "actions", "rewards", "episode_starts", "values", "advantages")
        copies = {name: getattr(buffer, name).copy() for name in names}
        copies["after"] = np.array(self.model._last_obs)
        copies["ended"] = np.array(self.model._last_episode_starts)
        with torch.no_grad():
            values = self.model.policy.predict_values(torch.as_tensor(copies["after"]))
        copies["after_values"] = values.numpy().ravel()
        self.rollouts.append(copies)


def learn(env, archive, algorithm=PPO, rollouts=8, **options):
    if algorithm is PPO:
        options = {"n_steps": LENGTH, "batch_size": ROWS * LENGTH, "n_epochs": 1, **options}
    watch = Watch(archive)
    model = algorithm("MlpPolicy", env, **QUICK, **options)
    model.learn(rollouts * ROWS * LENGTH, callback=[archive, watch])
    return model, watch


@pytest.mark.parametrize("branches", [1, 3, 4])
def test_the_buffer_is_whole_around_branchings(branches):
    archive = ForkFromArchive(tally_of, branches=branches, parents=2, record_every=5)
    model, watch = learn(population(), archive)
    assert archive.branchings == len(watch.sources) == 7
    for number, kept in enumerate(watch.rollouts):
        seen = np.concatenate([kept["observations"], kept["after"][None]])
        starts = np.concatenate([kept["episode_starts"], kept["ended"][None]]).astype(bool)
        actions = kept["actions"][..., 0]
        assert starts[0].all()  # in the first rollout as after each branching
        for t in range(LENGTH):
            went_on = ~starts[t + 1]
            before, after = seen[t][went_on], seen[t + 1][went_on]
            assert np.array_equal(after[:, 0], before[:, 0])
            assert np.array_equal(after[:, 1], before[:, 1] + 1)
            expected = (before[:, 2] * 3 + actions[t][went_on]) % TURN
            assert np.array_equal(after[:, 2], expected)
            assert (seen[t + 1][~went_on, 1:] == 0).all()
        assert starts[1:].any()
        begun = seen[0] if number else seen[0][:0]
        assert (begun[branches:, 1:] == 0).all()
        assert len(np.unique(begun[branches:, 0])) == max(len(begun) - branches, 0)
    for number, entry in watch.sources:
        first = watch.rollouts[number]["observations"][0][:branches]
        assert first[0, 2] == entry.promise  # the best row's tally
        assert (first[:, 1] > 0).any()
    assert model.num_timesteps == 8 * ROWS * LENGTH


def test_advantages_are_cut_at_a_branching_and_no_earlier():
    archive = ForkFromArchive(tally_of, record_every=5)
    _, watch = learn(population(), archive, rollouts=4, gamma=0.9, gae_lambda=0.8)
    for kept in watch.rollouts:
        gain = np.zeros(ROWS, dtype=np.float64)
        values = np.concatenate([kept["values"], kept["after_values"][None]])
        starts = np.concatenate([kept["episode_starts"], kept["ended"][None]])
        for t in reversed(range(LENGTH)):
            on = 1 - starts[t + 1]
            error = kept["rewards"][t] + 0.9 * values[t + 1] * on - values[t]
            gain = error + 0.9 * 0.8 * on * gain
            assert np.allclose(kept["advantages"][t], gain, atol=1e-4)


def test_between_branchings_rows_play_on():
    archive = ForkFromArchive(tally_of, every=3, record_every=5)
    _, watch = learn(population(), archive, rollouts=7)
    assert [number for number, _ in watch.sources] == [3, 6]
    for number in (1, 2, 4, 5):
        last, first = watch.rollouts[number - 1], watch.rollouts[number]
        assert np.array_equal(last["after"], first["observations"][0])
        assert np.array_equal(last["ended"], first["episode_starts"][0])


def test_the_archive_keeps_the_best_populations():
    best = []

    def score(observations):
        best.append(observations[:, 2].max())
        return observations[:, 2]

    archive = ForkFromArchive(score, size=3, record_every=1, branches=2)
    learn(population(2), archive, rollouts=3)
    assert len(best) == 3 * LENGTH
    assert [entry.promise for entry in archive.archive] == sorted(best)[-3:]


def test_a_child_inherits_what_a_monitor_counted():
    env = VecMonitor(population())
    archive = ForkFromArchive(tally_of, branches=2, record_every=7)
    model, watch = learn(env, archive, rollouts=2)
    _, entry = watch.sources[0]
    row = int(entry.scores.argmax())
    returns, lengths = entry.counted[env]
    archive._branch(entry)
    assert env.episode_lengths.tolist() == [lengths[row], lengths[row], 0, 0]
    assert env.episode_returns.tolist() == [returns[row], returns[row], 0, 0]
    assert env.episode_lengths[0] == model._last_obs[0, 1] > 0
    assert max(one["l"] for one in model.ep_info_buffer) <= 20


def test_normalized_observations_stay_normalized():
    env = VecNormalize(population(), norm_reward=True)
    archive = ForkFromArchive(branches=2, record_every=5)
    model, _ = learn(env, archive, rollouts=3)
    archive._branch(archive.archive[-1])
    slots = env.venv.population.observe()[env.venv.slots]
    assert np.array_equal(env.get_original_obs(), slots)
    assert np.array_equal(model._last_obs, env.normalize_obs(slots))
    assert (env.returns == 0).all()


def test_the_policys_values_are_the_default_score():
    archive = ForkFromArchive(size=2)
    model, _ = learn(population(), archive, algorithm=A2C, rollouts=2, n_steps=LENGTH)
    seen = torch.zeros(ROWS, 4)
    expected = model.policy.predict_values(seen).detach().numpy().ravel()
    assert np.allclose(archive._scores(seen.numpy()), expected)
    assert archive.branchings > 0


def test_what_cannot_be_branched_is_refused():
    def start(env, algorithm=PPO, **options):
        options = {"n_steps": 8, "batch_size": 8, **options} if algorithm is PPO else options
        algorithm("MlpPolicy", env, device="cpu", **options).learn(1, ForkFromArchive(branches=2))

    with pytest.raises(TypeError, match="expected an on-policy algorithm"):
        start(population(), DQN, buffer_size=10)
    with pytest.raises(TypeError, match="has a VecFrameStack"):
        start(VecFrameStack(population(), 2))
    with pytest.raises(TypeError, match="expected a BranchingVecEnv with `spare_slots`"):
        start(BranchingVecEnv(tallies(ROWS)))
    with pytest.raises(ValueError, match=r"`branches` is 2; expected 1 … 1"):
        start(population(1))
    with pytest.raises(ValueError, match="`size` is 0"):
        ForkFromArchive(size=0)
    with pytest.raises(ValueError, match="`score` returned"):
        learn(population(), ForkFromArchive(lambda seen: seen), rollouts=1)
