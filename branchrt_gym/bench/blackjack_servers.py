"""NVIDIA NeMo Gym's own Blackjack server: started on loopback, and played over HTTP."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from branchrt_gym.bench.blackjack_hands import HIT, advice
from branchrt_gym.errors import BranchRTError, MissingExtraError
from branchrt_gym.evaluation.closing import Closing
from branchrt_gym.evaluation.verifiers import CallableVerifier

if TYPE_CHECKING:
    import httpx

__all__ = ["NemoPlayer", "NemoServer", "read_observation"]

START = 120.0  # seconds in which a server must be up
TIMEOUT = 30.0  # seconds of one request

# Run by a Python of its own, since nemo-gym needs 3.12 or later and many packages. It ends when its
# standard input does, so also with a parent that was killed.
SERVE = """
import os, socket, sys, threading
from importlib.metadata import version
from unittest.mock import MagicMock

import uvicorn
from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.server_utils import ServerClient
from resources_servers.blackjack.app import BlackjackEnv

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
config = BaseResourcesServerConfig(
    host="127.0.0.1", port=port, entrypoint="app.py", name="blackjack"
)
env = BlackjackEnv(config=config, server_client=MagicMock(spec=ServerClient))
server = uvicorn.Server(uvicorn.Config(env.setup_webserver(), log_level="warning"))
print(f"{port} {version('nemo-gym')}", flush=True)
server.run(sockets=[listening])
"""

CARDS = {"A": 1, "J": 10, "Q": 10, "K": 10}
SEEN = re.compile(r"Your hand: \[(?P<hand>[^\]]*)\] = (?P<total>\d+)\nDealer shows: (?P<up>\w+)")


class NemoServer(Closing):
    """A NeMo Gym Blackjack server in a process of its own; a context manager.

    Attributes:
        url: Where it listens.
        version: nemo-gym's version.

    Args:
        python: A Python, 3.12 or later, that has nemo-gym.
    """

    def __init__(self, python: str) -> None:
        """Starts it and waits until it listens.

        Raises:
            BranchRTError: If it does not come up; the text has what it wrote last.
        """
        self._errors = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                [python, "-P", "-c", SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            raise BranchRTError(f"`python` {python!r} cannot be started: {error}") from error
        try:
            told = self._first_line().split()
        except BaseException:
            self.close()
            raise
        if len(told) != 2:
            self.close()
            raise BranchRTError(
                f"`python` {python!r} does not serve NeMo Gym's Blackjack; it needs Python 3.12 or "
                f"later with nemo-gym. It wrote last: {self.last_words}"
            )
        self.url = f"http://127.0.0.1:{told[0]}"
        self.version = told[1]

    def _first_line(self) -> str:
        """Waits for a line; returns less if the server ends, or takes too long."""
        assert self._process.stdout is not None
        line, end = b"", time.monotonic() + START
        while not line.endswith(b"\n"):
            left = max(0.0, end - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                break
            piece = os.read(self._process.stdout.fileno(), 256)
            if not piece:
                break
            line += piece
        return line.decode(errors="replace")

    def close(self) -> None:
        """Ends the server and its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._errors.seek(0)
        self.last_words = self._errors.read()[-500:].decode(errors="replace").strip() or "nothing"


class NemoPlayer:
    """Plays hands by basic strategy, each in a session of its own; a context manager.

    The server deals as it likes: it takes no seed, so a root is no certain deal here.

    Attributes:
        episodes: Hands played to their end.
        requests: Requests made.

    Args:
        url: The server's.
    """

    def __init__(self, url: str) -> None:
        """Makes no connection yet; each thread makes its own."""
        try:
            import httpx  # noqa: F401 - missed here rather than in each thread
        except ImportError as error:
            raise MissingExtraError("http", "httpx") from error
        self._url = url
        self._clients: list[httpx.Client] = []
        self._mine = threading.local()
        self._lock = threading.Lock()
        self.episodes = self.requests = 0

    def verifier(self, connections: int) -> CallableVerifier:
        """Returns a verifier that plays that many hands at a time."""
        return CallableVerifier(
            self.play, threads=connections, version="NeMo Gym Blackjack, basic strategy"
        )

    def play(self, root: int, candidate: int) -> bool:
        """Plays one hand; returns whether it won."""
        client = self._client()
        client.cookies.clear()  # the session of the hand before
        parameters: dict[str, Any] = {"input": []}
        seen = self._post(client, "/reset", {"responses_create_params": parameters})
        requests = 1
        while True:
            word = "hit" if advice(*read_observation(seen["observation"])) == HIT else "stand"
            body = {"responses_create_params": parameters, "response": _answer(word)}
            seen = self._post(client, "/step", body)
            requests += 1
            if seen["terminated"] or seen["truncated"]:
                break
        with self._lock:
            self.episodes += 1
            self.requests += requests
        return bool(seen["reward"] > 0)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the connections."""
        for client in self._clients:
            client.close()

    def _client(self) -> httpx.Client:
        client: httpx.Client | None = getattr(self._mine, "client", None)
        if client is None:
            import httpx

            client = self._mine.client = httpx.Client(base_url=self._url, timeout=TIMEOUT)
            with self._lock:
                self._clients.append(client)
        return client

    def _post(self, client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = client.post(path, json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def read_observation(text: str) -> tuple[int, int, int]:
    """Reads the server's text: the sum, the face-up card, 1 … 10, and whether an ace is usable."""
    found = SEEN.search(text)
    if found is None:
        raise ValueError(f"the observation is {text[:200]!r}; expected a hand and a dealer's card")
    cards = [_value(card) for card in found["hand"].split(", ")]
    total = int(found["total"])
    return total, _value(found["up"]), int(total != sum(cards))


def _value(card: str) -> int:
    return CARDS.get(card) or int(card)


def _answer(word: str) -> dict[str, Any]:
    """Returns a model's response that says one action, with what the server's schema asks for."""
    text = {"type": "output_text", "text": f"<action>{word}</action>", "annotations": []}
    message = {
        "id": "message",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    return {
        "id": "response",
        "object": "response",
        "created_at": 0.0,
        "model": "basic strategy",
        "output": [message],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
    }
