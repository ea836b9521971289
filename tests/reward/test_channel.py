import os
import socket
import struct
import threading
import time
from multiprocessing.connection import Connection

import pytest

from burnish.reward import channel
from burnish.reward.channel import MAX_MESSAGE_BYTES, Channel


@pytest.fixture
def ends():
    channel_end = Channel()
    worker_end = Connection(os.dup(channel_end.worker_end.fileno()))
    channel_end.worker_end.close()
    yield channel_end, worker_end
    channel_end.close()
    worker_end.close()


def test_it_is_compatible_with_connection(ends):
    channel_end, worker_end = ends
    channel_end.send(b"question")
    assert worker_end.recv_bytes() == b"question"
    worker_end.send_bytes(b"one")
    worker_end.send_bytes(b"two")
    assert channel_end.poll(1)
    assert channel_end.take() == [b"one", b"two"]
    assert channel_end.take() == []
    threading.Thread(target=worker_end.send_bytes, args=(b"x" * 300_000,)).start()  # more than the pipe holds
    assert channel_end.receive() == b"x" * 300_000


def test_a_partial_message_does_not_block(ends):
    channel_end, worker_end = ends
    os.write(worker_end.fileno(), struct.pack("!i", 100) + b"half")
    started = time.perf_counter()
    assert channel_end.take() == []
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize("length", [-1, MAX_MESSAGE_BYTES + 1, 2**31 - 1])
def test_an_invalid_length_closes_the_channel(ends, length):
    channel_end, worker_end = ends
    worker_end.send_bytes(b"good")
    os.write(worker_end.fileno(), struct.pack("!i", length) + b"more")
    assert channel_end.take() == [b"good"]
    assert channel_end.poll()
    with pytest.raises(EOFError):
        channel_end.take()


def test_eof_comes_after_the_last_message(ends):
    channel_end, worker_end = ends
    worker_end.send_bytes(b"last")
    worker_end.close()
    assert channel_end.take() == [b"last"]
    with pytest.raises(EOFError):
        channel_end.take()
    with pytest.raises(EOFError):
        channel_end.receive()
    with pytest.raises(EOFError):
        channel_end.send(b"message")


def test_sending_to_a_worker_that_does_not_read_fails(monkeypatch):
    monkeypatch.setattr(channel, "_SEND_SECONDS", 0.1)
    channel_end = Channel()
    channel_end._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with pytest.raises(EOFError):
        channel_end.send(b"x" * 2**22)
    channel_end.close()
    channel_end.worker_end.close()
