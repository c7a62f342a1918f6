"""Certification: an environment and the runtime against the independent scalar oracle.

Programs of resets, steps, forks, prunes, compactions and expansions run on a
`BranchingVectorEnv` and, in lockstep, on a list of oracle objects; every value is compared
exactly. `certify` runs a matrix of such programs and returns a `Certificate`.
"""

from branchrt_gym.certify.branch import Branch
from branchrt_gym.certify.certificate import Certificate, RowResult
from branchrt_gym.certify.certification import certify, run_row
from branchrt_gym.certify.compare import Comparison, compare_program
from branchrt_gym.certify.difference import Difference
from branchrt_gym.certify.matrix import MATRICES, Row, rows
from branchrt_gym.certify.operations import Chance
from branchrt_gym.certify.population import Outcome, ScalarPopulation
from branchrt_gym.certify.programs import PROGRAMS
from branchrt_gym.certify.search_model import ScalarSearch, beam_search

__all__ = [
    "MATRICES",
    "PROGRAMS",
    "Branch",
    "Certificate",
    "Chance",
    "Comparison",
    "Difference",
    "Outcome",
    "Row",
    "RowResult",
    "ScalarPopulation",
    "ScalarSearch",
    "beam_search",
    "certify",
    "compare_program",
    "rows",
    "run_row",
]
