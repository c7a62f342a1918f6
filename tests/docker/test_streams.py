"""Frames, marks and bounds of output, without an engine."""

import io
import random
import socket
import threading
import time

import pytest

from branchrt_gym.evaluation.docker.streams import Output, pump


def frame(text, stream=1):
    return bytes([stream, 0, 0, 0]) + len(text).to_bytes(4, "big") + text


def fed(texts, keep=1000, mark=b"", seed=0):
    """Feeds frames cut at places that have nothing to do with them."""
    data, cuts = b"".join(map(frame, texts)), random.Random(seed)
    output = Output(keep, mark)
    while data:
        size = cuts.randint(1, 13)
        output.feed(data[:size])
        data = data[size:]
    return output


@pytest.mark.parametrize("seed", range(5))
def test_frames_are_joined_wherever_they_are_cut(seed):
    output = fed([b"one\n", b"", b"two\n", "drei ä".encode()], seed=seed)
    assert output.text() == "one\ntwo\ndrei ä" and output.printed == 15
    assert not output.truncated and output.first is not None


def test_the_first_and_the_last_half_are_kept():
    text = "".join(f"{number:04}" for number in range(1000))
    output = fed([text[at : at + 7].encode() for at in range(0, 4000, 7)], keep=100)
    assert output.text() == f"{text[:50]}\n[3900 bytes of output left out]\n{text[-50:]}"
    assert output.truncated and output.printed == 4000
    exact = fed([b"x" * 60, b"y" * 40], keep=100)
    assert exact.text() == "x" * 60 + "y" * 40 and not exact.truncated


@pytest.mark.parametrize("seed", range(5))
def test_only_what_follows_the_first_mark_counts(seed):
    texts = [b"log\n\nM", b"ARK appl", b"ied\nout\nMARK refused\n"]
    output = fed(texts, mark=b"\nMARK ", seed=seed)
    assert (output.before, output.word) == (b"log\n", "applied")
    assert output.text() == "out\nMARK refused\n" and output.printed == 17


def test_without_its_mark_an_output_has_not_begun():
    output = fed([b"much\n" * 10], mark=b"\nMARK ")
    assert output.marked is None and output.first is None and output.text() == ""


def drive(answer, *, deadline=60.0, most=1 << 30, data=b"", wake=None, runs=lambda: True):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=answer, args=(theirs,))
        thread.start()
        output, end = Output(1000), time.monotonic() + deadline
        how = pump(
            ours,
            io.BytesIO(data),
            output,
            deadline=lambda: end,
            most=most,
            wake=wake,
            runs=runs,
        )
        ours.close()
        thread.join()
    return how, output


def test_input_larger_than_any_buffer_is_answered_while_it_is_written():
    data = bytes(3_000_000)

    def answer(link):
        left = len(data)
        while left:
            left -= len(link.recv(min(left, 65536)))
            link.sendall(frame(b"."))
        assert link.recv(1) == b""  # the end of the input
        link.close()

    how, output = drive(answer, data=data)
    assert how == "end" and output.printed > 40


def test_how_a_stream_ends():
    def hold(link):  # and it stays open
        link.sendall(frame(b"x" * 100))

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        found = [
            drive(hold, deadline=0.2)[0],
            drive(hold, most=50)[0],
            drive(hold, wake=ours)[0],
            drive(hold, runs=lambda: False)[0],
        ]
    assert found == ["deadline", "printed", "woken", "end"]
