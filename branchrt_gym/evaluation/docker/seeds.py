"""What an image holds where memory will be mounted, to be copied into it."""

from __future__ import annotations

import tempfile
from io import BytesIO
from typing import IO

from branchrt_gym.evaluation.docker.engine import Engine, EngineError
from branchrt_gym.evaluation.docker.outcome import Spec

__all__ = ["read_seed"]

SPOOL = 2**24  # bytes of a working directory that are kept in memory
KEPT = 4 * SPOOL  # bytes of all those that are kept for the next container


def read_seed(
    engine: Engine, container: str, spec: Spec, seeds: dict[tuple[str, str], bytes]
) -> IO[bytes] | None:
    """Returns the working directory's content as a tar, or None if there is nothing to copy.

    Args:
        engine: Where the container is.
        container: Made and not started, so that the image's files are seen.
        spec: What it is made from.
        seeds: Those read before, by image and path; more are kept while they are small.
    """
    if not spec.limits.read_only or spec.workdir == "/tmp":
        return None
    key = spec.image, spec.workdir
    if key in seeds:
        return BytesIO(seeds[key])
    try:
        chunks, _ = engine.call(engine.api.get_archive, container, spec.workdir)
    except EngineError as error:
        if error.status == 404:
            return None  # the image has none: it starts empty
        raise
    seed = tempfile.SpooledTemporaryFile(max_size=SPOOL)
    engine.call(lambda: [seed.write(chunk) for chunk in chunks])
    size = seed.tell()
    seed.seek(0)
    if size + sum(map(len, seeds.values())) <= KEPT:
        seeds[key] = seed.read()
        seed.seek(0)
    return seed
