"""Channel: our end of the pipe to a worker. It waits for nobody: half a message, or a worker that does not read."""

from __future__ import annotations

import select
import socket
import struct

MOST_BYTES = 16 * 2**20  # of one message from a worker
_SEND_SECONDS = 10.0
_READ_BYTES = 2**16


class Channel:
    """Frames messages as multiprocessing's Connection does, which the worker has: four bytes of length, then them."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._socket.settimeout(_SEND_SECONDS)
        self._buffer = bytearray()
        self._messages: list[bytes] = []
        self._ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """EOFError if the worker is gone or does not read."""
        try:
            self._socket.sendall(struct.pack("!i", len(message)) + message)
        except OSError as error:
            raise EOFError(str(error)) from error

    def poll(self, seconds: float | None = 0.0) -> bool:
        """Is there something to take, or the end? Waits for it that long; None is for ever."""
        if self._messages or self._ended:
            return True
        return bool(select.select([self._socket], [], [], seconds)[0])

    def take(self) -> list[bytes]:
        """The whole messages that have arrived. EOFError when there are none and none will come."""
        while not self._ended and select.select([self._socket], [], [], 0.0)[0]:
            self._read()
        taken, self._messages = self._messages, []
        if not taken and self._ended:
            raise EOFError("the worker closed its pipe")
        return taken

    def receive(self) -> bytes:
        """The next message, waiting for it. EOFError when none will come."""
        while not self._messages:
            if self._ended:
                raise EOFError("the worker closed its pipe")
            self.poll(None)
            self._read()
        return self._messages.pop(0)

    def close(self) -> None:
        self._socket.close()
        self._ended = True

    def _read(self) -> None:
        try:
            read = self._socket.recv(_READ_BYTES)
        except OSError:
            read = b""
        self._ended = not read
        self._buffer += read
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from("!i", self._buffer)
            if not 0 <= length <= MOST_BYTES:
                self._ended = True  # nonsense, or an answer that nobody should hold in memory
                self._socket.shutdown(socket.SHUT_RDWR)
                return
            if len(self._buffer) < 4 + length:
                return
            self._messages.append(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
