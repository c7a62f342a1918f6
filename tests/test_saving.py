"""What is kept: the lineage, snapshots, files, pickles and copies; all continue bit for bit."""

import copy
import json
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from safetensors import safe_open
from safetensors.torch import save_file
from test_contract import Maze
from test_vector_env_gymnasium import same

from branchrt_gym import BranchingVectorEnv, DeepTree, Frontier, Snapshot, load, save
from branchrt_gym.errors import SaveFormatError

MODES = list(AutoresetMode)
TREE = {"width": 97, "fanout": 3, "depth": 4}


def make(num_envs=9, num_roots=2, seed=3, rules=None, **more):
    rules = rules or DeepTree(**TREE)
    envs = BranchingVectorEnv(rules, num_envs, num_roots=num_roots, **more)
    if seed is not None:
        envs.reset(seed=seed)
    return envs


def drive(envs, rng, steps, on_step=lambda *_: None):
    """Forks, prunes, compacts and steps at random; returns what it saw."""
    record = []
    space = envs.single_action_space
    for _ in range(steps):
        live = np.flatnonzero(np.asarray(envs.live))
        free = int((envs.frontier.status == 0).sum())
        choice = rng.integers(6)
        if choice < 2 and free and live.size:
            envs.fork(rng.choice(live, rng.integers(1, free + 1)))
        elif choice == 2 and live.size:
            envs.prune(rng.choice(live, rng.integers(1, min(3, live.size) + 1), replace=False))
        elif choice == 3 and rng.integers(3) == 0:
            envs.compact()
        before = envs.frontier.branch_id.tolist(), np.asarray(envs.live)
        action = rng.integers(space.n, size=envs.num_envs) + space.start
        result = envs.step(action)
        record.append([*result[:4], result[4]["solved"], result[4]["live"]])
        on_step(*before, action, result)
        if not np.asarray(envs.live).any():
            envs.reset()
    return record


@pytest.mark.parametrize("mode", MODES[:2])
def test_the_lineage_holds_steady_and_its_links_stay_right(mode):
    small = make(autoreset_mode=mode, lineage_capacity=190)
    large = make(autoreset_mode=mode, lineage_capacity=20_000)
    size = {name: column.numel() for name, column in small.frontier.lineage.columns.items()}
    taken = {}

    def note(ids, live, action, result):
        for slot in np.flatnonzero(live):
            taken.setdefault(ids[slot], []).append((action[slot], result[1][slot]))

    reclaimed = 0
    for turn in range(100):
        drive(small, np.random.default_rng(turn), 6)
        drive(large, np.random.default_rng(turn), 6, note)
        used, columns = large.frontier.lineage.used, large.frontier.lineage.columns
        ids, root = columns["branch_id"][:used], columns["root"][:used].long()
        old = ids < small.frontier.oldest_id[root]
        kept, gone = torch.unique(ids[~old]), torch.unique(ids[old])
        mine, their = small.trajectories(kept), large.trajectories(kept)
        same({**vars(mine)}, {**vars(their)})
        for place, branch in enumerate(kept.tolist()):
            own = taken.get(branch, [])  # what it did itself, after its birth
            end = int(mine.length[place])
            actions, rewards = mine.action[place].tolist(), mine.reward[place].tolist()
            assert list(zip(actions, rewards, strict=True))[end - len(own) : end] == own
        if gone.numel():
            with pytest.raises(ValueError, match=f"branch id .*{int(gone[-1])}"):
                small.trajectories(gone[-1:])
            reclaimed += 1
    assert reclaimed > 80
    assert large.frontier.lineage.used > 5 * 190
    assert size == {n: column.numel() for n, column in small.frontier.lineage.columns.items()}


def copied(how, envs, fresh, path):
    """A copy of a population, made in one of the ways there are."""
    if how == "pickle":
        return pickle.loads(pickle.dumps(envs))
    if how == "deepcopy":
        return copy.deepcopy(envs)
    if how == "file":
        save(envs.frontier, path)
        snapshot = Snapshot.take(load(path, envs.env.contract))
    else:
        snapshot = envs.snapshot()
    same(fresh.restore(snapshot), envs.observe())
    return fresh


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "file", "snapshot"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rules", [lambda: DeepTree(**TREE), Maze], ids=["DeepTree", "Maze"])
def test_a_copy_goes_on_bit_for_bit_and_apart(how, mode, rules, tmp_path):
    envs, twin = (make(rules=rules(), autoreset_mode=mode) for _ in range(2))
    for one in (envs, twin):
        drive(one, np.random.default_rng(1), 7)
    before = copy.deepcopy(envs.snapshot().tensors)
    fresh = make(rules=rules(), autoreset_mode=mode, seed=None)
    other = copied(how, envs, fresh, tmp_path / "frontier")
    record = drive(other, np.random.default_rng(2), 30)
    same(envs.snapshot().tensors, before)  # the original stood still meanwhile
    for one in (envs, twin):
        same(drive(one, np.random.default_rng(2), 30), record)
    same(other.snapshot().tensors, envs.snapshot().tensors)
    same(other.reset(), envs.reset())
    assert os.listdir(tmp_path) == (["frontier"] if how == "file" else [])


def test_a_snapshot_is_not_touched_by_what_comes_later():
    envs = make()
    snapshot = envs.snapshot()
    first = drive(envs, np.random.default_rng(2), 20)
    envs.reset(seed=77)
    envs.restore(snapshot)
    same(drive(envs, np.random.default_rng(2), 20), first)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"rules": DeepTree(**TREE | {"width": 96})}, "contract"),
        ({"num_envs": 8}, "`num_slots` is 9.*8"),
        ({"num_roots": 3}, "`num_roots` is 2.*3"),
        ({"lineage_capacity": 19}, "lineage"),
        ({"num_contexts": 1}, "context"),
    ],
)
def test_a_snapshot_of_another_population_is_refused(other, text):
    source = make()
    drive(source, np.random.default_rng(1), 9)
    into = make(**other)
    before = copy.deepcopy(into.snapshot().tensors)
    with pytest.raises(SaveFormatError, match=text):
        into.restore(source.snapshot())
    same(into.snapshot().tensors, before)


def test_a_snapshot_of_another_mode_starts_no_root_twice():
    source = make(autoreset_mode=AutoresetMode.DISABLED)
    source.fork([0, 1], 3)
    for _ in range(4):
        source.step([1] * 9)
    into = make()
    try:
        into.restore(source.snapshot())
    except SaveFormatError:
        return
    into.step([1] * 9)
    assert sorted(into.roots[into.live].tolist()) == [0, 1]


def tampered(path, change=lambda tensors, header: None, text=None):
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        header = json.loads(file.metadata()["branchrt"])
    change(tensors, header)
    save_file(tensors, path, {"branchrt": json.dumps(header) if text is None else text})


one_slot, half = torch.ones(1, dtype=torch.int8), torch.tensor(0.5)
FOREIGN = {
    "no file of ours": lambda path: save_file({"a": torch.zeros(3)}, path),
    "a text": lambda path: path.write_text("frontier"),
    "nothing": lambda path: path.write_bytes(b""),
    "a header of no JSON": lambda path: tampered(path, text="{"),
    "a header of another kind": lambda path: tampered(path, text="[]"),
    "a header without sizes": lambda path: tampered(path, lambda t, h: h.pop("num_slots")),
    "a newer version": lambda path: tampered(path, lambda t, h: h.update(version=99)),
    "another contract": lambda path: tampered(path, lambda t, h: h.update(contract="0" * 16)),
    "a tensor missing": lambda path: tampered(path, lambda t, h: t.pop("column.key")),
    "a tensor too short": lambda path: tampered(path, lambda t, h: t.update(status=one_slot)),
    "a tensor of another dtype": lambda path: tampered(path, lambda t, h: t.update(next_id=half)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_refused(name, tmp_path):
    path, envs = tmp_path / "frontier", make()
    save(envs.frontier, path)
    FOREIGN[name](path)
    with pytest.raises(SaveFormatError, match="frontier"):
        load(path, envs.env.contract)


def test_a_truncated_file_is_refused(tmp_path):
    path, envs = tmp_path / "frontier", make()
    save(envs.frontier, path)
    with pytest.raises(SaveFormatError, match="contract"):
        load(path)
    whole = path.read_bytes()
    for length in (*(len(whole) * tenth // 10 for tenth in range(10)), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SaveFormatError, match="truncated"):
            load(path, envs.env.contract)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none", envs.env.contract)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file(broken, tmp_path, monkeypatch):
    path, envs = tmp_path / "frontier", make()
    save(envs.frontier, path)
    old = path.read_bytes()
    envs.step([1] * 9)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space"):
        save(envs.frontier, path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["frontier"]


KILLED = """
import os, random, signal, sys, time, torch
from branchrt_gym import BranchingVectorEnv, DeepTree, load, save
torch.set_num_threads(1)
path, whole = sys.argv[1], []
envs = BranchingVectorEnv(DeepTree(width=4096, depth=5), 64, num_roots=32)
for seed in (1, 2):
    envs.reset(seed=seed)
    save(envs.frontier, path)
    whole.append(open(path, "rb").read())
for turn in range(30):
    child = os.fork()
    if child == 0:
        while True:
            for seed in (1, 2):
                envs.reset(seed=seed)
                save(envs.frontier, path)
    time.sleep(random.Random(turn).uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert open(path, "rb").read() in whole, turn
    load(path, envs.env.contract)
"""


def test_a_save_that_is_killed_leaves_a_whole_file(tmp_path):
    path = str(tmp_path / "frontier")
    done = subprocess.run([sys.executable, "-c", KILLED, path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_opaque_payloads_are_not_saved(tmp_path):
    frontier = Frontier(4, 1)
    zero = torch.zeros(1, dtype=torch.int64)
    frontier.start(zero, zero, zero, {}, payloads=[{"any": "thing"}])
    with pytest.raises(ValueError, match="payloads"):
        save(frontier, tmp_path / "frontier")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rules", [lambda: DeepTree(**TREE), Maze], ids=["DeepTree", "Maze"])
def test_torch_output_equals_numpy_output(mode, rules):
    arrays = drive(make(rules=rules(), autoreset_mode=mode), np.random.default_rng(4), 40)
    envs = make(rules=rules(), autoreset_mode=mode, output="torch")
    tensors = drive(envs, np.random.default_rng(4), 40)
    for row in tensors:
        assert row[1].dtype == envs.env.reward_dtype
        row[1] = row[1].to(torch.float64)
    same(tensors, arrays)


def test_two_populations_side_by_side_in_threads():
    alone = [drive(make(seed=seed), np.random.default_rng(seed), 150) for seed in range(3)]
    together = [None] * 3

    def work(seed):
        together[seed] = drive(make(seed=seed), np.random.default_rng(seed), 150)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(together, alone)
