"""Nothing stays behind: killed runners, killed engines, and whose containers are spared."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_task import CANDIDATES, RIGHT, drain, patch

from branchrt_gym.evaluation import Attempt
from branchrt_gym.evaluation.docker import Engine
from branchrt_gym.evaluation.docker.engine import OWNER, RUN, owner

ATTEMPTS = int(os.environ.get("BRANCHRT_DOCKER_ATTEMPTS", "24"))
WORKERS = 8 if ATTEMPTS >= 200 else 4


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_the_next_start_removes_what_a_killed_runner_left(
    engine, client, adder_image, make_verifier
):
    runner = Path(__file__).with_name("owned_runner.py")
    process = subprocess.Popen(
        [sys.executable, "-P", runner, engine.url, adder_image],
        env={**os.environ, "PYTHONPATH": str(runner.parent)},
    )
    try:
        until(lambda: len(client.containers.list()) == 3)
        living = {each.name for each in client.containers.list()}
        other = make_verifier([CANDIDATES["right"]])
        assert drain(other, [Attempt(0, 0)])[Attempt(0, 0)].passed
        other.close()
        assert {each.name for each in client.containers.list()} == living
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert len(client.containers.list()) == 3
    make_verifier([CANDIDATES["right"]])
    assert client.containers.list(all=True) == []


def labelled(client, image, **labels):
    return client.containers.create(image, ["true"], network_mode="none", labels=labels)


def test_a_reaper_removes_what_dead_owners_left_of_every_kind(client, adder_image):
    boot, namespace, pid, started = owner().split("/")
    assert int(pid) == os.getpid()
    dead = "/".join((boot, namespace, pid, str(int(started) - 1)))  # the number was used before
    gone = subprocess.Popen(["true"])
    gone.wait()
    elsewhere = "/".join(("another boot", namespace, str(gone.pid), "1"))
    engine = Engine(client)
    kept = [
        labelled(client, adder_image),
        labelled(client, adder_image, **engine.labels("mine")),
        labelled(client, adder_image, **{OWNER: elsewhere}),
    ]
    left = labelled(client, adder_image, **{OWNER: dead, RUN: "r"})
    labelled(client, adder_image, **{OWNER: "/".join((boot, namespace, str(gone.pid), "1"))})
    volume = client.volumes.create("left", labels={OWNER: dead})
    image = client.images.get(left.commit(changes=f"LABEL {OWNER}={dead}").id)

    removed = engine.reap()
    assert len(removed) == 4 and f"container {left.name}" in removed
    assert {f"volume {volume.name}", f"image {image.id}"} < set(removed)
    assert {each.id for each in client.containers.list(all=True)} == {each.id for each in kept}
    assert engine.reap() == []
    assert engine.reap(engine.run) == [f"container {kept[1].name}"]
    for each in kept:
        engine.remove(each.id)
        engine.remove(each.id)  # gone already: nothing happens
    assert client.volumes.list() == []


@pytest.mark.slow
def test_no_verdict_is_lost_or_wrong_where_the_engine_is_killed(engine, make_verifier, client):
    names = ["right", "wrong", "does not apply", "deletes the test", "writes outside"]
    verifier = make_verifier(
        [CANDIDATES[name] for name in names],
        roots=-(-ATTEMPTS // len(names)),
        workers=WORKERS,
        warm=2,
        retries=4,
        seconds=60.0,
    )
    attempts = [Attempt(number // len(names), number % len(names)) for number in range(ATTEMPTS)]
    kills = []
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as other:  # the engine must be started by the main thread
        running = other.submit(drain, verifier, attempts)
        for _ in range(2):
            time.sleep(ATTEMPTS / 12)
            until(lambda: client.api.containers() or running.done())
            kills.append(round(time.monotonic() - begin, 1))
            engine.kill()
            time.sleep(0.5)
            engine.start()
        found = running.result()
    wall = time.monotonic() - begin

    print(f"{ATTEMPTS} attempts, {WORKERS} at once, engine killed at {kills} s: {wall:.1f} s")
    assert {each: verdict.infrastructure for each, verdict in found.items()} == dict.fromkeys(
        attempts
    )
    for attempt, verdict in found.items():
        assert verdict.passed == (names[attempt.candidate] in ("right", "writes outside")), attempt
    assert kills[-1] < wall


def test_an_orderly_stop_of_the_engine_is_no_verdict_either(engine, make_verifier, client):
    slow = patch("import time\ntime.sleep(4)\n" + RIGHT)
    seen = []
    verifier = make_verifier([slow], observe=lambda *each: seen.append(each), warm=1)
    verifier.submit([Attempt(0, 0)])
    until(lambda: any(each["State"] == "running" for each in client.api.containers()))
    time.sleep(2)
    engine.stop()  # which kills what runs, with the exit code of a candidate that was killed
    engine.start()
    ((_, verdict),) = verifier.poll(100.0)
    assert verdict.passed and verdict.infrastructure is None and len(seen) == 1
