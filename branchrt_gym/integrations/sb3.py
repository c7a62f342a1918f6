"""Stable-Baselines3 over any Gymnasium vector environment, branching ones too.

vec_env = BranchingVecEnv(gymnasium.make_vec(id, 8, "sync", {"autoreset_mode": "SameStep"}))
model = stable_baselines3.PPO("MlpPolicy", VecMonitor(vec_env)).learn(100_000)
"""

from branchrt_gym.errors import MissingExtraError

try:
    import stable_baselines3  # noqa: F401
except ImportError as error:
    raise MissingExtraError("sb3", "stable_baselines3") from error

from branchrt_gym.integrations.places import Saved
from branchrt_gym.integrations.sb3_archive import ForkFromArchive
from branchrt_gym.integrations.sb3_vec_env import BranchingVecEnv

__all__ = ["BranchingVecEnv", "ForkFromArchive", "Saved"]
