"""The container of a shell session: its state between commands, and the end of each command.

The working directory and the exported variables lie in a file of the container, so that they are
committed with everything else.
"""

from __future__ import annotations

import io
import tarfile
import time
from typing import Any

from branchrt_gym.evaluation.docker.container import Outcome, Spec
from branchrt_gym.evaluation.docker.engine import Engine, EngineError
from branchrt_gym.evaluation.docker.memory import MemoryCounter
from branchrt_gym.evaluation.docker.streams import Output, hang_up, pump, wire

__all__ = ["STATE", "SessionContainer", "config_of"]

STATE = "/.branchrt"
MARGIN = 7.0  # seconds after which the outside acts, when the inside did not
STOP = 30.0  # seconds that a container may take to be gone after it was killed
SETTLE = 0.3  # seconds in which the engine learns that a container has ended

# The first process: it waits, and takes leave of orphans that were killed. `kill` spares it alone,
# not what it starts to read the clock.
FIRST = """
look() {{ until now=$(date +%s); do [ $? -gt 128 ] || exit 1; done; }}
look
end=$((now + {}))
while look; [ $now -lt $end ]; do sleep $((end - now)) & wait; done
"""
# `$0` is the shell, `$1` the command, `$2` the seconds.
INNER = f"""
if [ -f {STATE}/env ]; then . {STATE}/env; cd -- "$PWD"; fi 2>/dev/null
trap "{{ export PWD; export -p >{STATE}/env; }} 2>/dev/null" EXIT
eval "$1"
"""
# One pipe for both streams keeps their order. `kill -1` is everyone but the caller and the first
# process, in one moment: nothing is born meanwhile. The engine sends no output before it was asked.
OUTER = f"""
read -r _
exec 2>&1 </dev/null
timeout -k 2 "$2" "$0" -c '{INNER}' "$0" "$1"
code=$?
kill -9 -1 2>/dev/null
rm -rf /dev/shm/* /dev/shm/.[!.]* /dev/shm/..?* 2>/dev/null
exit $code
"""


class SessionContainer:
    """A hardened container with a writable root, whose first process is the shell, waiting.

    Args:
        engine: Where it is made.
        spec: What it is made from.
        what: Its label, and part of its name.
        shell: The shell.
        user: Who runs it; empty for root.
        fresh: Whether the image is a task's own, not one of a session.

    Raises:
        EngineError: If it cannot be made; nothing is left of it.
    """

    def __init__(
        self, engine: Engine, spec: Spec, what: str, *, shell: str, user: str, fresh: bool
    ) -> None:
        """Makes and starts it."""
        self.engine, self.limits, self.shell = engine, spec.limits, shell
        self.name = engine.name(what)
        self._kills = 0
        engine.check_disk()
        api = engine.api
        # What lies in memory is in no commit, and an init would end with the processes it waits on.
        host = {**self.limits.host_config(spec.workdir), "tmpfs": None, "init": False}
        try:
            engine.call(
                api.create_container,
                spec.image,
                ["-c", FIRST.format(self.limits.lifetime)],
                entrypoint=[shell],
                name=self.name,
                hostname="branch",  # a container's own name would tell branches apart
                host_config=api.create_host_config(**host),
                labels=engine.labels(what),
                environment=dict(spec.env),
                working_dir=spec.workdir,
                network_disabled=self.limits.network == "none",
                user=user,
            )
            if fresh:
                engine.call(api.put_archive, self.name, "/", _state_folder())
            self._start()
        except BaseException:
            self.remove()
            raise

    def command(self, text: str, seconds: float) -> Outcome:
        """Runs a command of the session; afterwards nothing of it runs any more.

        Where the inside did not keep the time, or too much was printed, the container is stopped;
        it keeps its files, and the next command starts it again.

        Raises:
            EngineError: If the engine is away or the container was ended by someone else. What the
                command did until then is in the files.
        """
        if "\0" in text:
            raise ValueError("`command` holds a NUL; expected text that a shell can be given")
        words = [self.shell, "-c", OUTER, self.shell, text, f"{seconds:g}"]
        try:
            made = self._make(words)
        except EngineError as error:
            if error.status != 409:
                raise
            self._start()  # it was stopped, by us or by an engine that restarted
            made = self._make(words)
        begin = time.monotonic()
        output = Output(self.limits.output)
        how, code = self._attend(made, output, begin + seconds + MARGIN)
        took = time.monotonic() - begin
        if code is None:
            self.engine.call(self.engine.api.kill, self.name)
            self.engine.call(self.engine.api.wait, self.name, timeout=STOP)
        kills, self._kills = self._kills, self._memory.read() or 0
        return Outcome(
            exit_code=code,
            output=output.text(),
            seconds=took,
            timed_out=how == "deadline" or (code in (124, 137) and took >= seconds),
            memory_kills=max(0, self._kills - kills),  # none where they cannot be seen from here
            printed=output.printed,
            truncated=output.truncated,
            flooded=how == "printed",
            first_byte=output.first,
        )

    def remove(self) -> None:
        """Kills everything in it and removes it; it may be gone."""
        self.engine.remove(self.name)

    def _start(self) -> None:
        self.engine.call(self.engine.api.start, self.name)
        told = self.engine.call(self.engine.api.inspect_container, self.name)
        self._memory, self._kills = MemoryCounter(told["Id"], told["State"]["Pid"]), 0

    def _make(self, words: list[str]) -> str:
        made = self.engine.call(self.engine.api.exec_create, self.name, words, stdin=True)
        return str(made["Id"])

    def _attend(self, made: str, output: Output, until: float) -> tuple[str, int | None]:
        """Returns how the output ended, and the exit code if it ended by itself."""
        call, api = self.engine.call, self.engine.api

        def runs() -> bool:
            return bool(call(api.exec_inspect, made)["Running"])

        stream = call(api.exec_start, made, socket=True)
        try:
            how = call(
                pump,
                wire(stream),
                io.BytesIO(b"\n"),
                output,
                deadline=lambda: until,
                most=self.limits.printed,
                wake=None,
                runs=runs,
            )
        finally:
            hang_up(stream)
        while how == "end" and runs():  # the engine learns of the end a moment later
            time.sleep(0.005)
            how = "end" if time.monotonic() < until else "deadline"
        if how != "end":
            return how, None
        code = call(api.exec_inspect, made)["ExitCode"]
        if code in (None, 137):
            time.sleep(SETTLE)
            state = call(api.inspect_container, self.name)["State"]
            if code is None or not state["Running"] or state["Pid"] != self._memory.pid:
                raise EngineError(f"{self.name} was ended while a command ran in it")
        return how, int(code)


def _state_folder() -> bytes:
    """Returns a tar of the empty folder of the state, open to every user."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(STATE.lstrip("/"))
        member.type, member.mode = tarfile.DIRTYPE, 0o777
        archive.addfile(member)
    return packed.getvalue()


def config_of(engine: Engine, image: str) -> tuple[str, int, dict[str, Any]]:
    """Returns an image's id, how many layers it has, and its configuration.

    Raises:
        ValueError: If it is not there, or has volumes.
    """
    engine.check_images([image])
    told = engine.call(engine.api.inspect_image, image)
    config = dict(told["Config"] or {})
    if config.get("Volumes"):
        raise ValueError(
            f"`image` is {image}, with the volumes {', '.join(config['Volumes'])}; expected none, "
            "since a commit leaves out what lies in them"
        )
    return str(told["Id"]), len(told["RootFS"]["Layers"]), config
