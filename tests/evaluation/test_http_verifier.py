"""The verifier that asks a server: what is tried again, and what every answer comes to."""

import json
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from branchrt_gym.errors import MissingExtraError
from branchrt_gym.evaluation.attempts import Attempt, Verdict, Verifier
from branchrt_gym.evaluation.http import HttpVerifier

httpx = pytest.importorskip("httpx", reason="httpx is not installed")

SOON = 30.0  # seconds in which everything happens, by far


def collect(verifier, count):
    """Polls until so many verdicts are there."""
    found = []
    end = time.monotonic() + SOON
    while len(found) < count and time.monotonic() < end:
        found += verifier.poll(1.0)
    assert len(found) == count
    return found


class Server(ThreadingHTTPServer):
    """Answers each request by what `answer(number, body)` does with its handler."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.bodies, self.headers = answer, [], []
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/verify"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
            self.server.headers.append(dict(self.headers))
        self.server.answer(self, number, body)

    def give(self, status, content, **headers):
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *arguments):
        pass


@contextmanager
def serve(answer):
    with Server(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def verdict_of(answer, **settings):
    """Verifies one attempt against a server; returns its verdict and the server."""
    given = {"tasks": ["task"], "candidates": ["good"], "backoff": 0.01, "timeout": 5.0, **settings}
    with serve(answer) as server, HttpVerifier(server.url, **given) as verifier:
        verifier.submit([Attempt(0, 0, "digest")])
        [(attempt, verdict)] = collect(verifier, 1)
        assert attempt == Attempt(0, 0, "digest")
    return verdict, server


def test_attempts_are_asked_and_answers_read():
    def answer(handler, number, body):
        passed = body["candidate"] == "good"
        handler.give(200, {"passed": passed, "score": 0.5, "cost": 2, "seconds": 9, "more": []})

    with (
        serve(answer) as server,
        HttpVerifier(
            server.url,
            tasks=["one", "two"],
            candidates=["good", "bad"],
            connections=3,
            capacity=12,
            headers={"x-key": "k"},
        ) as verifier,
    ):
        assert isinstance(verifier, Verifier)
        assert verifier.version == server.url
        attempts = [Attempt(r, c, f"{r}{c}") for r in range(2) for c in range(2)]
        verifier.submit(attempts)
        found = dict(collect(verifier, 4))
        assert verifier.poll(None) == []
    assert found == {each: Verdict(each.candidate == 0, 0.5, 2.0, 9.0) for each in attempts}
    names = ["one", "two"], ["good", "bad"]
    assert sorted(server.bodies, key=lambda body: body["digest"]) == [
        {"task": names[0][r], "candidate": names[1][c], "digest": f"{r}{c}"}
        for r in range(2)
        for c in range(2)
    ]
    assert all(headers["x-key"] == "k" for headers in server.headers)


def test_another_body_is_sent():
    verdict, server = verdict_of(
        lambda handler, *_: handler.give(201, {"passed": True}),
        body=lambda task, candidate, digest: {"prompt": [task, candidate, digest]},
    )
    assert verdict.passed and verdict.seconds > 0
    assert server.bodies == [{"prompt": ["task", "good", "digest"]}]


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_transient_status_is_tried_again(status):
    def answer(handler, number, body):
        handler.give(status, b"later") if number < 2 else handler.give(200, {"passed": True})

    verdict, server = verdict_of(answer, retries=2)
    assert verdict.passed and verdict.infrastructure is None
    assert len(server.bodies) == 3
    verdict, server = verdict_of(answer, retries=1)
    assert verdict.infrastructure == f"status {status}: later (tried 2 times)"
    assert len(server.bodies) == 2


def test_a_server_says_how_long_to_wait(monkeypatch):
    waits = []

    def answer(handler, number, body):
        asked = {0: {"retry_after": "7"}, 1: {"retry_after": "9999"}, 2: {"retry_after": "soon"}}
        if number < 4:
            handler.give(503, b"", **asked.get(number, {}))
        else:
            handler.give(200, {"passed": True})

    class Patient(HttpVerifier):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            monkeypatch.setattr(self._closed, "wait", lambda seconds: waits.append(seconds))

    with serve(answer) as server, Patient(server.url, retries=4, backoff=0.25) as verifier:
        verifier.submit([Attempt(0, 0)])
        assert collect(verifier, 1)[0][1].passed
    assert waits == [7.0, 60.0, 1.0, 2.0]


@pytest.mark.parametrize("status", [301, 400, 404, 422])
def test_another_status_is_not_tried_again(status):
    verdict, server = verdict_of(
        lambda handler, *_: handler.give(status, b"what is \xff this " * 500), retries=5
    )
    cause = verdict.infrastructure
    assert cause.startswith(f"status {status}: what is \ufffd this what") and len(cause) < 400
    assert len(server.bodies) == 1 and not verdict.passed


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<html>welcome</html>", "garbage: the answer is no JSON: <html>welcome"),
        (b"", "garbage: the answer is no JSON: an empty body"),
        (b"\xff\xfe", "garbage: the answer is no JSON: "),
        ([True], "garbage: the answer is no JSON object: [true]"),
        (True, "garbage: the answer is no JSON object: true"),
        ({}, "garbage: `passed` is missing or None"),
        ({"passed": "yes"}, "garbage: `passed` is of type str"),
        ({"passed": True, "cost": -1}, "garbage: `cost` is -1.0"),
        (b'{"passed": true, "score": NaN}', "garbage: `score` is nan"),
        ({"passed": True, "infrastructure": "no disk"}, "no disk"),
        (b"[" * 100_000, "garbage: "),
        (b"1" * 5000, "garbage: the answer is no JSON"),
        (b" " * 3_000_000, "garbage: the answer has more than 1,048,576 bytes"),
    ],
)
def test_garbage_is_an_infrastructure_failure(content, says):
    verdict, server = verdict_of(lambda handler, *_: handler.give(200, content), retries=5)
    assert verdict.infrastructure.startswith(says)
    assert len(server.bodies) == 1 and not verdict.passed


def test_a_failure_to_connect_is_tried_again():
    with socket.socket() as reserved:  # bound, and nobody listens
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/"
        with HttpVerifier(url, retries=2, backoff=0.01) as verifier:
            verifier.submit([Attempt(0, 0)])
            [(_, verdict)] = collect(verifier, 1)
    assert verdict.infrastructure.startswith("httpx.ConnectError: ")
    assert verdict.infrastructure.endswith(" (tried 3 times)")


def test_a_connection_that_breaks_is_tried_again():
    def answer(handler, number, body):
        if number == 0:
            handler.send_response(200)
            handler.send_header("content-length", "1000")
            handler.end_headers()
            handler.wfile.write(b'{"passed": true')
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        else:
            handler.give(200, {"passed": True})

    verdict, server = verdict_of(answer, retries=1)
    assert verdict.passed and len(server.bodies) == 2


@pytest.mark.parametrize("how", ["silent", "dribbles"])
def test_a_slow_server_is_given_up(how):
    gate = threading.Event()

    def answer(handler, number, body):
        if number == 0 and how == "silent":
            gate.wait(SOON)
        elif number == 0:
            handler.send_response(200)
            handler.send_header("content-length", "1000")
            handler.end_headers()
            while not gate.wait(0.05):
                handler.wfile.write(b" ")
                handler.wfile.flush()
        else:
            handler.give(200, {"passed": True})

    verdict, server = verdict_of(answer, timeout=0.3, retries=1)
    gate.set()
    assert verdict.passed and len(server.bodies) == 2
    gate.clear()
    verdict, server = verdict_of(answer, timeout=0.3, retries=0)
    gate.set()
    slow = {"silent": "httpx.ReadTimeout: ", "dribbles": "no whole answer after 0.3 s"}
    assert verdict.infrastructure.startswith(slow[how])
    assert "tried" not in verdict.infrastructure


def test_closing_ends_the_wait_for_another_try():
    asked = threading.Event()

    def answer(handler, number, body):
        handler.give(503, b"")
        asked.set()

    before = set(threading.enumerate())
    with serve(answer) as server, HttpVerifier(server.url, backoff=60.0) as verifier:
        verifier.submit([Attempt(0, 0)])
        assert asked.wait(SOON)
        verifier.close()
        assert not any(each.name == "branchrt verifier" for each in threading.enumerate())
    assert set(threading.enumerate()) <= before


def test_a_client_of_ones_own_is_used_and_left_open():
    def answer(request):
        return httpx.Response(200, json={"passed": request.url.path == "/judge"})

    client = httpx.Client(transport=httpx.MockTransport(answer))
    with HttpVerifier("https://example.test/judge", client=client) as verifier:
        verifier.submit([Attempt(0, 0)])
        assert collect(verifier, 1)[0][1].passed
    assert not client.is_closed
    client.close()


def test_an_attempt_that_is_no_json_is_an_infrastructure_failure():
    with HttpVerifier("http://127.0.0.1:9/", tasks=[{1}]) as verifier:
        verifier.submit([Attempt(0, 0)])
        [(_, verdict)] = collect(verifier, 1)
    assert verdict.infrastructure.startswith("TypeError: Object of type set is not JSON")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "example.test"}, "`url` is 'example.test'; expected one that begins with http"),
        ({"retries": -1}, "`retries` is -1"),
        ({"backoff": -0.5}, r"`backoff` -0\.5; expected 0 or more"),
        ({"connections": 0}, "`connections` is 0; expected 1 or more"),
        ({"timeout": 0.0}, r"`timeout` is 0\.0; expected seconds above 0"),
    ],
)
def test_mistakes_are_named(given, says):
    with pytest.raises(ValueError, match=says):
        HttpVerifier(**{"url": "http://127.0.0.1:9/", **given})


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"branchrt-gym\[http\]"):
        HttpVerifier("http://127.0.0.1:9/")
