"""Shell sessions in containers that fork: a fork commits what was written, and shares it.

    >>> branches = ContainerBranches("task:1")  # doctest: +SKIP
    >>> root = branches.open()  # doctest: +SKIP
    >>> root.run("cd /testbed && export MODE=fast").exit_code  # doctest: +SKIP
    0
    >>> left, right = root.fork(2)  # doctest: +SKIP
    >>> left.run("echo $PWD $MODE").output.split()  # doctest: +SKIP
    ['/testbed', 'fast']

The state of a session is its files, its working directory and its exported variables; these pass
from command to command and to forks. Processes do not: when a command ends, everything that it
started is killed. Neither does what is not in the root: `/dev` with its shared memory, and
`/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`, which the engine mounts.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, Self

from branchrt_gym.errors import ClosedError
from branchrt_gym.evaluation.docker.container import Outcome, Spec
from branchrt_gym.evaluation.docker.engine import Engine
from branchrt_gym.evaluation.docker.leavings import Leavings
from branchrt_gym.evaluation.docker.limits import Limits
from branchrt_gym.evaluation.docker.shell_session import SessionContainer, config_of

__all__ = ["SESSION_LIMITS", "ContainerBranch", "ContainerBranches", "Layer"]

SESSION_LIMITS = Limits(read_only=False, user=None, output=1 << 16)
MOST_LAYERS = 120  # the engine's own limit is 125


class Layer:
    """A committed state, from which any number of sessions start; never changed.

    It is an image, which is removed when nobody holds this any more.

    Attributes:
        image: The image's id.
        depth: Its layers, those of the task's image included.
    """

    def __init__(self, image: str, depth: int) -> None:
        """Names an image that is there."""
        self.image = image
        self.depth = depth

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Is its own copy."""
        return self


class ContainerBranches:
    """What the sessions of one task image have in common: the engine, the limits, the end.

    Everything is removed by `close`, when this is dropped, and when Python ends; what a killed
    process leaves, when the next one starts.

    Args:
        image: The task's image. It needs the shell, `timeout`, `date`, `sleep` and `rm`; what lies
            in volumes cannot be committed, so one with volumes is refused.
        engine: Where containers are made; None for the one that the environment names.
        limits: Of each container. The root must be writable.
        shell: A POSIX shell, as `"bash"` or `"sh"`.
        seconds: Of a command, at most, if it says nothing else.
        max_layers: Where a commit would make more layers it writes one flat image: the whole root
            anew, once in so many forks of a line, since the engine allows no more than 125.

    Raises:
        ValueError: For arguments outside what they may be, or an image that cannot be used.
        EngineError: If the engine does not answer.
    """

    def __init__(
        self,
        image: str,
        *,
        engine: Engine | None = None,
        limits: Limits = SESSION_LIMITS,
        shell: str = "bash",
        seconds: float = 60.0,
        max_layers: int = 64,
    ) -> None:
        """Looks at the image, and removes what dead owners left."""
        if limits.read_only:
            raise ValueError(
                "`limits` has a read-only root; expected `read_only=False`, as `SESSION_LIMITS` "
                "has it: a session's state is what it writes there"
            )
        self.engine = Engine() if engine is None else engine
        found, depth, config = config_of(self.engine, image)
        if not depth < max_layers <= MOST_LAYERS:
            raise ValueError(
                f"`max_layers` is {max_layers}; expected more than the {depth} of {image}, and at "
                f"most {MOST_LAYERS}, since the engine allows 125"
            )
        self.base = Layer(found, depth)
        self.shell, self.seconds, self.max_layers = shell, seconds, max_layers
        # A flat image has no configuration, so the task's own goes with each container.
        variables = (line.partition("=") for line in config.get("Env") or ())
        self._spec = Spec(
            image,
            config.get("WorkingDir") or "/",
            limits,
            tuple((name, value) for name, _, value in variables),
        )
        self._user = limits.user or config.get("User") or ""
        self.name = self.engine.name("branches")
        self._what = self.name.removeprefix(f"branchrt-{self.engine.run}-")
        self._numbers = count()
        self.leavings = Leavings(self.engine, self._what, self, engine is None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Is its own copy: environments that are copied go on sharing it."""
        return self

    @property
    def is_open(self) -> bool:
        """Whether `close` was not called yet."""
        return self.leavings.is_open

    def open(self, layer: Layer | None = None) -> ContainerBranch:
        """Returns a session that starts from a layer; from the task's image if None.

        Costs nothing until its first command.
        """
        if not self.is_open:
            raise ClosedError("`open` after `close` of these ContainerBranches")
        return ContainerBranch(self, layer or self.base)

    def close(self) -> None:
        """Removes every container and image of these sessions; may be called again.

        Raises:
            EngineError: If the engine is away; what is left is removed when Python ends, or by the
                next process.
        """
        self.leavings.close()

    def sweep(self) -> None:
        """Removes what dropped sessions and layers leave; the next command does it too."""
        self.leavings.sweep()

    def start(self, layer: Layer) -> SessionContainer:
        """Starts a container from a layer; for sessions."""
        return SessionContainer(
            self.engine,
            replace(self._spec, image=layer.image),
            self._what,
            shell=self.shell,
            user=self._user,
            fresh=layer is self.base,
        )

    def commit(self, container: str, depth: int) -> Layer:
        """Makes a layer of a container that was started from one of a depth; for sessions."""
        call, api = self.engine.call, self.engine.api
        tag = str(next(self._numbers))
        image = f"{self.name}:{tag}"
        if depth < self.max_layers:
            # No process runs between commands that would have to be paused. Labels are taken over.
            call(api.commit, container, self.name, tag, pause=False)
            depth += 1
        else:
            labels = self.engine.labels(self._what).items()
            lines = [f"LABEL {name}={value}" for name, value in labels]
            files = call(api.export, container)
            call(api.import_image_from_stream, files, self.name, tag, changes=lines)
            depth = 1
        layer = Layer(call(api.inspect_image, image)["Id"], depth)
        self.leavings.when_gone(layer, [image], images=True)
        return layer


class ContainerBranch:
    """A shell session; made by `ContainerBranches.open` and by `fork`.

    One that is dropped leaves nothing once another of its `branches` runs a command. An engine that
    restarts stops containers and keeps their files: the session goes on.

    Attributes:
        branches: What it has in common with others.
    """

    def __init__(self, branches: ContainerBranches, layer: Layer) -> None:
        """Starts no container."""
        self.branches = branches
        self._layer = layer
        self._changed = self._pruned = False
        self._container: SessionContainer | None = None
        self._names: list[str] = []  # of the container, for when this is gone
        branches.leavings.when_gone(self, self._names)

    def run(self, command: str, seconds: float | None = None) -> Outcome:
        """Runs a command, in the directory and with the variables that the last one left.

        `exit` ends the command only. One that replaces the shell by `exec`, sets a trap for its
        end, or is killed for its time leaves directory and variables as they were.

        Args:
            command: For the session's shell; it reads nothing.
            seconds: At most; then it is killed, with all that it started. The session goes on.
        """
        container = self.start()
        self._changed = True  # also by a command that fails half way
        return container.command(command, self.branches.seconds if seconds is None else seconds)

    def fork(self, n: int = 1) -> list[ContainerBranch]:
        """Returns `n` sessions in this one's state; it goes on undisturbed itself.

        Commits if a command ran since the last fork, at the cost of what was written since then.
        All share what is committed; each starts a container of its own with its next command.
        """
        if n < 1:
            raise ValueError(f"`n` is {n}; expected at least 1 session")
        layer = self.layer()
        return [self.branches.open(layer) for _ in range(n)]

    def layer(self) -> Layer:
        """Returns this state, to be kept, or to open sessions from; commits as `fork` does."""
        self._expect_open()
        if self._changed:
            assert self._container is not None
            self._layer = self.branches.commit(self._container.name, self._layer.depth)
            self._changed = False
            # Its files are in the layer now; kept, they would be there twice, and be committed
            # twice by the next fork.
            self._leave()
        return self._layer

    def start(self) -> SessionContainer:
        """Starts the container if there is none, so that the next command need not."""
        self._expect_open()
        self.branches.sweep()
        if self._container is None:
            self._container = self.branches.start(self._layer)
            self._names.append(self._container.name)
        return self._container

    def prune(self) -> None:
        """Ends this session and removes its container; may be called again."""
        self._pruned = True
        self._leave()
        self._layer = self.branches.base  # lets go of its layers
        self.branches.sweep()

    def _expect_open(self) -> None:
        if self._pruned or not self.branches.is_open:
            raise ClosedError("a session that was pruned, or whose ContainerBranches were closed")

    def _leave(self) -> None:
        if self._container is not None:
            self._container.remove()
            self._container = None
            self._names.clear()
