"""`branchrt bench step --device cuda`: what it compares, in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from branchrt_gym.bench import step_gpu
from branchrt_gym.bench.measure import summarize
from branchrt_gym.bench.step import HandSizes
from branchrt_gym.contract import TransitionKernel
from branchrt_gym.envs.blackjack import Blackjack
from branchrt_gym.envs.blackjack_triton import transition

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Wrong(Blackjack):
    """Its kernel pays naturals; the rules do not."""

    def transition_kernel(self, device):
        return TransitionKernel(transition, (1, 0))


def test_all_slots_and_some_oracles_are_compared():
    compared, mismatches, first = step_gpu.compare_steps(HandSizes(24, 3, 5), DEVICE)
    assert (compared, mismatches, first) == (5 * (24 * 10 + 3 * 6), 0, None)


def test_a_wrong_kernel_is_found(monkeypatch):
    monkeypatch.setattr(step_gpu, "Blackjack", Wrong)
    found = step_gpu.DeviceSteps(
        HandSizes(400, 3, 5), *step_gpu.compare_steps(HandSizes(400, 3, 5), DEVICE)
    )
    assert not found.equal
    assert found.first.startswith("`reward` of slot ")
    assert found.row()["live_steps_per_second"] == {}


def test_rates_are_of_the_interquartile_mean():
    times = step_gpu.DeviceSteps(
        HandSizes(100, 3, 5),
        10,
        0,
        None,
        seconds={"NEXT_STEP": summarize([2.0, 2.0, 2.0, 50.0])},
        live={"NEXT_STEP": 0.5},
        host_seconds={},
    )
    mean = times.seconds["NEXT_STEP"].interquartile_mean
    assert times.row()["slots_per_second"] == {"NEXT_STEP": 100 / mean}
    assert times.row()["live_steps_per_second"] == {"NEXT_STEP": 50 / mean}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_measures_on_a_gpu():
    times = step_gpu.measure_steps(HandSizes(4096, 3, 5), repetitions=4)
    assert times.equal and set(times.seconds) == {"NEXT_STEP", "SAME_STEP"}
    assert 0 < times.live["NEXT_STEP"] < 1 and times.live["SAME_STEP"] == 1
