"""Certification end to end: the real environment passes, planted faults are caught."""

import dataclasses

import pytest
from lucky_counter import LuckyCounterOracle, faulty, registration

from branchrt_gym import BranchingVectorEnv, registrations
from branchrt_gym.certify import (
    ScalarPopulation,
    certify,
    compare_program,
    rows,
    run_row,
)
from branchrt_gym.certify.operations import Fork, Reset, Step


def test_deep_tree_quick():
    seen = []
    certificate = certify(
        "branchrt/DeepTree-v0", progress=lambda done, total, row: seen.append((done, total))
    )
    assert certificate.first_difference is None
    assert certificate.ok
    assert len(certificate.rows) >= 100
    assert certificate.comparisons > 1_000_000
    assert certificate.tiers == ("eager",)
    assert seen == [(done, len(certificate.rows)) for done in range(len(certificate.rows) + 1)]
    assert certificate.versions["torch"]


def test_an_environment_with_chance_and_nested_observations():
    known = registration()
    for row in rows(known)[::3]:
        result = run_row(known, row)
        assert result.difference is None, (row.title, result.difference.message)


def first_difference(fault):
    """Runs one root without a fork and without an early end under a planted fault."""
    known = registration(faulty(fault))
    seed = next(seed for seed in range(1000) if never_ends(seed))
    envs = BranchingVectorEnv(known.env_class(), num_envs=1, record_lineage=True)
    model = ScalarPopulation(known.oracle_class, 1)
    result = compare_program(envs, model, [Reset(seed), *[Step((0,))] * 9])
    assert result.difference is not None
    return result


def never_ends(seed):
    oracle = LuckyCounterOracle()
    oracle.reset(seed=seed)
    return not any(oracle.step(0)[2] for _ in range(8))


def test_a_wrong_reward_is_found_where_it_is_first_wrong():
    found = first_difference("reward").difference
    # Depth 3 before the step: the fourth step, operation 4, after which the depth is 4. The score
    # is part of the observation, which is compared first.
    assert found.field == "observation.paid[0]"
    assert (found.root, found.branch_id, found.slot) == (0, 0, 0)
    assert (found.operation, found.operation_name, found.step) == (4, "Step", 4)
    assert int(found.got) == int(found.expected) + 1


def test_a_wrong_observation_is_found():
    found = first_difference("observation").difference
    assert (found.field, found.operation, found.step) == ("observation.count", 1, 1)
    assert "root 0, branch 0" in found.message


def test_a_written_shared_field_is_named():
    found = first_difference("shared, behind torch's back").difference
    assert (found.field, found.got) == ("shared.table", "written by something else")
    found = first_difference("shared").difference  # the environment sees this one itself
    assert found.field == "error"
    assert "wrote into field `table`" in found.got


def test_the_operations_up_to_the_difference_replay():
    result = first_difference("reward")
    assert len(result.operations) == 5
    known = registration(faulty("reward"))
    envs = BranchingVectorEnv(known.env_class(), num_envs=1, record_lineage=True)
    again = compare_program(envs, ScalarPopulation(known.oracle_class, 1), result.operations)
    assert again.difference == result.difference


@pytest.mark.parametrize(
    "fault", ["reward", "shared", "shared, behind torch's back", "observation", "truncated"]
)
def test_faults_are_caught_by_the_quick_matrix(fault):
    known = registration(faulty(fault))
    for row in rows(known):
        if run_row(known, row).mismatches:
            return
    pytest.fail(f"no row caught the fault {fault!r}")


def test_an_error_of_the_environment_is_a_difference():
    known = registration()
    envs = BranchingVectorEnv(known.env_class(), num_envs=2, record_lineage=True)
    model = ScalarPopulation(known.oracle_class, 2)
    envs.fork = lambda *args, **kwargs: 1 / 0
    model.fork = lambda *args: []
    found = compare_program(envs, model, [Reset(1), Fork((0,))]).difference
    assert (found.field, found.operation) == ("error", 1)
    assert "ZeroDivisionError" in found.got


def test_rows_that_run_in_processes_give_the_same_certificate():
    chosen = rows(registrations()["branchrt/DeepTree-v0"])[::30]
    seen = []
    one, two = (
        certify(
            "branchrt/DeepTree-v0",
            jobs=jobs,
            rows=chosen,
            progress=lambda done, total, row: seen.append((done, row.number)),
        )
        for jobs in (1, 2)
    )
    assert one.ok
    numbers = [row.number for row in chosen]
    assert seen == 2 * [*enumerate(numbers), (len(chosen), numbers[-1])]

    def untimed(certificate):
        results = [dataclasses.replace(result, seconds=0) for result in certificate.rows]
        return dataclasses.replace(certificate, rows=results, seconds=0)

    assert untimed(one) == untimed(two)


def test_less_than_one_job_is_refused():
    with pytest.raises(ValueError, match="`jobs` is 0; expected 1 or more"):
        certify("branchrt/DeepTree-v0", jobs=0, rows=[])


def test_an_unknown_environment_lists_the_known():
    with pytest.raises(ValueError, match="branchrt/DeepTree-v0"):
        certify("branchrt/Nothing-v0")


def test_rows_can_be_given():
    certificate = certify("branchrt/DeepTree-v0", rows=[])
    assert certificate.rows == ()
    assert not certificate.ok
