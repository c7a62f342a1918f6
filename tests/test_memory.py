"""What is said when memory runs out, and that nothing is changed then."""

import pytest
import torch

from branchrt_gym import Beam, DeepTree, make_roots, search, search_plan
from branchrt_gym.errors import BranchRTError, DeviceMemoryError
from branchrt_gym.memory import naming_memory

TORCH = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of"


def test_the_error_names_what_was_asked():
    with (
        pytest.raises(DeviceMemoryError) as found,
        naming_memory("a frontier of 7 slots", torch.device("cpu"), "make it smaller"),
    ):
        raise torch.OutOfMemoryError(TORCH)
    assert str(found.value) == (
        "a frontier of 7 slots does not fit on cpu: its next 2.50 GiB could not be had; make it "
        "smaller. Nothing was changed"
    )
    assert isinstance(found.value, MemoryError) and isinstance(found.value, BranchRTError)
    assert isinstance(found.value.__cause__, torch.OutOfMemoryError)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="other"), naming_memory("x", torch.device("cpu"), "y"):
        raise RuntimeError("other")


def test_roots_that_do_not_fit():
    class Huge(DeepTree):
        def initial_shared(self, keys):
            raise torch.OutOfMemoryError(TORCH)

    with pytest.raises(DeviceMemoryError, match="3 roots in 2 contexts does not fit"):
        make_roots(Huge(width=97), 3, num_contexts=2)


def test_a_search_that_does_not_fit_leaves_no_plan(monkeypatch):
    pytest.importorskip("triton")
    env = DeepTree(width=97, depth=3)
    roots = make_roots(env, 3, device="cuda" if torch.cuda.is_available() else "cpu")

    def refuse(*arguments):
        raise torch.OutOfMemoryError(TORCH)

    monkeypatch.setattr(search_plan, "FusedBeam", refuse)
    with pytest.raises(DeviceMemoryError, match="a search of 3 roots, 4 branches each"):
        search(env, roots, Beam(4), 3, tier="fused")
    assert roots.plans == {}


@pytest.mark.gpu
def test_more_than_the_device_has():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with pytest.raises(DeviceMemoryError, match=r"GiB are free"):
        make_roots(DeepTree(width=2**30), 1000, device="cuda")
