"""Which of an operation's two forms runs: plain torch, or Triton."""

import functools
import importlib.util
import os
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Impl", "MissingTritonError", "Path", "has_triton", "interpreted", "resolve"]

Impl = Literal["auto", "torch", "triton"]
Path = Literal["torch", "triton"]


class MissingTritonError(ImportError):
    """Triton was asked for and is not installed."""


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed; it is not imported to find out."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's interpreter is asked for, which runs kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def resolve(impl: Impl, tensor: Tensor) -> Path:
    """Decides the form that an operation on `tensor` runs; every operation asks here.

    Args:
        impl: `"auto"` takes Triton for a CUDA tensor where Triton is installed and torch
            otherwise; `"torch"` and `"triton"` insist.
        tensor: Any tensor of the call; only its device is looked at.

    Returns:
        `"torch"` or `"triton"`. The answer depends on the arguments, the installation and
        whether `torch.compile` is tracing only, so a test can ask for it.

    Raises:
        MissingTritonError: `"triton"` without Triton installed.
        ValueError: `impl` is none of the three, or `"triton"` for a tensor that is not on a
            CUDA device while Triton's interpreter (`TRITON_INTERPRET=1`) is off.
    """
    if impl == "torch":
        return "torch"
    if impl == "auto":
        if torch.compiler.is_compiling():
            return "torch"  # which the compiler fuses with what is around it
        return "triton" if tensor.is_cuda and has_triton() else "torch"
    if impl != "triton":
        raise ValueError(f"`impl` is {impl!r}; expected 'auto', 'torch' or 'triton'")
    if not has_triton():
        raise MissingTritonError(
            "`impl` is 'triton' and Triton is not installed; "
            'install it with: pip install "branchrt-gym[gpu]"'
        )
    if not tensor.is_cuda and not (tensor.is_cpu and interpreted()):
        raise ValueError(
            f"`impl` is 'triton' and the tensors are on {str(tensor.device)!r}; expected a CUDA "
            "device, or the CPU with TRITON_INTERPRET=1 set before Triton is imported"
        )
    return "triton"
