"""Channel: the parent's end of the pipe to a worker. Partial messages and workers that do not read cannot block it."""

from __future__ import annotations

import select
import socket
import struct

MAX_MESSAGE_BYTES = 16 * 2**20  # limit for one message from a worker
_SEND_SECONDS = 10.0
_READ_BYTES = 2**16


class Channel:
    """Uses the framing of the worker's multiprocessing Connection: four bytes of length, then the message."""

    def __init__(self) -> None:
        self._socket, self.worker_end = socket.socketpair()
        self._socket.settimeout(_SEND_SECONDS)
        self._buffer = bytearray()
        self._messages: list[bytes] = []
        self._closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Raise EOFError if the worker has exited or does not read."""
        try:
            self._socket.sendall(struct.pack("!i", len(message)) + message)
        except OSError as error:
            raise EOFError(str(error)) from error

    def poll(self, seconds: float | None = 0.0) -> bool:
        """Whether data or the end of the stream is available within `seconds`; None waits indefinitely."""
        if self._messages or self._closed:
            return True
        return bool(select.select([self._socket], [], [], seconds)[0])

    def take(self) -> list[bytes]:
        """All complete messages received so far, without waiting. EOFError if there are none and the pipe is closed."""
        while not self._closed and select.select([self._socket], [], [], 0.0)[0]:
            self._read()
        messages, self._messages = self._messages, []
        if not messages and self._closed:
            raise EOFError("the worker closed its pipe")
        return messages

    def receive(self) -> bytes:
        """Wait for the next message. EOFError if the pipe is closed."""
        while not self._messages:
            if self._closed:
                raise EOFError("the worker closed its pipe")
            self.poll(None)
            self._read()
        return self._messages.pop(0)

    def close(self) -> None:
        self._socket.close()
        self._closed = True

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError:
            data = b""
        self._closed = not data
        self._buffer += data
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from("!i", self._buffer)
            if not 0 <= length <= MAX_MESSAGE_BYTES:
                self._closed = True  # invalid, or too large to hold in memory
                self._socket.shutdown(socket.SHUT_RDWR)
                return
            if len(self._buffer) < 4 + length:
                return
            self._messages.append(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
