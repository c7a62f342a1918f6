"""A container's limits, as the kernel and the engine state them, and commands that break them."""

import hashlib
import subprocess
import sys
import time

import pytest
from small_task import SMALL, drain

from branchrt_gym.errors import MissingExtraError
from branchrt_gym.evaluation import Attempt
from branchrt_gym.evaluation.docker import Container, Engine, EngineError, Limits, Spec


@pytest.fixture
def make_container(client, adder_image):
    made = []

    def make(limits=SMALL, image=adder_image, **spec):
        container = Container(Engine(client), Spec(image, "/testbed", limits, **spec), "test")
        made.append(container)
        return container

    yield make
    for container in made:
        container.remove()
    assert client.containers.list(all=True) == []


def test_nothing_is_allowed_that_was_not_asked_for(make_container, client):
    container = make_container()
    told = client.containers.get(container.name).attrs
    host = told["HostConfig"]
    assert host["NetworkMode"] == "none" and host["CapDrop"] == ["ALL"] and not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"] and not host["Privileged"]
    assert host["ReadonlyRootfs"] and not host["Binds"] and told["Mounts"] == []
    assert host["Memory"] == host["MemorySwap"] == SMALL.memory
    assert host["PidsLimit"] == SMALL.pids and host["LogConfig"]["Type"] == "none"
    assert set(host["Tmpfs"]) == {"/tmp", "/testbed"} and told["Config"]["User"] == "1000:1000"

    read = (
        "grep -E 'CapEff|NoNewPrivs' /proc/self/status; id -u; ulimit -n; ulimit -c; df -k . /tmp"
    )
    lines = container.run(read, 20).output.split("\n")
    assert lines[0].split() == ["CapEff:", "0000000000000000"]
    assert lines[1].split() == ["NoNewPrivs:", "1"]
    assert lines[2:5] == ["1000", "1024", "0"]
    assert [line.split()[1] for line in lines[6:8]] == ["32768", "32768"]  # KiB of each folder


def test_each_relaxation_is_asked_for(make_container, client):
    limits = Limits(read_only=False, user=None, capabilities=("CHOWN",), new_privileges=True)
    container = make_container(limits, env=(("WORD", "of mine"),))
    host = client.containers.get(container.name).attrs["HostConfig"]
    assert host["CapAdd"] == ["CHOWN"] and not host["SecurityOpt"] and not host["ReadonlyRootfs"]
    outcome = container.run("id -u; touch /planted && chown 7 /planted; pwd; echo $WORD", 20)
    assert outcome.output == "0\n/testbed\nof mine\n" and outcome.exit_code == 0


def test_the_working_directory_belongs_to_the_user_and_is_bounded(make_container):
    container = make_container()
    done = container.run("git status --short; stat -c %u:%g adder.py; pwd", 20)
    assert done.output == "1000:1000\n/testbed\n"
    full = container.run("head -c 100m /dev/zero > big", 20)
    assert full.exit_code == 1 and "No space left" in full.output


def test_a_command_reads_its_input_and_keeps_its_exit_code(make_container):
    container = make_container()
    data = bytes(range(256)) * 4096
    outcome = container.run(["sha256sum"], 20, stdin=data)
    assert outcome.output.split()[0] == hashlib.sha256(data).hexdigest()
    assert container.run("exit 41", 20).exit_code == 41
    assert container.run("echo out; echo err >&2", 20).output in ("out\nerr\n", "err\nout\n")
    assert container.run("echo $A", 20, env={"A": "b"}).output == "b\n"


def test_what_a_command_leaves_behind_does_not_hold_it(make_container):
    container = make_container()
    begin = time.monotonic()
    outcome = container.run("echo first; sleep 300 & exit 0", 250)
    assert outcome.exit_code == 0 and outcome.output == "first\n" and not outcome.timed_out
    assert time.monotonic() - begin < 200


def test_a_command_that_closes_its_output_is_waited_for(make_container):
    outcome = make_container().run("exec >&- 2>&-; sleep 1; exit 9", 60)
    assert outcome.exit_code == 9 and outcome.seconds >= 1


def test_an_output_without_end_is_stopped(make_container):
    limits = Limits(memory=64 << 20, work=1 << 20, printed=4 << 20, output=1000)
    outcome = make_container(limits).run("yes", 250)
    assert outcome.flooded and outcome.exit_code is None and not outcome.finished
    assert "bytes of output left out" in outcome.output and len(outcome.output) < 1100


def test_the_outside_acts_where_the_inside_does_not(make_image, make_verifier, client):
    from branchrt_gym.evaluation.docker import DockerTask, DockerVerifier

    never = '#!/bin/sh\nshift 3\nexec "$@"\n'
    script = (
        "mv /in/timeout /usr/bin/timeout; chmod 755 /usr/bin/timeout; mkdir /testbed; rm -r /in"
    )
    image = make_image("branchrt/no-timeout:1", script, {"/in/timeout": never})
    task = DockerTask(image=image, command="sleep 1000")
    seen = []
    with DockerVerifier(
        [task],
        [[{"a": "b"}]],
        seconds=1.0,
        client=client,
        observe=lambda *each: seen.append(each[1]),
    ) as verifier:
        ((_, verdict),) = drain(verifier, [Attempt(0, 0)]).items()
    assert not verdict.passed and verdict.infrastructure is None
    assert seen[0].timed_out and seen[0].exit_code is None
    assert client.containers.list(all=True) == []


def test_memory_kills_are_counted_from_inside_too(make_container):
    container = make_container()
    hog = ["python", "-c", "kept = [bytearray(1 << 20) for _ in range(1000)]"]
    assert container.run(["true"], 20).memory_kills == 0
    assert container.run(hog, 60).memory_kills == 1
    container._memory.file = None  # as with an engine on another machine
    assert container.run(["true"], 20).memory_kills == 0
    assert container.run(hog, 60).memory_kills == 1


def test_a_container_that_someone_removes_is_no_verdict(make_container, client):
    container = make_container()
    client.containers.get(container.name).kill()
    with pytest.raises(EngineError, match="409"):
        container.run("true", 20)
    container = make_container()
    pid = client.containers.get(container.name).attrs["State"]["Pid"]
    killer = subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {pid}"])
    with pytest.raises(EngineError, match="ended while a command ran"):
        container.run("sleep 60", 100)
    killer.wait()


def test_a_working_directory_too_large_for_memory_is_told(client, make_container):
    with pytest.raises(EngineError, match="was not copied into memory, `work` is 4096 bytes"):
        make_container(Limits(work=4096))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"memory": 0}, "`memory` is 0; expected a number above 0"),
        ({"memory": 1024}, "`memory` is 1024 bytes; expected 6291456"),
        ({"cpus": -1.0}, r"`cpus` is -1\.0"),
        ({"user": "runner"}, "`user` is 'runner'; expected numbers"),
    ],
)
def test_limits_that_are_none_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        Limits(**arguments)


def test_an_engine_that_is_not_there_is_told(monkeypatch, tmp_path):
    pytest.importorskip("docker.client", reason="the docker SDK is not installed")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngineError, match=r"no Docker engine answers.* DOCKER_HOST") as caught:
        Engine()
    assert caught.value.lost


def test_the_extra_is_named_where_the_sdk_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingExtraError, match=r"branchrt-gym\[docker\]"):
        Engine()


def test_a_run_has_a_name(client):
    with pytest.raises(ValueError, match="`run` is 'a b'; expected letters and digits"):
        Engine(client, run="a b")
