"""What sessions have: their files, and how much of theirs is in the engine."""

import hashlib
import tarfile
import tempfile


def made_by(client, branches) -> tuple[int, int]:
    """How many containers and images of these branches the engine has."""
    label = {"label": f"branchrt.run={branches.engine.run}"}
    api = client.api
    return len(api.containers(all=True, filters=label)), len(api.images(all=True, filters=label))


def files_of(session, skip=()) -> dict[str, tuple]:
    """Every file of a session's root as the engine exports it, without times."""
    found = {}
    with tempfile.TemporaryFile() as spool:
        for chunk in session.branches.engine.api.export(session.start().name):
            spool.write(chunk)
        spool.seek(0)
        with tarfile.open(fileobj=spool) as archive:
            for member in archive:
                if member.name.startswith(("dev/", "proc", "sys", *skip)):
                    continue
                text = archive.extractfile(member).read() if member.isreg() else b""
                found[member.name] = (
                    member.type,
                    member.mode,
                    member.uid,
                    member.linkname,
                    sha256(text),
                )
    return found


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
