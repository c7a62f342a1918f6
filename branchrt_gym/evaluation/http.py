"""A verifier that asks a server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from branchrt_gym.errors import MissingExtraError
from branchrt_gym.evaluation.answers import Names, check_sizes, describe, failure, read_verdict
from branchrt_gym.evaluation.attempts import Attempt, Verdict
from branchrt_gym.evaluation.verifiers import ThreadedVerifier

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpVerifier"]

TRANSIENT = frozenset({408, 429})  # with 5xx: statuses that say "later"
LONGEST = 1 << 20  # bytes of an answer
BEGINNING = 300  # characters of a body in a cause
MOST_WAIT = 60.0  # seconds between two tries


class HttpVerifier(ThreadedVerifier):
    """Verifies by a POST of each attempt to a server; a context manager.

    The body is JSON, `{"task": …, "candidate": …, "digest": …}`; the answer is a JSON object with
    `passed`, and if it likes `score`, `cost`, `seconds` and `infrastructure`, as in `Verdict`.

    Failures to connect, timeouts and the statuses 408, 429 and 5xx are tried again, after
    `backoff`, twice that, four times that … seconds, or what the answer's `Retry-After` says, a
    minute at most. What then fails still, any other status than 200 … 299, and garbage is an
    infrastructure failure; the cause holds the beginning of the answer's body.

    A request may be verified twice by the server, where an answer was lost: the digest tells.

    Args:
        url: Where to POST.
        tasks: What stands for a root: `tasks[root]`; its index if None.
        candidates: What stands for a candidate, likewise.
        connections: Requests at once.
        timeout: Seconds of one try.
        retries: Further tries.
        backoff: Seconds before the first of them.
        capacity: Attempts held at once, those that wait included; twice the connections if None.
        version: What verdicts depend on; by default the URL. Change it with the server.
        body: `body(task, candidate, digest)` returns what to send instead, as JSON can hold it.
        headers: To send with every request, an authorization for example.
        client: An `httpx.Client` to use instead of one of its own, for other settings; it is not
            closed.

    Raises:
        MissingExtraError: If httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        tasks: Sequence[Any] | None = None,
        candidates: Sequence[Any] | None = None,
        connections: int = 8,
        timeout: float = 60.0,
        retries: int = 3,
        backoff: float = 0.5,
        capacity: int | None = None,
        version: str | None = None,
        body: Callable[[Any, Any, str], Any] | None = None,
        headers: Mapping[str, str] | None = None,
        client: httpx.Client | None = None,
    ) -> None:
        """Makes a client; nothing is sent yet."""
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError("http", "httpx") from error
        check_sizes("connections", connections, capacity, timeout)
        if retries < 0 or backoff < 0:
            raise ValueError(f"`retries` is {retries} and `backoff` {backoff}; expected 0 or more")
        scheme = url.partition("://")[0].lower()
        if scheme not in ("http", "https"):
            raise ValueError(f"`url` is {url!r}; expected one that begins with http:// or https://")
        waits = [min(backoff * 2**time, MOST_WAIT) for time in range(retries)]
        super().__init__(
            threads=connections,
            capacity=capacity,
            # A limit on the whole, beyond those of each try, for what slips through them.
            timeout=2 * timeout * (retries + 1) + MOST_WAIT * retries,
            version=url if version is None else version,
        )
        self._url, self._timeout_each, self._waits = httpx.URL(url), timeout, waits
        self._names = Names(tasks, candidates)
        self._body = _body if body is None else body
        self._headers = dict(headers or {})
        self._own = client is None
        self._client = client or httpx.Client(
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        )

    def verify_one(self, attempt: Attempt) -> Verdict:
        """Asks the server, again where it is worth it."""
        content = json.dumps(self._body(*self._names.of(attempt), attempt.digest))
        begin = time.perf_counter()
        for tried, wait in enumerate([*self._waits, None], start=1):
            found = self._ask(content, begin)
            if isinstance(found, Verdict):
                return found
            cause, asked = found
            if wait is None:
                times = f" (tried {tried} times)" if tried > 1 else ""
                return failure(f"{cause}{times}", time.perf_counter() - begin)
            if self._closed.wait(wait if asked is None else min(asked, MOST_WAIT)):
                break
        return failure("closed before a verdict came")

    def close(self) -> None:
        """Gives requests that run a second to end, and closes the client."""
        super().close()
        if self._own:
            self._client.close()

    def _ask(self, content: str, begin: float) -> Verdict | tuple[str, float | None]:
        """Makes one try; returns a cause to try again, and in how many seconds, if it was told."""
        import httpx

        headers = {"content-type": "application/json", **self._headers}
        end = time.monotonic() + self._timeout_each
        answer = bytearray()
        try:
            with self._client.stream(
                "POST", self._url, content=content, headers=headers, timeout=self._timeout_each
            ) as response:
                for piece in response.iter_bytes():
                    answer += piece
                    if time.monotonic() > end:  # httpx limits the time between two pieces
                        return f"no whole answer after {self._timeout_each} s", None
                    if len(answer) > LONGEST:
                        return failure(f"garbage: the answer has more than {LONGEST:,} bytes")
        except httpx.TransportError as error:
            return describe(error), None
        took = time.perf_counter() - begin
        cause = f"status {response.status_code}: {_beginning(answer)}"
        if response.status_code in TRANSIENT or response.status_code >= 500:
            return cause, _seconds(response.headers.get("retry-after"))
        if not response.is_success:
            return failure(cause, took)
        try:
            value = json.loads(answer)
        except (ValueError, RecursionError):
            return failure(f"garbage: the answer is no JSON: {_beginning(answer)}", took)
        if not isinstance(value, dict):
            return failure(f"garbage: the answer is no JSON object: {_beginning(answer)}", took)
        return read_verdict(value, took)


def _body(task: Any, candidate: Any, digest: str) -> Any:
    return {"task": task, "candidate": candidate, "digest": digest}


def _beginning(answer: bytes | bytearray) -> str:
    text = answer[: 4 * BEGINNING].decode(errors="replace")
    return text[:BEGINNING] or "an empty body"


def _seconds(text: str | None) -> float | None:
    """Reads a `Retry-After` in seconds; None for a date or anything else."""
    return float(text) if text is not None and text.isdecimal() else None
