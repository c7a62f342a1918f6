"""A million slots in a fresh process: what they take, and that Python does not loop over them."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import gymnasium, numpy as np, torch
import branchrt_gym

slots, events = int(sys.argv[1]), 0

def count(frame, event, arg):
    global events
    events += 1
    return count

sys.settrace(count)
envs = gymnasium.make_vec("branchrt/Blackjack-v0", num_envs=slots, num_roots=slots // 2)
population = envs.unwrapped
envs.reset(seed=0)
for step in range(10):
    envs.step(np.full(slots, step % 2))
before = population.live
parents = np.flatnonzero(before)
children = population.fork(parents)
forked = population.live
stays = np.arange(slots) % 2 == 0
population.prune(~stays)
kept = population.live
ids = population.frontier.branch_id[torch.from_numpy(kept)]
source = population.compact()
sys.settrace(None)

assert parents.size == children.size > slots // 4
assert not before[children].any() and forked[children].all()
assert (population.frontier.episode >= 1).all()
assert np.array_equal(kept, forked & stays)
live, held = population.live, population.roots >= 0
assert live.sum() == kept.sum() and not held[held.sum() :].any()
assert np.array_equal(source[live], np.flatnonzero(kept))
after = population.frontier.branch_id[torch.from_numpy(live)]
assert torch.equal(after, ids) and ids.unique().numel() == ids.numel()

status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024
print(json.dumps({"events": events, "peak": peak}))
"""


def measured(slots):
    command = [sys.executable, "-P", "-c", PROGRAM, str(slots)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_a_million_slots_fit_in_two_gibibytes_and_no_loop_visits_them():
    few, many = measured(1_000), measured(1_000_000)
    assert many["peak"] < 2 * 2**30
    # Lines and calls of Python. Dealers of more hands may draw once more; a slot may cost nothing.
    assert abs(many["events"] - few["events"]) < 200
