"""BranchRT: the rollout data plane for branching reinforcement learning.

A Gymnasium-compatible vector environment whose population can fork and prune, on a frontier that
stores what branches share once.
"""

import gymnasium

from branchrt_gym.branch_step import Batch, Expansion, Verdicts, branch_step
from branchrt_gym.contract import (
    BranchEnv,
    Branches,
    Contract,
    Field,
    Transition,
    TransitionKernel,
    branch,
    log,
    paged,
    read_shared,
    shared,
)
from branchrt_gym.envs.blackjack import Blackjack
from branchrt_gym.envs.blackjack_oracle import BlackjackOracle
from branchrt_gym.envs.deep_tree import DeepTree
from branchrt_gym.envs.deep_tree_oracle import DeepTreeOracle
from branchrt_gym.envs.edit import Edit
from branchrt_gym.envs.edit_oracle import EditOracle
from branchrt_gym.envs.shared_counter import SharedCounter
from branchrt_gym.envs.shared_counter_oracle import SharedCounterOracle
from branchrt_gym.frontier import Frontier
from branchrt_gym.oracle import Oracle
from branchrt_gym.pages import NO_WRITE, Pages, PageWrites
from branchrt_gym.policies import Beam, BestFirst
from branchrt_gym.registry import register, registrations
from branchrt_gym.roots import Roots, make_roots
from branchrt_gym.saving import Snapshot, load, save
from branchrt_gym.search import SearchResult, search
from branchrt_gym.slots import DONE, FREE, LIVE, NO_BRANCH, NO_ROOT, NO_SLOT
from branchrt_gym.trajectories import Trajectories
from branchrt_gym.vector_env import BranchingVectorEnv
from branchrt_gym.wrappers.branch_wrapper import BranchWrapper
from branchrt_gym.wrappers.object_vector_env import make_branching

__all__ = [
    "DONE",
    "FREE",
    "LIVE",
    "NO_BRANCH",
    "NO_ROOT",
    "NO_SLOT",
    "NO_WRITE",
    "Batch",
    "Beam",
    "BestFirst",
    "Blackjack",
    "BranchEnv",
    "BranchWrapper",
    "Branches",
    "BranchingVectorEnv",
    "Contract",
    "DeepTree",
    "Edit",
    "Expansion",
    "Field",
    "Frontier",
    "Oracle",
    "PageWrites",
    "Pages",
    "Roots",
    "SearchResult",
    "SharedCounter",
    "Snapshot",
    "Trajectories",
    "Transition",
    "TransitionKernel",
    "Verdicts",
    "branch",
    "branch_step",
    "load",
    "log",
    "make_branching",
    "make_roots",
    "paged",
    "read_shared",
    "register",
    "registrations",
    "save",
    "search",
    "shared",
]

__version__ = "0.1.0"

register(
    "branchrt/DeepTree-v0",
    DeepTree,
    DeepTreeOracle,
    matrix={
        "width": (1, 97, 4096, 262_144),
        "fanout": (1, 2, 3, 4, 7),
        "depth": (1, 2, 5, 12, 33),
        "value_range": (1, 1000, 16_383),
        "starts": (1, 8),
        "window": (1, 9),
    },
    full={
        "width": (1, 97, 4096, 262_144, 1_000_003),
        "fanout": (1, 2, 3, 4, 7, 16),
        "depth": (1, 2, 5, 12, 33, 100),
        "starts": (1, 8, 50),
        "window": (1, 9, 65),
    },
)

register(
    "branchrt/SharedCounter-v0",
    SharedCounter,
    SharedCounterOracle,
    matrix={
        "width,mutation": ((1, 0), (97, 0), (65_536, 0), (1, 100), (97, 5), (4096, 100)),
        "actions": (1, 2, 4),
        "depth": (1, 5, 32),
        "target": (1, 3, 20),
    },
    full={
        "width,mutation": ((1, 0), (97, 5), (97, 100), (4096, 20), (65_536, 0), (1_000_003, 0)),
        "actions": (1, 2, 4, 9),
        "depth": (1, 5, 32, 100),
        "target": (1, 3, 20, 50),
    },
)

register(
    "branchrt/Blackjack-v0",
    Blackjack,
    BlackjackOracle,
    matrix={"natural": (False, True), "sab": (False, True)},
)

register(
    "branchrt/Edit-v0",
    Edit,
    EditOracle,
    matrix={
        "width": (97, 1000, 4096),
        "spans": (1, 3),
        "span": (5, 32),
        "choices": (1, 2, 4),
        "depth": (1, 5, 32),
        "window": (1, 16, 97),
        "page_size": (None, 7, 64, 1000),
    },
    full={
        "width": (1031, 262_144),
        "spans": (1, 3, 16),
        "span": (5, 64),
        "window": (1, 128),
        "page_size": (None, 512, 4096),
    },
)

# A shell has no oracle: it is an environment, but not one to certify.
gymnasium.register(
    "branchrt/Shell-v0",
    entry_point="branchrt_gym.wrappers.shell:ShellEnv",
    vector_entry_point="branchrt_gym.wrappers.shell:make_shells",
)
