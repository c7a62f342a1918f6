"""What sessions leave in a real engine when they, their process or the engine end: nothing."""

import os
import signal
import subprocess
import sys

import pytest
from sessions import made_by

from branchrt_gym.errors import ClosedError

pytest.importorskip("docker", reason="the docker SDK is not installed")

from branchrt_gym.evaluation.docker.container_branch import ContainerBranches
from branchrt_gym.evaluation.docker.engine import Engine


def test_pruned_and_dropped_branches_leave_nothing(client, base_image):
    branches = ContainerBranches(base_image, engine=Engine(client))
    root = branches.open()
    root.run("echo 1 >/a")
    (child,) = root.fork()
    child.run("echo 2 >/b")
    (grandchild,) = child.fork()
    grandchild.run("echo 3 >/c")
    assert made_by(client, branches) == (1, 2)
    child.prune()
    child.prune()
    with pytest.raises(ClosedError):
        child.run("true")
    with pytest.raises(ClosedError):
        child.fork()
    # The grandchild stands on the child's layer.
    assert grandchild.run("cat /a /b /c").output == "1\n2\n3\n"
    del grandchild
    branches.sweep()
    assert made_by(client, branches) == (0, 1)
    root.prune()
    assert made_by(client, branches) == (0, 0)


def test_a_restarted_engine_keeps_sessions(engine, client, base_image):
    branches = ContainerBranches(base_image, engine=Engine(client))
    session = branches.open()
    session.run("cd /tmp; export A=1; echo text >file")
    engine.kill()
    engine.start()
    assert session.run("cat file; echo $A").output == "text\n1\n"
    (child,) = session.fork()
    assert child.run("cat file").output == "text\n"
    branches.close()
    assert made_by(client, branches) == (0, 0)


KILLED = """
import sys
from docker import DockerClient
from branchrt_gym.evaluation.docker.container_branch import ContainerBranches
from branchrt_gym.evaluation.docker.engine import Engine
engine = Engine(DockerClient(base_url=sys.argv[1]), run="dead")
branches = ContainerBranches(sys.argv[2], engine=engine)
session, kept = branches.open(), []
for number in range(4):
    session.run(f"echo {number} >>/log")
    kept += session.fork(1)
    session.run("true")
    session = kept[-1]
session.run("echo last")
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_leaves_is_reaped_at_the_next_start(engine, client, base_image):
    command = [sys.executable, "-c", KILLED, engine.url, base_image]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        mine = {"label": "branchrt.run=dead"}
        assert len(client.api.containers(filters=mine)) == 4
        assert len(client.api.images(all=True, filters=mine)) == 4
        other = ContainerBranches(base_image, engine=Engine(client))  # spares the living
        assert len(client.api.images(all=True, filters=mine)) == 4
        other.close()
        os.kill(process.pid, signal.SIGKILL)
    ContainerBranches(base_image, engine=Engine(client)).close()
    assert client.api.containers(all=True, filters=mine) == []
    assert client.api.images(all=True, filters=mine) == []


def test_what_was_not_closed_goes_with_its_owner(client, base_image):
    branches = ContainerBranches(base_image, engine=Engine(client))
    session = branches.open()
    session.run("echo 1 >/a")
    (child,) = session.fork()
    child.run("true")
    label = {"label": f"branchrt.run={branches.engine.run}"}
    assert len(client.api.containers(filters=label)) == 1
    del branches, session, child
    assert client.api.containers(all=True, filters=label) == []
    assert client.api.images(all=True, filters=label) == []


def test_after_close(client, base_image):
    branches = ContainerBranches(base_image, engine=Engine(client))
    session = branches.open()
    branches.close()
    branches.close()
    for call in (branches.open, session.fork, lambda: session.run("true")):
        with pytest.raises(ClosedError):
            call()
