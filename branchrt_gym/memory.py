"""What is said when a device has no memory left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from branchrt_gym.errors import DeviceMemoryError

__all__ = ["naming_memory"]

GIB = 2**30


@contextmanager
def naming_memory(what: str, device: torch.device, advice: str) -> Iterator[None]:
    """Turns torch's out-of-memory error into one that names what was made, and what is free.

    Args:
        what: What is allocated inside, such as "a frontier of 4,096 slots".
        device: Where.
        advice: What would need less.

    Raises:
        DeviceMemoryError: In place of torch's error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        asked = re.search(r"allocate ([\d.]+ \w+)", str(error))
        text = f"{what} does not fit on {device}"
        if asked is not None:
            text += f": its next {asked[1]} could not be had"
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            held = torch.cuda.memory_reserved(device)
            text += (
                f", {free / GIB:.2f} of {total / GIB:.2f} GiB are free and torch holds "
                f"{held / GIB:.2f} GiB here"
            )
        raise DeviceMemoryError(f"{text}; {advice}. Nothing was changed") from error
