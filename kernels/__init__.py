"""The operations under the runtime: a plain torch form and a Triton form of each, bit-equal.

Each operation is a public function that checks its arguments and takes `impl`: `"auto"` runs
Triton for CUDA tensors where it is installed and torch otherwise. Triton is imported at the
first call that runs it. For use inside one's own kernels, `branchrt_gym.kernels.keys_triton`
has the key functions as device functions: `fold_device`, `mix64_device`, `mix32_device` and
`bounded_device`, and `branchrt_gym.kernels.pages_triton` has `read_page` and `write_page`.
"""

from branchrt_gym.kernels.compact import compact_indices
from branchrt_gym.kernels.dispatch import Impl, MissingTritonError, Path, resolve
from branchrt_gym.kernels.keys import bounded, fold, mix32, mix64
from branchrt_gym.kernels.pages import (
    NO_PAGE,
    NO_WRITE,
    count_pages,
    mark_pages,
    read_pages,
    write_pages,
)
from branchrt_gym.kernels.rows import NO_ROW, copy_rows
from branchrt_gym.kernels.select import top_k_per_root

__all__ = [
    "NO_PAGE",
    "NO_ROW",
    "NO_WRITE",
    "Impl",
    "MissingTritonError",
    "Path",
    "bounded",
    "compact_indices",
    "copy_rows",
    "count_pages",
    "fold",
    "mark_pages",
    "mix32",
    "mix64",
    "read_pages",
    "resolve",
    "top_k_per_root",
    "write_pages",
]
