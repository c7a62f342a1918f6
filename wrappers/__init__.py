"""Wrappers around ordinary Gymnasium environments."""

from branchrt_gym.wrappers.branch_wrapper import BranchVectorWrapper, BranchWrapper
from branchrt_gym.wrappers.object_vector_env import ObjectVectorEnv, make_branching
from branchrt_gym.wrappers.snapshots import PROVIDERS, Snapshot, SnapshotProvider
from branchrt_gym.wrappers.statistics import RecordBranchStatistics
from branchrt_gym.wrappers.tree import Tree, TreePlan
from branchrt_gym.wrappers.tree_search import TreeSearch
from branchrt_gym.wrappers.verify import Verification, verify

__all__ = [
    "PROVIDERS",
    "BranchVectorWrapper",
    "BranchWrapper",
    "ObjectVectorEnv",
    "RecordBranchStatistics",
    "Snapshot",
    "SnapshotProvider",
    "Tree",
    "TreePlan",
    "TreeSearch",
    "Verification",
    "make_branching",
    "verify",
]
