"""Lets Triton kernels run on the CPU, in Triton's interpreter, where there is no CUDA device."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
