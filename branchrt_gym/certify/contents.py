"""Compares what branches have in paged fields with the oracles' whole arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from branchrt_gym.certify.branch import Branch
from branchrt_gym.certify.difference import Ledger, as_array
from branchrt_gym.pages import Pages

__all__ = ["compare_contents"]

# What is compared at a time; of more, a part evenly spaced that moves on from time to time.
ENTRIES = 1 << 16
BRANCHES = 1 << 11  # an oracle may have to put its array together for each


def compare_contents(
    ledger: Ledger, pages: Mapping[str, Pages], branches: Sequence[Branch], rows: Sequence[int]
) -> None:
    """Compares the branches in `rows` of each field; of many or long ones a part."""
    step = -(-len(branches) // BRANCHES)
    if step > 1:
        first = (ledger.operation or 0) % step
        branches, rows = branches[first::step], rows[first::step]
    for name, view in pages.items() if branches else ():
        count = min(view.width, ENTRIES // len(branches))
        places = (np.arange(count) * view.width // count + (ledger.operation or 0)) % view.width
        device = view.table.device
        slots = torch.tensor(rows, device=device)
        index = torch.from_numpy(places).to(device).expand(len(branches), -1)
        got = as_array(view._replace(slots=slots).read(index))
        missing = [branch for branch in branches if not hasattr(branch.oracle, name)]
        if missing:
            ledger.fail(name, f"an array `{name}` of the oracle", "none", missing[0])
        expected = np.stack([np.asarray(getattr(b.oracle, name))[places] for b in branches])
        ledger.same(name, expected, got, branches, rows)
