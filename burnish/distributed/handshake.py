"""The beginning of a connection between the controller and a worker: each proves to the other that it knows the secret.

    controller -> worker   MAGIC, nonce
    worker -> controller   nonce, rank, proof
    controller -> worker   proof

A proof is an HMAC over both nonces, the rank and the name of the side that proves, so it cannot be reflected or
replayed. All fields have fixed lengths, nothing is unpickled, and the exchange has a deadline.

On one machine the connection is a unix socket in a folder that only this user can enter. Between machines it is TCP,
and every message is authenticated with a key of this connection and this direction; nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import queue
import secrets
import socket
import struct
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path

from burnish.distributed.secret import cluster_secret, read_private, write_private
from burnish.network import bind, join_address, socket_folder, split_address

MAGIC = b"burnish1"
NONCE, PROOF = 32, 32  # bytes
RANK = struct.Struct("!I")
HANDSHAKE_TIMEOUT = 60.0  # seconds for a whole handshake; short for the network, long for a machine that computes
CONNECT_PATIENCE = 180.0  # seconds in which a worker tries again
MAX_HANDSHAKES = 64  # at the same time; beyond that, the oldest is given up
CONTROLLER, WORKER = b"controller", b"worker"


def is_local(address: str) -> bool:
    """Addresses are the path of a unix socket, or host:port."""
    return address.startswith("/")


def secret_of(address: str) -> bytes:
    """The secret for connections to this address: beside a unix socket, or the one that the machines share."""
    return read_private(Path(address).with_name("secret")) if is_local(address) else cluster_secret()


def connect(address: str, rank: int, patience: float = CONNECT_PATIENCE) -> Connection | SignedConnection:
    """The worker's side, tried again where a connection breaks: the controller may have had too many to greet."""
    end = time.monotonic() + patience
    while True:
        try:
            return try_connect(address, rank)
        except (ConnectionRefusedError, FileNotFoundError):  # nobody listens
            raise
        except (EOFError, OSError):
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def try_connect(address: str, rank: int, timeout: float = HANDSHAKE_TIMEOUT) -> Connection | SignedConnection:
    """AuthenticationError, EOFError or OSError unless the controller answers at this address."""
    secret, deadline = secret_of(address), time.monotonic() + timeout
    if is_local(address):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(address)
    else:
        connection = socket.create_connection(split_address(address), timeout)
    try:
        greeting = _read(connection, len(MAGIC) + NONCE, deadline)
        if not greeting.startswith(MAGIC):
            raise AuthenticationError("this is not a Burnish controller")
        fields = greeting[len(MAGIC) :] + secrets.token_bytes(NONCE) + RANK.pack(rank)
        _write(connection, fields[NONCE:] + _proof(secret, WORKER, fields), deadline)
        if not hmac.compare_digest(_read(connection, PROOF, deadline), _proof(secret, CONTROLLER, fields)):
            raise AuthenticationError("the controller does not know the secret")
        return _opened(connection, secret, fields, WORKER, CONTROLLER)
    except BaseException:
        connection.close()
        raise


class SignedConnection:
    """A connection over a network: each message follows a keyed hash of its number and content."""

    def __init__(self, connection: Connection, send_key: bytes, receive_key: bytes) -> None:
        self._connection = connection
        self._send_key, self._receive_key = send_key, receive_key
        self._num_sent = self._num_received = 0

    def send_bytes(self, message: bytes) -> None:
        self._connection.send_bytes(_tag(self._send_key, self._num_sent, message))
        self._connection.send_bytes(message)
        self._num_sent += 1

    def recv_bytes(self) -> bytes:
        tag = self._connection.recv_bytes(PROOF)
        message = self._connection.recv_bytes()
        if not hmac.compare_digest(tag, _tag(self._receive_key, self._num_received, message)):
            self.close()
            raise OSError("a message was altered on its way")
        self._num_received += 1
        return message

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()


class Listener:
    """Accepts workers at an address of this machine; `connected` gets (rank, connection) of each, once per rank.

    Every connection has a thread and a deadline of its own, so that port scans and silent peers delay nobody.
    """

    def __init__(self, host: str | None, num_ranks: int, timeout: float = HANDSHAKE_TIMEOUT) -> None:
        """`host`: the network address of this machine that other machines reach; None if all workers run here."""
        self.timeout = timeout
        self.connected: queue.SimpleQueue[tuple[int, Connection | SignedConnection]] = queue.SimpleQueue()
        self._missing = set(range(num_ranks))
        self._handshakes: dict[socket.socket, None] = {}  # in progress, oldest first
        self._lock = threading.Lock()  # guards both
        self._closed = False
        self.folder: Path | None = None  # of the unix socket and its secret
        if host is None:
            self.folder = socket_folder("burnish-")
            self.address = str(self.folder / "controller")
            write_private(self.folder / "secret", secrets.token_hex(32).encode())
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(self.address)
            self._secret = secret_of(self.address)
        else:
            self._secret = cluster_secret(create=True)
            self._socket = bind(host)
            self.address = join_address(host, self._socket.getsockname()[1])
        self._socket.listen(128)
        self._socket.settimeout(0.5)  # how often the thread notices that it was closed
        self._thread = threading.Thread(target=self._accept, daemon=True, name="burnish-accept")
        self._thread.start()

    def close(self) -> None:
        """Stop accepting. Connections of workers stay open."""
        self._closed = True
        _shut_down(self._socket)  # on Linux this wakes `accept`
        self._thread.join()
        self._socket.close()
        with self._lock:
            for connection in self._handshakes:
                _shut_down(connection)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # the peer has gone already, or this process has too many open files for now
                time.sleep(0.05)
                continue
            with self._lock:
                self._handshakes[connection] = None
                if len(self._handshakes) > MAX_HANDSHAKES:
                    _shut_down(next(iter(self._handshakes)))
            threading.Thread(target=self._greet, args=(connection,), daemon=True, name="burnish-handshake").start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            rank, opened = self._handshake(connection)
        except (AuthenticationError, EOFError, OSError):  # not one of our workers
            connection.close()
        else:
            self.connected.put((rank, opened))
        finally:
            with self._lock:
                self._handshakes.pop(connection, None)

    def _handshake(self, connection: socket.socket) -> tuple[int, Connection | SignedConnection]:
        deadline = time.monotonic() + self.timeout
        nonce = secrets.token_bytes(NONCE)
        _write(connection, MAGIC + nonce, deadline)
        answer = _read(connection, NONCE + RANK.size + PROOF, deadline)
        fields = nonce + answer[:-PROOF]
        if not hmac.compare_digest(answer[-PROOF:], _proof(self._secret, WORKER, fields)):
            raise AuthenticationError("the peer does not know the secret")
        (rank,) = RANK.unpack(fields[2 * NONCE :])
        with self._lock:
            if self._closed or rank not in self._missing:
                raise AuthenticationError(f"no worker {rank} is missing")
            self._missing.remove(rank)
        try:
            _write(connection, _proof(self._secret, CONTROLLER, fields), deadline)
        except OSError:  # it may connect again
            self._missing.add(rank)
            raise
        return rank, _opened(connection, self._secret, fields, CONTROLLER, WORKER)


def _opened(
    connection: socket.socket, secret: bytes, fields: bytes, ours: bytes, theirs: bytes
) -> Connection | SignedConnection:
    connection.settimeout(None)
    local = connection.family == socket.AF_UNIX
    plain = Connection(connection.detach())
    if local:
        return plain
    return SignedConnection(plain, _proof(secret, b"from " + ours, fields), _proof(secret, b"from " + theirs, fields))


def _proof(secret: bytes, side: bytes, fields: bytes) -> bytes:
    return hmac.digest(secret, side + b"\0" + fields, "sha256")


def _tag(key: bytes, number: int, message: bytes) -> bytes:
    return hashlib.blake2b(message, key=key, salt=struct.pack("!QQ", 0, number), digest_size=PROOF).digest()


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        connection.settimeout(_remaining(deadline))
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError("the connection was closed")
        data += piece
    return data


def _write(connection: socket.socket, data: bytes, deadline: float) -> None:
    connection.settimeout(_remaining(deadline))
    connection.sendall(data)


def _remaining(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the handshake took too long")
    return seconds


def _shut_down(connection: socket.socket) -> None:
    """Wake the thread that reads from it; that one closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
