"""The warm pool: what it holds, that a container serves once, and what it saves (printed)."""

import statistics
import time

import pytest
from small_task import CANDIDATES, SMALL, drain

from branchrt_gym.evaluation import Attempt
from branchrt_gym.evaluation.docker import Engine, Spec, WarmPool


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def pool(client, adder_image):
    engine = Engine(client)
    pool = WarmPool(engine, 2)
    yield pool
    pool.close()
    pool.close()
    assert engine.reap(engine.run) == []


def test_paused_containers_are_kept_and_replaced(pool, client, adder_image):
    spec = Spec(adder_image, "/testbed", SMALL)
    assert pool.take(spec) is None
    pool.want([spec])
    until(lambda: pool.count(spec) == 2)
    assert [each.status for each in client.containers.list()] == ["paused"] * 2
    container = pool.take(spec)
    assert client.containers.get(container.name).status == "running"
    assert (
        container.run("cat README; touch made; ls", 10).output == "adds\nREADME\nadder.py\nmade\n"
    )
    until(lambda: pool.count(spec) == 2)
    assert "made" not in pool.take(spec).run("ls", 10).output
    assert len(client.containers.list(all=True)) >= 3  # what was taken is the caller's to remove
    for each in client.containers.list(filters={"status": "running"}):
        each.remove(force=True)


def test_a_spec_wanted_later_takes_a_place(pool, adder_image):
    first, second, third = (Spec(adder_image, path, SMALL) for path in ("/a", "/b", "/testbed"))
    pool.want([first])
    until(lambda: pool.count(first) == 2)
    pool.want([second, third])
    until(lambda: (pool.count(first), pool.count(second), pool.count(third)) == (0, 1, 1))


def test_a_container_that_died_meanwhile_is_not_given_out(pool, client, adder_image):
    spec = Spec(adder_image, "/testbed", SMALL)
    pool.want([spec])
    until(lambda: pool.count(spec) == 2)
    for each in client.containers.list():
        each.remove(force=True)
    pool.close()
    assert pool.take(spec) is None


def test_from_issue_to_the_first_byte(make_verifier):
    """Cold and warm in one run, the patch applied in both; attempts arrive one after the other."""
    begin, first, taken = {}, {}, []

    def observe(attempt, outcome, verdict):
        first[attempt] = outcome.first_byte
        assert outcome.applied

    def latency(warm):
        verifier = make_verifier(
            [CANDIDATES["right"]] * 12,
            command="echo; python test_adder.py",
            warm=warm,
            workers=1,
            observe=observe,
        )
        spec = verifier._tasks[0].spec(verifier._limits)
        for number in range(12):
            until(lambda: verifier._pool.count(spec) == warm)
            attempt = Attempt(0, number)
            begin[attempt] = time.monotonic()
            assert drain(verifier, [attempt])[attempt].passed
        taken.append(verifier._pool.taken)
        return [1e3 * (first[each] - begin[each]) for each in begin]

    cold, warm = latency(0), latency(2)
    assert taken == [0, 12]  # the path that was taken
    middle = [statistics.median(each) for each in (cold, warm)]
    print(
        f"issue to first byte, median of 12: cold {middle[0]:.0f} ms [{min(cold):.0f}, "
        f"{max(cold):.0f}], warm {middle[1]:.0f} ms [{min(warm):.0f}, {max(warm):.0f}], "
        f"{middle[1] / middle[0]:.0%}"
    )
