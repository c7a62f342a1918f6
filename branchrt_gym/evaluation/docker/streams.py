"""The two directions of a command in a container: what it reads, and a bounded part of its output.

The engine sends output in frames: a byte that names the stream, three zeros, a length in four
bytes, and as much text.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, SHUT_WR, socket
from typing import IO, Any

__all__ = ["Output", "hang_up", "pump", "wire"]

CHUNK = 1 << 16
HEADER = 8
LOOK = 1.0  # seconds of silence after which it is asked whether the command still runs
BEFORE = 1 << 20  # bytes ahead of the mark, at most


class Output:
    """Collects frames; keeps the first and the last half of `keep` bytes.

    Attributes:
        before: What came ahead of the line that starts with `mark`; that line's rest is `word`.
        printed: Bytes after it, kept or not. first: When the first of them came (monotonic).
        marked: When the line itself came.
    """

    def __init__(self, keep: int, mark: bytes = b"") -> None:
        """Waits for the mark, if there is one."""
        self.before, self.word = b"", ""
        self.printed = 0
        self.marked: float | None = None if mark else time.monotonic()
        self.first: float | None = None
        self._mark, self._half = mark, max(1, keep // 2)
        self._frames = bytearray()
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come from the engine."""
        self._frames += data
        start = 0
        while len(self._frames) >= start + HEADER:
            end = start + HEADER + int.from_bytes(self._frames[start + 4 : start + 8], "big")
            if end > len(self._frames):
                break
            self._text(bytes(self._frames[start + HEADER : end]))
            start = end
        del self._frames[:start]

    def text(self) -> str:
        """Returns what was kept, with a line in place of what was not."""
        tail = b"".join(self._tail)[-self._half :]
        lost = self.printed - len(self._head) - len(tail)
        gap = f"\n[{lost} bytes of output left out]\n".encode() if lost > 0 else b""
        return (bytes(self._head) + gap + tail).decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """Whether some was left out."""
        return self.printed > 2 * self._half

    def _text(self, text: bytes) -> None:
        now = time.monotonic()
        if self.marked is None:
            self.before += text
            at = self.before.find(self._mark)
            end = self.before.find(b"\n", at + len(self._mark)) if at >= 0 else -1
            if end < 0:
                self.before = self.before[-BEFORE:]
                return
            text = self.before[end + 1 :]
            self.word = self.before[at + len(self._mark) : end].decode("utf-8", "replace").strip()
            self.before = self.before[:at]
            self.marked = now
        if not text:
            return
        self.first = now if self.first is None else self.first
        self.printed += len(text)
        room = self._half - len(self._head)
        self._head += text[:room]
        if text[room:]:
            self._tail.append(text[room:])
            self._tail_size += len(text[room:])
        while self._tail and self._tail_size - len(self._tail[0]) >= self._half:
            self._tail_size -= len(self._tail.popleft())


def wire(stream: Any) -> socket:
    """Returns the socket under what the SDK calls one."""
    found: socket = getattr(stream, "_sock", stream)
    return found


def hang_up(stream: Any) -> None:
    """Ends a connection at once; the SDK's objects would hold it open after `close`.

    While the engine has output that nobody reads, it does not learn that a container has ended.
    """
    with suppress(OSError):
        wire(stream).shutdown(SHUT_RDWR)
    stream.close()


def pump(
    link: socket,
    data: IO[bytes],
    output: Output,
    *,
    deadline: Callable[[], float],
    most: int,
    wake: socket | None,
    runs: Callable[[], bool],
) -> str:
    """Writes `data`, then end of file, and reads to the end.

    Args:
        link: The engine's socket; left in non-blocking mode.
        data: What the command reads.
        output: Takes what comes.
        deadline: When to stop, in monotonic seconds.
        most: Bytes printed after which to stop.
        wake: Stop when something can be read from this.
        runs: Whether the command still runs; a child of it may hold the stream open.

    Returns:
        `"end"`, `"deadline"`, `"printed"` or `"woken"`.
    """
    link.setblocking(False)
    chunk = data.read(CHUNK)
    looked = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ | selectors.EVENT_WRITE)
        if wake is not None:
            selector.register(wake, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            if now >= deadline():
                return "deadline"
            ready = {
                key.fileobj: mask for key, mask in selector.select(min(LOOK, deadline() - now))
            }
            if wake in ready:
                return "woken"
            mask = ready.get(link, 0)
            if mask & selectors.EVENT_READ:
                received = link.recv(CHUNK)
                if not received:
                    return "end"
                output.feed(received)
                looked = time.monotonic()
                if output.printed > most:
                    return "printed"
            elif mask & selectors.EVENT_WRITE:
                if chunk:
                    chunk = chunk[link.send(chunk) :] or data.read(CHUNK)
                else:
                    link.shutdown(SHUT_WR)
                    selector.modify(link, selectors.EVENT_READ)
            elif time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                if not runs():
                    return "end"
