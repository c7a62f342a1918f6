"""R2E-Gym's rows in containers: its tests, and the reward that `RepoEnv`'s runtime would give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from branchrt_gym.errors import BranchRTError
from branchrt_gym.evaluation.attempts import Verdict
from branchrt_gym.evaluation.docker.container import Outcome
from branchrt_gym.evaluation.docker.evaluation import Candidate, DockerTask
from branchrt_gym.evaluation.docker.limits import Limits
from branchrt_gym.evaluation.docker.verifier import DockerVerifier

__all__ = ["R2ERowError", "R2EVerifier", "r2e_reward", "r2e_statuses", "r2e_task"]

SUMMARY = "short test summary info"
COLOUR = re.compile(r"\x1b\[\d+m")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m|\r")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The tests lie out of the candidate's sight, and are put into the repository for this run alone.
SCRIPT = """
exec 2>&1
for tests in /root/r2e_tests /r2e_tests; do
  if [ -d $tests ]; then rm -rf r2e_tests; ln -s $tests r2e_tests; break; fi
done
for script in /root/run_tests.sh /run_tests.sh /testbed/run_tests.sh; do
  if [ -f $script ]; then PATH=/testbed/.venv/bin:$PATH exec bash $script; fi
done
echo "the image has no run_tests.sh"
exit 127
"""


class R2ERowError(BranchRTError, ValueError):
    """A row of R2E-Gym lacks what it is graded by."""


def r2e_statuses(log: str) -> dict[str, str]:
    """Returns each test's status by its name without the file, from pytest's short summary."""
    found: dict[str, str] = {}
    _, there, rest = log.partition(SUMMARY)
    summary = rest.split(SUMMARY)[0].strip() if there else ""
    for line in summary.split("\n"):
        name = ".".join(line.split("::")[1:])
        if "PASSED" in line:
            found[name] = "PASSED"
        elif "FAILED" in line:
            found[name.split(" - ")[0]] = "FAILED"
        elif "ERROR" in line:
            found[name.split(" - ")[0]] = "ERROR"
    return found


def r2e_reward(log: str, expected_output_json: str) -> float:
    """Returns 1.0 where the tests' statuses are the expected ones, else 0.0.

    All of them, failures included, and no others; the exit code says nothing. Names are compared
    without colours and what follows " - "; what has no name counts, and is compared with nothing.
    """
    found = _named(r2e_statuses(ESCAPES.sub("", log)))
    expected = _named(json.loads(expected_output_json))
    same = all(expected.get(name) == status for name, status in found.items() if name)
    return float(len(found) == len(expected) and same)


def _named(statuses: Mapping[str, str]) -> dict[str, str]:
    plain = {COLOUR.sub("", name): status for name, status in statuses.items()}
    return {name.split(" - ")[0]: plain[name] for name in sorted(plain)}


def r2e_task(row: Mapping[str, Any], seconds: float = 300.0) -> DockerTask:
    """Returns a row as a task.

    Args:
        row: Has `docker_image` and `expected_output_json`; what else it has is not looked at.
        seconds: What its tests may take.

    Raises:
        R2ERowError: If it lacks one, or is one of SWE-bench's.
    """
    name = row.get("docker_image")
    expected = row.get("expected_output_json")
    if not isinstance(name, str) or not isinstance(expected, str):
        raise R2ERowError(
            f"a row has `docker_image` {name!r} and `expected_output_json` {expected!r}; expected "
            "texts, an image and a JSON object of each test's status"
        )
    if "swebench" in name or "swesmith" in name:
        raise R2ERowError(
            f"`docker_image` is {name!r}, which R2E-Gym grades by other rules; expected an image "
            "with r2e_tests, or give a SWE-bench row to a `SweBenchVerifier`"
        )
    try:
        if not isinstance(json.loads(expected), dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise R2ERowError(f"`expected_output_json` of {name} cannot be read: {error}") from error
    return DockerTask(
        image=name,
        command=SCRIPT,
        seconds=seconds,
        apply=('git apply --whitespace=fix "$PATCH" || true',),
        env={"PATH": f"/root/.venv/bin:/root/.local/bin:/root/.cargo/bin:{PATH}"},
        grade=partial(_grade, expected),
        name=name,
    )


def _grade(expected: str, outcome: Outcome) -> Verdict:
    reward = r2e_reward(outcome.output, expected)
    return Verdict(reward == 1.0, score=reward)


class R2EVerifier(DockerVerifier):
    """Verifies patches of R2E-Gym's rows.

    As in `RepoEnv`, a patch that does not apply leaves the repository as it is, and its tests run.
    Tests past their time have failed.

    Args:
        rows: One for each root.
        candidates: As `DockerVerifier` has them.
        seconds: What a row's tests may take.
        limits: By default the hard ones, but for the user: R2E-Gym's images keep their tools in
            `/root`, so it is root, without capabilities.
        run_empty: Run the tests for empty candidates too, as `RepoEnv` does.
        more: As `DockerVerifier` has it.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        candidates: Sequence[Sequence[Candidate]] | Callable[[int, int], Candidate],
        *,
        seconds: float = 300.0,
        limits: Limits | None = None,
        run_empty: bool = True,
        **more: Any,
    ) -> None:
        """Checks rows, engine and images; see `DockerVerifier`."""
        limits = Limits(user="0:0") if limits is None else limits
        tasks = [r2e_task(row, seconds) for row in rows]
        super().__init__(tasks, candidates, limits=limits, run_empty=run_empty, **more)
