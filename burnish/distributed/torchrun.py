"""Workers that torchrun started: all its processes run the same command, and rank 0 becomes the controller.

torchrun --nproc-per-node 2 -m burnish train ...

The controller starts one more process, the worker of rank 0; the other ranks are workers themselves. They get the
controller's address through torchrun's store.
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
STORE_KEY = "burnish/controller"


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and all(key in os.environ for key in KEYS)


def rank() -> int:
    return int(os.environ["RANK"])


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def serve_if_not_main() -> None:
    """On ranks other than 0: wait for the controller's address, run its calls, and exit."""
    if not launched() or rank() == 0:
        return
    host, port, secret, *names = _store().get(STORE_KEY).decode().split("\n")
    serve((host, int(port)), bytes.fromhex(secret), names[rank()])
    sys.exit(0)


class Torchrun:
    """Starts the worker of rank 0; the other ranks run already."""

    def __init__(self) -> None:
        self._rank_0 = Processes()

    def start(self, names: Sequence[str], address: tuple[str, int], secret: bytes) -> None:
        if len(names) != world_size():
            raise ValueError(f"torchrun started {world_size()} processes, but the run has {len(names)} ranks")
        self._rank_0.start(names[:1], address, secret)
        message = "\n".join([address[0], str(address[1]), secret.hex(), *names])
        _store().set(STORE_KEY, message)

    def exit_reason(self, name: str) -> str | None:
        return self._rank_0.exit_reason(name)

    def stop(self) -> None:
        self._rank_0.stop()

    def kill(self) -> None:
        """Only rank 0: when it ends, torchrun ends the others."""
        self._rank_0.kill()


def _store() -> Any:
    import torch.distributed as dist

    timeout = timedelta(seconds=300)
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
