import os
import socket
import struct
import threading
import time
from multiprocessing.connection import Connection

import pytest

from burnish.reward import channel
from burnish.reward.channel import MOST_BYTES, Channel


@pytest.fixture
def ends():
    ours = Channel()
    theirs = Connection(os.dup(ours.theirs.fileno()))
    ours.theirs.close()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_it_speaks_with_a_connection(ends):
    ours, theirs = ends
    ours.send(b"question")
    assert theirs.recv_bytes() == b"question"
    theirs.send_bytes(b"one")
    theirs.send_bytes(b"two")
    assert ours.poll(1)
    assert ours.take() == [b"one", b"two"]
    assert ours.take() == []
    threading.Thread(target=theirs.send_bytes, args=(b"x" * 300_000,)).start()  # more than the pipe holds
    assert ours.receive() == b"x" * 300_000


def test_half_a_message_keeps_nobody_waiting(ends):
    ours, theirs = ends
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"half")
    started = time.perf_counter()
    assert ours.take() == []
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize("length", [-1, MOST_BYTES + 1, 2**31 - 1])
def test_a_length_that_makes_no_sense_is_the_end(ends, length):
    ours, theirs = ends
    theirs.send_bytes(b"good")
    os.write(theirs.fileno(), struct.pack("!i", length) + b"more")
    assert ours.take() == [b"good"]
    assert ours.poll()
    with pytest.raises(EOFError):
        ours.take()


def test_the_end_comes_after_the_last_message(ends):
    ours, theirs = ends
    theirs.send_bytes(b"last")
    theirs.close()
    assert ours.take() == [b"last"]
    with pytest.raises(EOFError):
        ours.take()
    with pytest.raises(EOFError):
        ours.receive()
    with pytest.raises(EOFError):
        ours.send(b"anybody?")


def test_a_worker_that_does_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(channel, "_SEND_SECONDS", 0.1)
    ours = Channel()
    ours._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with pytest.raises(EOFError):
        ours.send(b"x" * 2**22)
    ours.close()
    ours.theirs.close()
