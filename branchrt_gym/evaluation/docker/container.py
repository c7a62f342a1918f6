"""A hardened container, and commands in it with limits kept inside and outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from socket import socket
from typing import IO, Any

from branchrt_gym.evaluation.docker.engine import Engine, EngineError
from branchrt_gym.evaluation.docker.memory import INSIDE, MemoryCounter, oom_kills
from branchrt_gym.evaluation.docker.outcome import Outcome, Spec
from branchrt_gym.evaluation.docker.seeds import read_seed
from branchrt_gym.evaluation.docker.streams import Output, hang_up, pump, wire

__all__ = ["Container", "Outcome", "Spec", "Stopped"]

GRACE = 2  # seconds between the polite signal and the last, inside
MARGIN = 5.0  # seconds after which the outside acts, when the inside did not
SETTLE = 0.3  # seconds in which the engine learns that a container has ended
SETUP = 120.0  # seconds that files and a patch may take
# Waiting for a line first: the engine sends no output before it has been asked for it.
START = ("sh", "-c", 'read -r _; exec "$@"', "sh")


class Stopped(Exception):
    """The command was wanted no more while it ran."""


class Container:
    """A container of a spec, started and with its working directory in place.

    Args:
        engine: Where it is made.
        spec: What it is made from.
        what: Names it, after the run: letters, digits, `-`, `_` and `.`.
        seeds: Contents of working directories by image and path, kept between containers.

    Raises:
        EngineError: If it cannot be made; nothing is left of it.
    """

    def __init__(
        self,
        engine: Engine,
        spec: Spec,
        what: str,
        seeds: dict[tuple[str, str], bytes] | None = None,
    ) -> None:
        """Makes and starts it."""
        self.engine, self.spec = engine, spec
        self.name = engine.name(what)
        self._kills = 0
        self._ready: tuple[list[str], tuple[str, Any]] | None = None
        engine.check_disk()
        api = engine.api
        try:
            config = api.create_host_config(**spec.limits.host_config(spec.workdir))
            engine.call(
                api.create_container,
                spec.image,
                ["2147483647" if spec.limits.lifetime >= 2**31 else str(spec.limits.lifetime)],
                entrypoint=["sleep"],
                name=self.name,
                host_config=config,
                labels=engine.labels(what),
                environment={"HOME": "/tmp", **dict(spec.env)},
                working_dir=spec.workdir,
                network_disabled=spec.limits.network == "none",
                **({} if spec.limits.user is None else {"user": spec.limits.user}),
            )
            seed = read_seed(engine, self.name, spec, {} if seeds is None else seeds)
            engine.call(api.start, self.name)
            info = engine.call(api.inspect_container, self.name)
            self._memory = MemoryCounter(info["Id"], int(info["State"]["Pid"]))
            if seed is not None:
                self._write_seed(seed)
        except BaseException:
            self.remove()
            raise

    def run(
        self,
        command: str | Sequence[str],
        seconds: float,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        wake: socket | None = None,
    ) -> Outcome:
        """Runs a command, or a text with `sh`, in the working directory.

        Past its time it is ended inside; where that does not help the outcome says so, and the
        container should be removed: what runs in it is not known any more.

        Args:
            command: Words, or text for `sh -c`.
            seconds: What it may take.
            stdin: What it reads.
            env: More variables.
            wake: Stop, with `Stopped`, when something can be read from this.
        """
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        limited = ["timeout", "-k", str(GRACE), f"{seconds:g}", *words]
        output = Output(self.spec.limits.output)
        return self.execute(limited, seconds, BytesIO(stdin), output, env=env, wake=wake)

    def execute(
        self,
        words: Sequence[str],
        seconds: float,
        stdin: IO[bytes],
        output: Output,
        *,
        env: Mapping[str, str] | None = None,
        wake: socket | None = None,
    ) -> Outcome:
        """Runs words that keep their time limit themselves, counted from the output's mark."""
        begin = time.monotonic()

        def deadline() -> float:
            if output.marked is None:
                return begin + SETUP
            return output.marked + seconds + GRACE + MARGIN

        ready, self._ready = self._ready, None
        if ready is not None and not env and ready[0] == list(words):
            link = ready[1]
        else:
            link = self._open([*START, *words], env)
        how, code = self._attend(link, stdin, output, deadline, wake)
        took = time.monotonic() - (begin if output.marked is None else output.marked)
        kills = self._memory_kills(code)
        # The mark is seen somewhat after the clock inside was started.
        late = took >= seconds - max(1.0, seconds / 10)
        return Outcome(
            exit_code=code,
            output=output.text(),
            seconds=took,
            timed_out=how == "deadline" or (late and code in (124, 137)),
            memory_kills=kills,
            printed=output.printed,
            truncated=output.truncated,
            flooded=how == "printed",
            first_byte=output.first,
        )

    def prepare(self, words: Sequence[str]) -> None:
        """Brings a command to where it reads its input, for the next `execute` of these words."""
        made, stream = self._open([*START, *words], None)
        self._ready = list(words), (made, stream)
        # A container must not be paused while a command starts in it: the engine would wait for
        # the command's first process, which is stopped, and answer nothing about it any more.
        until = time.monotonic() + SETUP
        while not self.engine.call(self.engine.api.exec_inspect, made)["Pid"]:
            if time.monotonic() >= until:
                raise EngineError(f"a command did not start in {self.name}")
            time.sleep(0.01)

    def pause(self) -> None:
        """Stops its processes where they are."""
        self.engine.call(self.engine.api.pause, self.name)

    def resume(self) -> None:
        """Lets them go on; an `EngineError` if it is not paused any more."""
        self.engine.call(self.engine.api.unpause, self.name)

    def remove(self) -> None:
        """Kills everything in it and removes it; it may be gone."""
        if self._ready is not None:
            hang_up(self._ready[1][1])
            self._ready = None
        self.engine.remove(self.name)

    def _open(self, words: Sequence[str], env: Mapping[str, str] | None) -> tuple[str, Any]:
        """Starts words that wait for a line; returns the command's id and its stream."""
        engine, api = self.engine, self.engine.api
        made = engine.call(
            api.exec_create,
            self.name,
            list(words),
            stdin=True,
            workdir=self.spec.workdir,
            environment=dict(env or {}),
            **({} if self.spec.limits.user is None else {"user": self.spec.limits.user}),
        )["Id"]
        return made, engine.call(api.exec_start, made, socket=True)

    def _attend(
        self,
        command: tuple[str, Any],
        stdin: IO[bytes],
        output: Output,
        deadline: Callable[[], float],
        wake: socket | None,
    ) -> tuple[str, int | None]:
        """Returns how the stream ended, and the exit code if it ended by itself."""
        engine = self.engine
        made, stream = command

        def state() -> dict[str, Any]:
            return dict(engine.call(engine.api.exec_inspect, made))

        try:
            how = engine.call(
                pump,
                wire(stream),
                _After(b"\n", stdin),
                output,
                deadline=deadline,
                most=self.spec.limits.printed,
                wake=wake,
                runs=lambda: bool(state()["Running"]),
            )
            if how == "woken":
                raise Stopped
            if how != "end":
                return how, None
            pause = 0.005
            while (found := state())["Running"]:  # it closed its output and goes on
                if time.monotonic() >= deadline():
                    return "deadline", None
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
            if found["ExitCode"] is None:
                raise EngineError(f"the engine does not know how a command in {self.name} ended")
            return how, int(found["ExitCode"])
        finally:
            hang_up(stream)

    def _write_seed(self, seed: IO[bytes]) -> None:
        output = Output(4096)
        words = ["tar", "-x", "-f", "-", "--strip-components=1"]
        with seed:
            outcome = self.execute(words, SETUP, seed, output)
        if outcome.exit_code != 0:
            raise EngineError(
                f"the working directory {self.spec.workdir} of {self.spec.image} was not copied "
                f"into memory, `work` is {self.spec.limits.work} bytes: {outcome.output[-500:]}"
            )

    def _memory_kills(self, code: int | None) -> int:
        """Returns processes killed for memory since the last call.

        A container that has ended meanwhile was killed by someone else, or for memory.
        """
        if code == 137:
            time.sleep(SETTLE)
        count = self._memory.read()
        if count is None and code != 137:
            count = self._ask_kills()
        if count is None or code == 137:
            state = self.engine.call(self.engine.api.inspect_container, self.name)["State"]
            if not (state["Running"] and state["Pid"] == self._memory.pid):
                if not state["OOMKilled"]:
                    raise EngineError(f"{self.name} ended while a command ran in it")
                count = self._kills + 1
            elif count is None:
                count = self._ask_kills()
        before, self._kills = self._kills, count or 0
        return self._kills - before

    def _ask_kills(self) -> int | None:
        """Reads the count inside, where the kernel's file cannot be seen from here."""
        output, until = Output(4096), time.monotonic() + MARGIN
        try:
            link = self._open([*START, "cat", *INSIDE], None)
            self._attend(link, BytesIO(), output, lambda: until, None)
        except EngineError as error:
            if error.lost:
                raise
        return oom_kills(output.text())


class _After(BytesIO):
    """Reads some bytes and then a file."""

    def __init__(self, first: bytes, rest: IO[bytes]) -> None:
        super().__init__(first)
        self._rest = rest

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size) or self._rest.read(-1 if size is None else size)
