"""Evaluation: roots × candidates against verifiers, paying for no root that is decided."""

from branchrt_gym.evaluation.attempts import (
    Attempt,
    BatchVerifier,
    Verdict,
    Verdicts,
    Verifier,
    attempt_digest,
)
from branchrt_gym.evaluation.bandit import Bandit
from branchrt_gym.evaluation.decisions import Decisions
from branchrt_gym.evaluation.eval_frontier import EvalFrontier
from branchrt_gym.evaluation.host_controller import HostController
from branchrt_gym.evaluation.http import HttpVerifier
from branchrt_gym.evaluation.journal import Journal, JournalError
from branchrt_gym.evaluation.orderings import (
    CandidateTable,
    LearningOrdering,
    Ordering,
    current_chronological,
    low_cost_first,
    low_empty_first,
    manifest_order,
    nonempty_patch_first,
    oracle_best,
    random_order,
)
from branchrt_gym.evaluation.pool import PoolVerifier
from branchrt_gym.evaluation.profile import Profile, layer
from branchrt_gym.evaluation.result import EvalResult
from branchrt_gym.evaluation.verifiers import CallableVerifier

__all__ = [
    "Attempt",
    "Bandit",
    "BatchVerifier",
    "CallableVerifier",
    "CandidateTable",
    "Decisions",
    "EvalFrontier",
    "EvalResult",
    "HostController",
    "HttpVerifier",
    "Journal",
    "JournalError",
    "LearningOrdering",
    "Ordering",
    "PoolVerifier",
    "Profile",
    "Verdict",
    "Verdicts",
    "Verifier",
    "attempt_digest",
    "current_chronological",
    "layer",
    "low_cost_first",
    "low_empty_first",
    "manifest_order",
    "nonempty_patch_first",
    "oracle_best",
    "random_order",
]
