"""Untrusted candidates in containers: `DockerVerifier`, and what it is made of."""

from branchrt_gym.evaluation.docker.container import Container, Outcome, Spec, Stopped
from branchrt_gym.evaluation.docker.engine import Engine, EngineError
from branchrt_gym.evaluation.docker.evaluation import Candidate, DockerTask, evaluate
from branchrt_gym.evaluation.docker.limits import Limits
from branchrt_gym.evaluation.docker.r2e import R2EVerifier
from branchrt_gym.evaluation.docker.swebench import SweBenchVerifier
from branchrt_gym.evaluation.docker.verifier import DockerVerifier
from branchrt_gym.evaluation.docker.warm import WarmPool

__all__ = [
    "Candidate",
    "Container",
    "DockerTask",
    "DockerVerifier",
    "Engine",
    "EngineError",
    "Limits",
    "Outcome",
    "R2EVerifier",
    "Spec",
    "Stopped",
    "SweBenchVerifier",
    "WarmPool",
    "evaluate",
]
