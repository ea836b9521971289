"""Workers that torchrun started: all its processes run the same command, and all but the first serve the first.

torchrun --nproc-per-node 2 -m burnish train ...

The first process becomes the controller and starts one more, the worker of rank 0. The processes find each other
through the store that torchrun keeps for them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from burnish.distributed.host import serve
from burnish.distributed.processes import Processes

KEYS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
MEETING = "burnish/controller"


def launched() -> bool:
    """Is this process one of torchrun's?"""
    return "TORCHELASTIC_RUN_ID" in os.environ and all(key in os.environ for key in KEYS)


def rank() -> int:
    return int(os.environ["RANK"])


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def serve_if_not_first() -> None:
    """What every process but the first does: wait for the controller's address, work for it, and end."""
    if not launched() or rank() == 0:
        return
    host, port, secret, *names = _store().get(MEETING).decode().split("\n")
    serve((host, int(port)), bytes.fromhex(secret), names[rank()])
    sys.exit(0)


class Torchrun:
    """Rank 0 is started here; the other ranks are there already."""

    def __init__(self) -> None:
        self._first = Processes()

    def start(self, names: Sequence[str], address: tuple[str, int], secret: bytes) -> None:
        if len(names) != world_size():
            raise ValueError(f"torchrun started {world_size()} processes, the run has {len(names)} ranks")
        self._first.start(names[:1], address, secret)
        message = "\n".join([address[0], str(address[1]), secret.hex(), *names])
        _store().set(MEETING, message)

    def why_dead(self, name: str) -> str | None:
        return self._first.why_dead(name)

    def stop(self) -> None:
        self._first.stop()

    def kill(self) -> None:
        """Rank 0, which all others talk to; torchrun ends those."""
        self._first.kill()


def _store() -> Any:
    import torch.distributed as dist

    wait = timedelta(seconds=300)
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=wait)
