import subprocess
import sys

import pytest
import torch

from branchrt_gym import kernels
from branchrt_gym.kernels import dispatch


def test_auto_is_torch_on_the_cpu():
    assert kernels.resolve("auto", torch.zeros(1)) == "torch"
    assert kernels.resolve("torch", torch.zeros(1)) == "torch"


def test_triton_on_the_cpu_needs_the_interpreter(monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernels.resolve("triton", torch.zeros(1)) == "triton"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match=r"are on 'cpu'; expected a CUDA device.*TRITON_INTERPRET"):
        kernels.resolve("triton", torch.zeros(1))


def test_a_device_without_triton_takes_torch():
    assert kernels.resolve("auto", torch.zeros(1, device="meta")) == "torch"
    with pytest.raises(ValueError, match="are on 'meta'"):
        kernels.resolve("triton", torch.zeros(1, device="meta"))


def test_triton_missing_names_the_extra(monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    assert kernels.resolve("auto", torch.zeros(1)) == "torch"
    with pytest.raises(kernels.MissingTritonError, match=r'pip install "branchrt-gym\[gpu\]"'):
        kernels.compact_indices(torch.ones(3, dtype=torch.bool), impl="triton")
    assert issubclass(kernels.MissingTritonError, ImportError)


def test_an_unknown_impl_is_refused():
    with pytest.raises(ValueError, match="`impl` is 'cuda'; expected 'auto', 'torch' or 'triton'"):
        kernels.fold(torch.zeros(1, dtype=torch.int64), 0, impl="cuda")


def test_importing_and_running_torch_does_not_import_triton():
    program = (
        "import sys, torch, branchrt_gym.kernels as k\n"
        "k.fold(torch.zeros(1, dtype=torch.int64), 0)\n"
        "k.compact_indices(torch.ones(1, dtype=torch.bool))\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'triton']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
