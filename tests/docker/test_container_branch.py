"""Sessions against a real engine: what passes on, what a fork costs, and that nothing is left."""

from dataclasses import replace

import pytest
from sessions import files_of, made_by, sha256

pytest.importorskip("docker", reason="the docker SDK is not installed")

from branchrt_gym.branch_step import Expansion, Verdicts, branch_step
from branchrt_gym.evaluation.docker.container_branch import SESSION_LIMITS, ContainerBranches
from branchrt_gym.evaluation.docker.engine import Engine
from branchrt_gym.evaluation.docker.limits import Limits
from branchrt_gym.frontier import Frontier
from branchrt_gym.policies import Beam
from branchrt_gym.slots import DONE


@pytest.fixture
def branches(client, base_image):
    made = ContainerBranches(base_image, engine=Engine(client), seconds=20)
    yield made
    made.close()
    assert made_by(client, made) == (0, 0)


@pytest.mark.parametrize(("shell", "user"), [("bash", None), ("sh", "1000:1000")])
def test_directory_variables_and_files_pass_on_and_processes_do_not(
    client, base_image, shell, user
):
    limits = replace(SESSION_LIMITS, user=user)
    branches = ContainerBranches(base_image, engine=Engine(client), limits=limits, shell=shell)
    root = branches.open()
    home = "0\n/root\n" if user is None else "1000\n/home/runner\n"
    assert root.run("id -u; cd; pwd").output == home
    first = root.run(
        "mkdir -p '/tmp/a b' && cd '/tmp/a b' && export X='q\"1\n$Y' && y=2; echo hi >f"
    )
    assert (first.exit_code, first.output) == (0, "")
    seen = 'pwd; printf \'%s\\n\' "$X" "[$y]"; cat f'
    assert root.run(seen).output == '/tmp/a b\nq"1\n$Y\n[]\nhi\n'
    (child,) = root.fork()
    assert child.run(seen).output == root.run(seen).output == '/tmp/a b\nq"1\n$Y\n[]\nhi\n'
    root.run("(while :; do echo >>alive; sleep 0.05; done) & sleep 0.3; touch /dev/shm/x")
    alive = root.run("ls -A /dev/shm; wc -l <alive").output
    assert int(alive) > 0  # and no file in memory
    assert root.run("sleep 0.2; wc -l <alive").output == alive
    branches.close()
    assert made_by(client, branches) == (0, 0)


def test_branches_do_not_see_each_other(branches):
    root = branches.open()
    root.run("mkdir -p /w/gone; cd /w; echo root >who; ln who hard; chmod 600 who; touch gone/x")
    left, right = root.fork(2)
    left.run("echo left >who; rm -r gone")
    right.run("echo right >>who; touch new")
    seen = "cat who; ls; stat -c %a who"
    assert left.run(seen).output == "left\nhard\nwho\n600\n"
    assert right.run(seen).output == "root\nright\ngone\nhard\nnew\nwho\n600\n"
    assert root.run(seen).output == "root\ngone\nhard\nwho\n600\n"


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("exit 7", 7, ""),
        ("echo out; echo err >&2; echo out", 0, "out\nerr\nout\n"),
        ("false", 1, ""),
        ("no-such-program", 127, None),
        ("if then", 2, None),
        ("kill -9 $$", 137, None),
        ("cat", 0, ""),
        ("exec printf x", 0, "x"),
    ],
)
def test_exit_codes_and_output(branches, command, code, output):
    session = branches.open()
    session.run("cd /tmp; export A=1")
    found = session.run(command)
    assert found.exit_code == code
    assert output is None or found.output == output
    assert session.run("pwd; echo $A").output == "/tmp\n1\n"


def test_a_command_is_ended_with_all_that_it_started(branches):
    session = branches.open()
    for command in ("trap '' TERM; sleep 1000 & while :; do sleep 1; done", "f() { f | f & }; f"):
        session.run(f"{command}; sleep 1000", seconds=0.5)
        left = session.run("ps -e -o args=").output.splitlines()
        assert len(left) < 10 and "sleep 1000" not in left
    assert session.run("trap '' TERM; while :; do sleep 1; done", seconds=0.5).timed_out


def test_a_session_whose_clock_is_broken_is_stopped_from_outside(branches):
    session = branches.open()
    clock = "/usr/bin/timeout"
    session.run(f"rm {clock}; printf '#!/bin/bash\\nsleep 1000' >{clock}; chmod +x {clock}")
    found = session.run("true", seconds=0.1)
    assert found.exit_code is None and found.timed_out
    (child,) = session.fork()  # what it wrote can be committed still
    assert files_of(child)["usr/bin/timeout"][4] == sha256(b"#!/bin/bash\nsleep 1000")


def test_output_and_memory_are_bounded(client, base_image):
    limits = replace(SESSION_LIMITS, output=1000, printed=2**20, memory=64 * 2**20)
    branches = ContainerBranches(base_image, engine=Engine(client), limits=limits)
    session = branches.open()
    assert session.run("seq 100000 | head -c 500000").truncated
    flood = session.run("echo kept >/file; yes")
    assert flood.flooded and flood.exit_code is None
    assert session.run("cat /file").output == "kept\n"
    hungry = session.run("python -c 'bytearray(2**28)'; echo $?")
    assert hungry.memory_kills == 1 and hungry.output.endswith("137\n")
    branches.close()


def test_short_commands_do_not_end_the_container(branches):
    session = branches.open()
    name = session.start().name
    for number in range(20):  # each kills what the first process is starting meanwhile
        assert session.run(f"echo {number}").output == f"{number}\n"
    state = branches.engine.api.inspect_container(name)["State"]
    assert state["Running"] and session.run("ps -e -o stat=").output.count("Z") == 0


def test_hardened(branches):
    session = branches.open()
    script = "ls /sys/class/net; grep -E 'CapEff|NoNewPrivs' /proc/self/status; id -u; hostname"
    lines = session.run(script.replace("hostname", "uname -n")).output.split()
    assert lines == ["lo", "CapEff:", "0" * 16, "NoNewPrivs:", "1", "0", "branch"]
    settings = client_settings(session)
    assert settings["Memory"] == settings["MemorySwap"] == SESSION_LIMITS.memory
    assert not settings.get("Tmpfs") and not settings["Binds"] and not settings["ReadonlyRootfs"]


def client_settings(session) -> dict:
    return session.branches.engine.api.inspect_container(session.start().name)["HostConfig"]


def test_a_fork_commits_once_and_shares(branches, client):
    root = branches.open()
    root.run("head -c 20000000 /dev/urandom >/big")
    children = root.fork(3)
    assert made_by(client, branches) == (0, 1)  # what the root wrote is in one layer
    again = root.fork(2)
    assert {each.layer() for each in children + again} == {root.layer()}
    for number, child in enumerate(children):
        child.run(f"echo {number} >/mine")
    layers = [child.layer() for child in children]
    assert made_by(client, branches) == (0, 4)
    inspect = branches.engine.api.inspect_image
    assert [each.depth for each in layers] == [branches.base.depth + 2] * 3
    sizes = [inspect(each.image)["Size"] - inspect(root.layer().image)["Size"] for each in layers]
    assert all(0 < size < 10_000 for size in sizes)
    hidden = {inspect(each.image)["RootFS"]["Layers"][-2] for each in layers}
    assert len(hidden) == 1  # the 20 MB are stored once


def test_layers_are_bounded(client, base_image):
    branches = ContainerBranches(base_image, engine=Engine(client), max_layers=4)
    session = branches.open()
    depths, expected = [], ""
    session.run("mkdir /w; cd /w; export N=0; touch gone; echo x >/usr/bin/sync")
    for number in range(6):
        session.run(f"echo {number} >>log; export N=$((N + 1)); rm -f gone")
        expected += f"{number}\n"
        (session,) = session.fork()
        depths.append(session.layer().depth)
        assert session.run("cat log; ls; echo $N").output == f"{expected}log\n{number + 1}\n"
    assert depths == [2, 3, 4, 1, 2, 3]
    seen = session.run("echo $PATH $LANG; cat /usr/bin/sync").output
    assert seen == "/usr/local/bin:/usr/bin:/bin C.UTF-8\nx\n"
    fresh = branches.open()
    fresh.run("mkdir /w; cd /w; export N=0; touch gone; echo x >/usr/bin/sync")
    for number in range(6):
        fresh.run(f"echo {number} >>log; export N=$((N + 1)); rm -f gone")
        fresh.run("cat log; ls; echo $N")
    assert files_of(session) == files_of(fresh)
    branches.close()
    assert made_by(client, branches) == (0, 0)


def test_a_search_whose_commands_are_written_for_each_branch(branches):
    """The callable form of `branch_step`: any number of commands, none of them known before."""
    root = branches.open()
    root.run("mkdir /w; cd /w; echo 1 >n")
    frontier = Frontier(8, 1)
    frontier.start(seed=0, payloads=[(root, ())])

    def expand(batch):
        parents, payloads = [], []
        for row, (session, past) in enumerate(batch.payloads):
            commands = [f"echo $(($(cat n) {sign})) >n" for sign in ("* 2", "+ 3", "- 1")]
            for command, child in zip(commands, session.fork(3), strict=True):
                assert child.run(command).exit_code == 0
                parents.append(row)
                payloads.append((child, (*past, command)))
        return Expansion(parents, payloads, [0.0] * len(parents), [False] * len(parents))

    def verify(batch):
        numbers = [int(session.run("cat n").output) for session, _ in batch.payloads]
        return Verdicts([n == 11 for n in numbers], [-abs(11 - n) for n in numbers])

    for _ in range(3):
        frontier, _, _ = branch_step(frontier, expand, verify, Beam(2))
    (slot,) = (frontier.status == DONE).nonzero().squeeze(1).tolist()
    session, past = frontier.payloads[slot]
    assert len(past) == 3  # 1 * 2 * 2 ... + 3 is no closer than others before the last step
    fresh = branches.open()
    fresh.run("mkdir /w; cd /w; echo 1 >n")
    for command in past:
        fresh.run(command)
    assert fresh.run("cat n").output == "11\n"
    session.run("cat n")
    assert files_of(session) == files_of(fresh)


@pytest.mark.parametrize(
    ("limits", "why"),
    [(Limits(), "read-only root"), (SESSION_LIMITS, "`max_layers` is 1")],
)
def test_wrong_arguments(client, base_image, limits, why):
    with pytest.raises(ValueError, match=why):
        ContainerBranches(base_image, engine=Engine(client), limits=limits, max_layers=1)


def test_an_image_with_volumes_is_refused(client, base_image):
    made = client.containers.create(base_image)
    image = made.commit("branchrt/volumes", changes="VOLUME /data")
    made.remove()
    with pytest.raises(ValueError, match="with the volumes /data"):
        ContainerBranches("branchrt/volumes", engine=Engine(client))
    client.images.remove(image.id, force=True)
