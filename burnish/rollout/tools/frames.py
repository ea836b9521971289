"""Messages over a socket: four bytes of length, then the message."""

from __future__ import annotations

import socket
import struct
import time

MAX_BYTES = 16 * 2**20  # of one message
_CHUNK = 2**16


def send_frame(connection: socket.socket, message: bytes) -> None:
    """EOFError if the other side has closed the connection."""
    try:
        connection.sendall(struct.pack("!I", len(message)) + message)
    except OSError as error:
        raise EOFError(str(error)) from error


def receive_frame(connection: socket.socket, deadline: float | None = None, max_bytes: int = MAX_BYTES) -> bytes:
    """The next message. TimeoutError at the deadline (of time.monotonic), EOFError if the connection is closed."""
    (length,) = struct.unpack("!I", _receive(connection, 4, deadline))
    if length > max_bytes:
        raise EOFError(f"a message of {length} bytes; the limit is {max_bytes}")
    return _receive(connection, length, deadline)


def _receive(connection: socket.socket, length: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError("no message in time")
        connection.settimeout(remaining)
        try:
            chunk = connection.recv(min(length - len(data), _CHUNK))
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError(str(error)) from error
        if not chunk:
            raise EOFError("the connection was closed")
        data += chunk
    return bytes(data)
