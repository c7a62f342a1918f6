"""`DockerVerifier` against a real engine: honest and hostile candidates, and what is left."""

import time

import pytest
from small_task import CANDIDATES, PASSES, RIGHT, SMALL, drain, patch

from branchrt_gym.evaluation import Attempt, Verdict
from branchrt_gym.evaluation.attempts import Verifier
from branchrt_gym.evaluation.docker import DockerTask, DockerVerifier, Engine

NAMES = list(CANDIDATES)


def test_each_candidate_is_graded_and_contained(make_verifier, client):
    outcomes = {}

    def observe(attempt, outcome, verdict):
        outcomes[NAMES[attempt.candidate]] = outcome

    verifier = make_verifier(list(CANDIDATES.values()), seconds=6.0, observe=observe)
    assert isinstance(verifier, Verifier)
    attempts = [Attempt(0, number) for number in range(len(NAMES))]
    verdicts = {NAMES[each.candidate]: what for each, what in drain(verifier, attempts).items()}

    assert {name: v.infrastructure for name, v in verdicts.items() if v.infrastructure} == {}
    assert {name for name, verdict in verdicts.items() if verdict.passed} == PASSES
    assert "empty" not in outcomes
    assert outcomes["right"].applied and outcomes["right"].exit_code == 0
    assert "FAILED" in outcomes["wrong"].output and outcomes["wrong"].exit_code == 1
    assert outcomes["does not apply"].applied is False
    assert "adder.py" in outcomes["does not apply"].log
    assert outcomes["hangs"].timed_out and outcomes["hangs"].exit_code == 124
    assert outcomes["will not die"].timed_out
    assert outcomes["eats memory"].memory_kills > 0 and not outcomes["eats memory"].timed_out
    assert all(outcomes[name].memory_kills == 0 for name in ("right", "wrong", "hangs"))
    lines = outcomes["prints"]
    assert lines.printed > 10_000_000 and lines.truncated and len(lines.output) < 70_000
    assert lines.output.startswith("line 0\n") and "line 999999" in lines.output
    assert "WROTE" not in outcomes["writes outside"].output
    assert outcomes["writes outside"].output.count("kept out") == 4
    assert "interfaces ['lo']" in outcomes["network"].output
    assert outcomes["network"].output.count("kept in") == 2
    assert outcomes["forks"].timed_out


def test_two_candidates_of_one_task_run_side_by_side(make_verifier):
    slow = "import time\ntime.sleep(2)\n"
    verifier = make_verifier([patch(slow + RIGHT), patch(slow)])
    begin = time.monotonic()
    found = drain(verifier, [Attempt(0, 0), Attempt(0, 1)])
    assert found[Attempt(0, 0)].passed and not found[Attempt(0, 1)].passed
    print(f"two attempts of two seconds took {time.monotonic() - begin:.1f} s")


def test_a_cancelled_attempt_stops_and_is_not_reported(make_verifier, client):
    verifier = make_verifier([CANDIDATES["hangs"], CANDIDATES["right"]], seconds=500.0, workers=1)
    hanging, right = Attempt(0, 0), Attempt(0, 1)
    verifier.submit([hanging, right])
    deadline = time.monotonic() + 60
    while not client.containers.list() and time.monotonic() < deadline:
        time.sleep(0.02)
    verifier.cancel([hanging])
    ((attempt, verdict),) = verifier.poll(60.0)
    assert attempt == right and verdict.passed
    assert verifier.poll(None) == []


def test_closing_stops_what_runs(make_verifier, client):
    verifier = make_verifier([CANDIDATES["hangs"]], seconds=500.0)
    verifier.submit([Attempt(0, 0)])
    time.sleep(0.5)
    verifier.close()
    assert client.containers.list(all=True) == []


def test_files_as_a_candidate(make_verifier):
    verifier = make_verifier([{"adder.py": RIGHT}, {"other.py": RIGHT}])
    found = drain(verifier, [Attempt(0, 0), Attempt(0, 1)])
    assert [found[Attempt(0, number)].passed for number in (0, 1)] == [True, False]


def test_an_empty_candidate_is_run_where_asked_for(make_verifier):
    seen = []
    verifier = make_verifier(
        [None],
        command="ls; exit 3",
        run_empty=True,
        observe=lambda a, outcome, v: seen.append(outcome),
    )
    found = drain(verifier, [Attempt(0, 0)])
    assert found[Attempt(0, 0)] == Verdict(False, seconds=seen[0].seconds)
    assert seen[0].exit_code == 3 and seen[0].applied is None
    assert seen[0].output == "README\nadder.py\ntest_adder.py\n"


def test_what_a_grader_says_counts(make_verifier):
    answers = iter([0.25, Verdict(True, score=3.0), "garbage"])
    verifier = make_verifier([patch(RIGHT)] * 3, grade=lambda outcome: next(answers), workers=1)
    found = list(drain(verifier, [Attempt(0, number) for number in range(3)]).values())
    assert [(each.passed, each.score) for each in found[:2]] == [(False, 0.25), (True, 3.0)]
    assert "garbage" in found[2].infrastructure


def test_an_image_that_is_not_there_is_named_before_the_run(client, adder_image):
    tasks = [DockerTask(image=name, command="true") for name in (adder_image, "no/such:1")]
    with pytest.raises(ValueError, match=r"1 of the tasks' images .* no/such:1\. Pull or build"):
        DockerVerifier(tasks, [[""]] * 2, client=client)


def test_a_full_disk_is_told_before_the_run(client, adder_image):
    engine = Engine(client, disk=1 << 60)
    task = DockerTask(image=adder_image, command="true")
    with pytest.raises(Exception, match=r"MiB are free in .*, the engine's data"):
        DockerVerifier([task], [[""]], engine=engine)


def test_the_version_depends_on_what_verdicts_depend_on(client, adder_image):
    def version(**changes):
        task = DockerTask(image=adder_image, **{"command": "true", **changes})
        verifier = DockerVerifier([task], [[""]], client=client)
        verifier.close()
        return verifier.version

    changes = [{"command": "false"}, {"files": {"a": "b"}}, {"seconds": 3.0}, {"limits": SMALL}]
    assert version() == version()
    assert len({version(), *(version(**each) for each in changes)}) == len(changes) + 1
