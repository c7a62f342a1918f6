import importlib

import pytest
import torch

LAUNCHERS = {
    "keys_triton": ("mix64", "mix32", "bounded", "fold", "fold_constant"),
    "rows_triton": ("copy_rows",),
    "compact_triton": ("compact_indices",),
    "select_triton": ("top_k_per_root",),
    "pages_triton": ("read_pages", "write_pages", "count_pages", "mark_pages"),
}


@pytest.fixture
def launched(monkeypatch, request):
    """Lists the Triton launchers in the order they ran; they find fresh memory poisoned."""
    pytest.importorskip("triton")
    if torch.cuda.is_available() and request.node.get_closest_marker("gpu") is None:
        pytest.skip("Triton interprets only where there is no GPU; test_kernels_gpu.py runs here")
    names = []

    def spy(module, name):
        launcher = getattr(module, name)

        def listed(*arguments):
            names.append(name)
            return launcher(*arguments)

        monkeypatch.setattr(module, name, listed)

    for module, launchers in LAUNCHERS.items():
        for name in launchers:
            spy(importlib.import_module(f"branchrt_gym.kernels.{module}"), name)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what torch.empty returns
    assert torch.empty(1, dtype=torch.int64).item() == 2**63 - 1
    yield names
    torch.use_deterministic_algorithms(False)
