"""Where processes of this machine meet: private folders for unix sockets, the loopback interface, single addresses."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from burnish.errors import UserError

LOOPBACK = "127.0.0.1"
# Which interfaces torch's process groups listen on: gloo's and NCCL's.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LISTENING = "0A"  # the state of a socket in /proc/net/tcp
MAX_FOLDER = 80  # characters: a unix socket in it has a path of at most 107


def socket_folder(prefix: str) -> Path:
    """A new folder that only this user can enter, with a path short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))  # with mode 700
    if len(os.fsencode(folder)) <= MAX_FOLDER:
        return folder
    shutil.rmtree(folder)
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))


def split_address(address: str) -> tuple[str, int]:
    """host:port, or [host]:port for IPv6."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int = 0) -> socket.socket:
    """A socket at one address of this machine, not at all of them; port 0 is a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UserError(f"cannot listen at {join_address(host, port)}: {error}") from error
    return listener


def outgoing_address() -> str:
    """The address of this machine on the interface of its default route. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # reserved for documentation
        return probe.getsockname()[0]


def prefer_loopback(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let process groups listen on the loopback interface, unless the user chose another."""
    for variable in INTERFACE_VARIABLES:
        environment.setdefault(variable, loopback_interface())


def loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "lo")


def listens(port: int, user: int) -> bool:
    """Whether a process of this user listens at this TCP port of this machine; True where the system cannot say."""
    tables = [table for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if table.is_file()]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    owners = {int(row[7]) for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port}
    return owners == {user} or not tables
