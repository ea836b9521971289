"""Workers that torchrun started: all its processes run the same command, and rank 0 becomes the controller.

torchrun --nproc-per-node 2 -m burnish train ...

The controller starts one more process, the worker of rank 0; the other ranks are workers themselves. On one machine
they find the controller's address in a private file. On several machines they get it from torchrun's store, which
anybody on the network can read and write: a rank obeys only a controller that knows the secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

from burnish.distributed.handshake import is_local, try_connect
from burnish.distributed.host import serve
from burnish.distributed.processes import Processes
from burnish.distributed.secret import read_private, runtime_folder, write_private
from burnish.errors import UserError
from burnish.network import outgoing_address

KEYS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
STORE_KEY = "burnish/controller"
ADDRESS = re.compile(r"[\w.:\[\]-]{1,300}:[0-9]{1,5}", re.ASCII)  # host:port; not the path of a unix socket
PATIENCE = 300.0  # seconds that a rank waits for the controller


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and all(key in os.environ for key in KEYS)


def rank() -> int:
    return int(os.environ["RANK"])


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def controller_host() -> str | None:
    """The address of this machine for ranks on other machines; None if there are none."""
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:
        return None
    addresses = [found[4] for found in socket.getaddrinfo(os.environ["MASTER_ADDR"], None, type=socket.SOCK_STREAM)]
    outside = [str(host) for host, *_ in addresses if not ipaddress.ip_address(host).is_loopback]
    return outside[0] if outside else outgoing_address()


def serve_if_not_main() -> None:
    """On ranks other than 0: find the controller, run its calls, and exit."""
    if not launched() or rank() == 0:
        return
    end = time.monotonic() + PATIENCE
    while True:
        address = _find()
        problem: Any = "no controller was announced"
        if address is not None:
            try:
                connection = try_connect(address, rank())
            except (AuthenticationError, EOFError, OSError) as error:  # an old announcement, or a stranger's
                problem = error
            else:
                serve(address, rank(), connection)
                sys.exit(0)
        if time.monotonic() > end:
            raise UserError(f"rank {rank()} found no controller within {PATIENCE:g} s: {problem}")
        time.sleep(0.2)


class Torchrun:
    """Starts the worker of rank 0; the other ranks run already."""

    def __init__(self) -> None:
        self._rank_0 = Processes()
        self._address = ""
        self._names: list[str] = []

    def start(self, names: Sequence[str], address: str) -> None:
        if len(names) != world_size():
            raise ValueError(f"torchrun started {world_size()} processes, but the run has {len(names)} ranks")
        self._address, self._names = address, list(names)
        self._rank_0.start(names[:1], address)
        if is_local(address):
            _announcement().unlink(missing_ok=True)  # of a run that was killed
            write_private(_announcement(), address.encode())

    def poll(self) -> None:
        """On several machines: announce the address, and again, because anybody may change the entry."""
        if not is_local(self._address):
            _store().set(STORE_KEY, self._address)

    def exit_reason(self, name: str) -> str | None:
        return self._rank_0.exit_reason(name)

    def node(self, name: str) -> str:
        """Torchrun numbers ranks machine by machine."""
        return str(self._names.index(name) // int(os.environ.get("LOCAL_WORLD_SIZE", world_size())))

    def stop(self) -> None:
        self._rank_0.stop()
        if is_local(self._address):
            _announcement().unlink(missing_ok=True)

    def kill(self) -> None:
        """Only rank 0: when it ends, torchrun ends the others."""
        self._rank_0.kill()


def _find() -> str | None:
    """The announced address, which may be wrong."""
    if controller_host() is None:
        with contextlib.suppress(FileNotFoundError):
            return read_private(_announcement()).decode()
        return None
    entry = _store().get(STORE_KEY).decode(errors="replace")
    return entry if ADDRESS.fullmatch(entry) else None


def _announcement() -> Path:
    """The private file that names the controller of these processes of torchrun."""
    # Runs may share an id ("none" by default) but not, at the same time, a port of this machine. A home folder may
    # be that of several machines.
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    words = [platform.node(), *(os.environ.get(name, "") for name in names)]
    return runtime_folder() / f"torchrun-{hashlib.sha256('|'.join(words).encode()).hexdigest()[:16]}"


def _store() -> Any:
    import torch.distributed as dist

    timeout = timedelta(seconds=PATIENCE)
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
