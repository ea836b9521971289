"""Hostile peers for the attacks of test_network.py, and where processes listen."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LISTENING = "0A"


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[ServerOfBytes]:
    """A server that reads a request's header and then does as it likes with the connection."""
    server = ServerOfBytes(answer)
    try:
        yield server
    finally:
        server.close()


class ServerOfBytes:
    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self.answer, self.num_requests, self.requests = answer, 0, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._closed = False
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    return
                head += piece
            self.num_requests += 1
            self.requests.append(head)
            self.answer(connection)


def drip(data: bytes, again: bytes = b"x") -> Callable[[socket.socket], None]:
    """Send the data and then, for ever, a little more: each read of the client succeeds in time."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        while True:
            time.sleep(0.01)
            connection.sendall(again)

    return answer


def endless(data: bytes, again: bytes) -> Callable[[socket.socket], None]:
    """The same as fast as possible."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        while True:
            connection.sendall(again * 1000)

    return answer


def says(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


def silent(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def listening_hosts(pid: int) -> list[str]:
    """The hexadecimal addresses at which a process listens for TCP connections."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    hosts = []
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        hosts += [row[1].partition(":")[0] for row in rows if row[3] == LISTENING and row[9] in inodes]
    return hosts


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return children + [grandchild for child in children for grandchild in descendants(child)]


def is_loopback(host: str) -> bool:
    """127.0.0.0/8 as Linux writes it (little-endian), the same within IPv6, or ::1."""
    mapped = host.removeprefix("0000000000000000FFFF0000")
    return (len(mapped) == 8 and mapped.endswith("7F")) or host == "0" * 24 + "01000000"


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


class Rank:
    """A worker that joins a process group as those of a run do."""

    def __init__(self, rank: int, size: int, address: str) -> None:
        import torch

        from burnish.distributed.process_group import RankInfo, init_process_group

        self.rank = rank
        init_process_group(RankInfo(rank, size, rank, address, 60.0, b"key"), torch.device("cpu"))

    def sum(self) -> float:
        import torch
        import torch.distributed as dist

        total = torch.tensor(float(self.rank))
        dist.all_reduce(total)
        return total.item()
