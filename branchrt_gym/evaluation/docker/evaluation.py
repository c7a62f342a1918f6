"""A task, a candidate, and one evaluation of it in a container: patch, hidden files, command."""

from __future__ import annotations

import io
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from secrets import token_hex
from socket import socket
from typing import IO

from branchrt_gym.evaluation.docker.container import GRACE, SETUP, Container, Outcome, Spec
from branchrt_gym.evaluation.docker.engine import EngineError
from branchrt_gym.evaluation.docker.limits import Limits
from branchrt_gym.evaluation.docker.streams import Output

__all__ = ["APPLY", "EVALUATE", "Candidate", "DockerTask", "evaluate"]

# A patch as text, files by path, or nothing.
Candidate = str | Mapping[str, str | bytes] | None

# Tried in this order, from the same clean state, until one succeeds.
APPLY = (
    'git apply --verbose "$PATCH"',
    'git apply --verbose --3way "$PATCH"',
    'git apply --verbose --reject "$PATCH"',
    'patch --batch --fuzz=5 -p1 -i "$PATCH"',
)
CLEAN = "git checkout -q -- . && git clean -fdq"

SCRIPT = """
read -r mark grace seconds patience
d=$(mktemp -d /tmp/branchrt.XXXXXX) && tar -xf - -C "$d" || exit 1
word=none
if [ -f "$d/patch" ]; then
  export PATCH="$d/patch"
  if timeout -k 1 "$patience" sh "$d/apply" >"$d/log" 2>&1 </dev/null
  then word=applied; else word=refused; fi
fi
if [ -f "$d/tree.tar" ]; then tar -xf "$d/tree.tar" -C / 2>>"$d/log" || word=refused; fi
if [ "$word" != refused ] && [ -f "$d/files.tar" ]; then
  tar -xf "$d/files.tar" -C / 2>>"$d/log" || word=blocked
fi
[ -f "$d/log" ] && tail -c 65536 "$d/log"
printf '\\n%s %s\\n' "$mark" "$word"
case $word in refused|blocked) exit 0;; esac
shell=$(command -v bash || command -v sh)
exec timeout -k "$grace" "$seconds" "$shell" "$d/run" </dev/null
"""
EVALUATE = ("sh", "-c", SCRIPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerTask:
    """A task: an image, and what decides in it whether a candidate is right.

    Attributes:
        image: In the engine already.
        command: The evaluation, words or the text of a shell script (`bash` where there is one).
        workdir: An absolute path; patches are applied and the command runs there.
        files: Written after the patch, over what it did: hidden tests. Paths in the container,
            relative to `workdir` or absolute.
        seconds: What the command may take; the verifier's if None.
        limits: The verifier's if None.
        grade: What its outcome is worth, see `DockerVerifier`; the verifier's if None.
        env: More variables of the environment.
        apply: Shell commands that apply the patch in `$PATCH`, tried in turn.
        clean: Restores the working directory between them.
        name: For messages and for the content address; its image if empty.
    """

    image: str
    command: str | Sequence[str]
    workdir: str = "/testbed"
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    seconds: float | None = None
    limits: Limits | None = None
    grade: Callable[[Outcome], object] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    apply: Sequence[str] = APPLY
    clean: str = CLEAN
    name: str = ""

    def spec(self, limits: Limits) -> Spec:
        """Returns what its containers are made from."""
        pairs = tuple(sorted(self.env.items()))
        return Spec(self.image, self.workdir, self.limits or limits, pairs)

    def script(self) -> str:
        """Returns the command as a shell script."""
        return self.command if isinstance(self.command, str) else shlex.join(self.command)


def evaluate(
    container: Container,
    task: DockerTask,
    candidate: Candidate,
    seconds: float,
    wake: socket | None = None,
) -> Outcome:
    """Applies a candidate in a clean container and runs the task's command.

    Everything goes through one `exec`. The container is spent afterwards: remove it.

    Args:
        container: Of the task's spec.
        task: Says what to run.
        candidate: A patch; files to write; nothing.
        seconds: What the command may take.
        wake: Stop, with `Stopped`, when something can be read from this.

    Returns:
        The outcome. With a patch that does not apply, or that leaves something where a hidden file
        goes, the command did not run and `applied` is False.

    Raises:
        EngineError: If it could not come to an outcome.
    """
    mark = token_hex(16)
    output = Output(container.spec.limits.output, f"\n{mark} ".encode())
    first = f"{mark} {GRACE} {seconds:g} {SETUP / 2:g}\n"
    with _payload(task, candidate, first.encode()) as payload:
        outcome = container.execute(EVALUATE, seconds, payload, output, wake=wake)
    log = output.before.decode("utf-8", "replace").strip()
    if output.word in ("refused", "blocked"):
        if output.word == "blocked" and not candidate:
            raise EngineError(f"the files of {task.name or task.image} were not written: {log}")
        return replace(outcome, applied=False, exit_code=None, log=log)
    if output.word not in ("applied", "none"):
        raise EngineError(
            f"the evaluation of {task.name or task.image} was not prepared; the image needs sh, "
            f"tar, timeout and mktemp, and room in /tmp: {log[-1000:]}"
        )
    return replace(outcome, applied=True if candidate else None, log=log)


def _payload(task: DockerTask, candidate: Candidate, first: bytes) -> IO[bytes]:
    """Returns what the script reads: a line, and a tar to unpack."""
    parts: dict[str, bytes] = {"run": task.script().encode()}
    if isinstance(candidate, str) and candidate:
        text = candidate if candidate.endswith("\n") else candidate + "\n"
        parts["patch"] = text.encode("utf-8", "surrogateescape")
        retry = f"\n{task.clean} >/dev/null 2>&1\n"
        parts["apply"] = retry.join(f"{{ {each}\n}} && exit 0" for each in task.apply).encode()
        parts["apply"] += b"\nexit 1\n"
    elif candidate and not isinstance(candidate, str):
        parts["tree.tar"] = _tar(_placed(candidate, task.workdir))
    if task.files:
        parts["files.tar"] = _tar(_placed(task.files, task.workdir))
    payload = tempfile.SpooledTemporaryFile(max_size=2**24)
    payload.write(first + _tar(parts))
    payload.seek(0)
    return payload


def _placed(files: Mapping[str, str | bytes], workdir: str) -> dict[str, str | bytes]:
    base = PurePosixPath(workdir)
    return {str(base / path).lstrip("/"): content for path, content in files.items()}


def _tar(files: Mapping[str, str | bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()
