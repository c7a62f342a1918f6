"""`branchrt/Shell-v0`: forks, expansion and tree search over real shells, checked by replay."""

import gc

import gymnasium
import numpy as np
import pytest
from sessions import files_of, made_by

from branchrt_gym.errors import NotResetError

pytest.importorskip("docker", reason="the docker SDK is not installed")

from branchrt_gym.branch_step import Verdicts
from branchrt_gym.evaluation.docker.container_branch import ContainerBranches
from branchrt_gym.evaluation.docker.engine import Engine
from branchrt_gym.policies import Beam
from branchrt_gym.wrappers.branch_wrapper import BranchWrapper
from branchrt_gym.wrappers.shell import ShellEnv, make_shells
from branchrt_gym.wrappers.tree_search import TreeSearch

# A lock with two wheels and a hand that moves it; opened by 2 1 from 0 0.
COMMANDS = [
    "cd /lock && mkdir -p turned && touch turned/$HAND && export HAND=right",
    "cd /lock; echo $(($(cat $HAND) + 1)) >$HAND; tail -n 1 left right",
    "cd /; export HAND=left; pwd",
]
GOAL = '[ "$(cat /lock/left)$(cat /lock/right)" = 21 ]'


@pytest.fixture(scope="module")
def lock_image(make_image) -> str:
    return make_image("branchrt/lock:1", "mkdir /lock; echo 0 | tee /lock/left >/lock/right")


@pytest.fixture
def branches(client, lock_image):
    made = ContainerBranches(lock_image, engine=Engine(client), seconds=20)
    yield made
    made.close()
    assert made_by(client, made) == (0, 0)


def replayed(branches, env: ShellEnv) -> None:
    """Compares a branch with its commands in a fresh container."""
    fresh = branches.open()
    for command in env.commands_run:
        fresh.run(command)
    probe = env.session.fork()[0]
    seen = 'pwd; echo "$HAND"'
    assert probe.run(seen).output == fresh.run(seen).output
    assert files_of(probe) == files_of(fresh)


def start(branches, **options):
    envs = make_shells(branches, COMMANDS, goal=GOAL, output_bytes=256, num_roots=1, **options)
    observation, _ = envs.reset(seed=0)
    assert observation["output"].shape == (options["num_envs"], 256)
    for env in envs.envs[:1]:
        env.unwrapped.run("export HAND=left")
    return envs


def test_one_environment_takes_text_and_forks(branches):
    env = BranchWrapper(ShellEnv(branches))
    with pytest.raises(NotResetError):
        env.unwrapped.run("true")
    assert env.snapshot_provider == "own"
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space
    observation, reward, *ended, info = env.step("mkdir -p /w; cd /w; echo é >f; cat f; exit 3")
    assert (observation["exit_code"], info["exit_code"], reward, ended) == (3, 3, 0, [False] * 2)
    assert observation in env.observation_space and info["output"] == "é\n"
    assert bytes(observation["output"][:4]) == "é\n".encode() + b"\0"
    left, right = env.fork(2)
    taken = env.snapshot()
    left.step("echo left >f")
    env.step("rm f; cd /")
    assert right.step("pwd; cat f")[-1]["output"] == "/w\né\n"
    assert left.step("pwd; cat f")[-1]["output"] == "/w\nleft\n"
    assert env.step("pwd; ls /w")[-1]["output"] == "/\n"
    np.testing.assert_equal(env.restore(taken), observation)
    assert env.step("pwd; cat f")[-1]["output"] == "/w\né\n"
    for each in (env, left, right):
        replayed(branches, each.unwrapped)
        each.close()


def test_a_population_steps_forks_and_prunes(branches):
    envs = start(branches, num_envs=4)
    children = envs.fork([0], counts=2)
    assert children.tolist() == [1, 2]
    observations, rewards, *_, infos = envs.step(np.array([1, 0, 2, 0]))
    expected = "==> left <==\n1\n\n==> right <==\n0\n"
    assert infos["output"][0] == expected and infos["output"][2] == "/\n"
    assert bytes(observations["output"][0]).rstrip(b"\0").decode() == expected
    assert observations["exit_code"].tolist() == [0, 0, 0, 0] and not rewards.any()
    taken = envs.snapshot()
    envs.step(np.array([1, 1, 1, 0]))
    envs.prune([2])
    for env in envs.envs[:2]:
        replayed(branches, env.unwrapped)
    restored = envs.restore(taken)
    np.testing.assert_equal(restored, observations)
    *_, infos = envs.step(np.array([1, 2, 2, 0]))
    assert infos["output"][0] == "==> left <==\n2\n\n==> right <==\n0\n"
    envs.close()


def test_branch_step_with_a_verifier_finds_the_way(branches):
    envs = start(branches, num_envs=12)

    def verify(batch):
        shells = [env.unwrapped for env in envs.environments(batch.state["place"])]
        read = [each.session.fork()[0].run("cat /lock/left /lock/right") for each in shells]
        left, right = np.array([outcome.output.split() for outcome in read]).astype(int).T
        return Verdicts(passed=(left == 2) & (right == 1), score=-abs(left - 2) - abs(right - 1))

    for _ in range(4):
        frontier, rewards, _ = envs.branch_step(verify, Beam(3))
    assert frontier.solved.tolist() == [True]
    assert rewards.max() == 1.0  # its own goal says so too
    (slot,) = (frontier.status == 2).nonzero().squeeze(1).tolist()
    (solved,) = envs.environments(frontier.state["place"][[slot]])
    way = [c for c in solved.unwrapped.commands_run if c in COMMANDS]
    assert way == [COMMANDS[i] for i in (1, 1, 0, 1)]
    replayed(branches, solved.unwrapped)
    envs.close()


def test_tree_search_plans_and_leaves_the_shell_as_it_is(branches):
    envs = start(branches, num_envs=1)
    for action in (1, 1):
        envs.step(np.array([action]))
    before = envs.envs[0].unwrapped.commands_run
    plan = TreeSearch(envs, rng="shared").beam(3, 2)
    assert plan.action.tolist() == [0] and plan.value.tolist() == [1.0]
    (env,) = envs.envs
    assert env.unwrapped.commands_run == before
    replayed(branches, env.unwrapped)
    envs.step(plan.action)
    _, reward, terminated, *_ = envs.step(np.array([1]))
    assert reward.tolist() == [1.0] and terminated.tolist() == [True]
    envs.close()


def test_made_by_gymnasium(client, engine, lock_image, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    env = gymnasium.make("branchrt/Shell-v0", image=lock_image, commands=COMMANDS)
    env = BranchWrapper(env)
    env.reset(seed=0)
    child = env.fork()[0]
    assert child.step(2)[-1]["output"] == "/\n"
    made = env.unwrapped.session.branches
    assert child.unwrapped.session.branches is made
    with pytest.raises(ValueError, match="the number of a command"):
        child.unwrapped.step(3)
    env.close()
    child.close()
    envs = gymnasium.make_vec(
        "branchrt/Shell-v0", num_envs=3, num_roots=1, image=lock_image, commands=COMMANDS
    )
    envs.reset(seed=0)
    envs.fork([0], counts=2)
    assert envs.step(np.array([0, 1, 2]))[-1]["exit_code"].tolist() == [0, 0, 0]
    envs.close()
    del env, child, envs
    gc.collect()
    assert made_by(client, made) == (0, 0)


def test_dropped_branches_are_removed_without_a_garbage_collection(branches, client):
    gc.disable()
    try:
        envs = start(branches, num_envs=6)
        envs.fork([0], counts=5)
        envs.step(np.array([0, 1, 2, 0, 1, 2]))
        assert made_by(client, branches) == (6, 1)
        envs.prune([1, 2, 3, 4, 5])
        branches.sweep()
        assert made_by(client, branches)[0] == 1
        envs.close()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"commands": "ls"}, ValueError, "expected a list"),
        ({"commands": []}, ValueError, "expected a list"),
        ({"output_bytes": 8}, ValueError, "256 or more"),
    ],
)
def test_wrong_arguments(arguments, error, why):
    with pytest.raises(error, match=why):
        ShellEnv("task:1", **arguments)
