"""What servers of vLLM and SGLang get by their environment, so that only this user can reach them.

BURNISH_ENGINE_KEY is the key that every request carries. The environment of a process, unlike its command line, is
hidden from other users.

BURNISH_STORES is a folder for the rendezvous of process groups. Both libraries open torch's TCPStore, even for a single
process. It listens on all interfaces, and anybody who reaches it can read and change what the ranks tell each other.
Groups that would meet at tcp://... meet in a file of this folder instead. All their ranks run on one machine.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from burnish.network import INTERFACE_VARIABLES, prefer_loopback, socket_folder

KEY_VARIABLE, STORES = "BURNISH_ENGINE_KEY", "BURNISH_STORES"


def use_private_stores() -> None:
    """For this process, if the environment names a folder. Call it before a library opens a process group."""
    if STORES in os.environ:
        # torch has no public way to replace the handler of a scheme.
        _handlers()["tcp"] = _meet_in_file


@contextlib.contextmanager
def private_stores() -> Iterator[None]:
    """For groups that are opened meanwhile, in this process and in processes that it starts."""
    handlers = dict(_handlers())
    names = (STORES, *INTERFACE_VARIABLES)
    before = {name: os.environ[name] for name in names if name in os.environ}
    folder = socket_folder("burnish-stores-")
    try:
        os.environ[STORES] = str(folder)
        prefer_loopback()
        use_private_stores()
        yield
    finally:
        _handlers().update(handlers)
        for name in names:
            os.environ.pop(name, None)
        os.environ |= before
        shutil.rmtree(folder, ignore_errors=True)


def _handlers() -> dict[str, Any]:
    # torch.distributed.rendezvous is the function of that name; the module is found by import only.
    return importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers


def _meet_in_file(url: str, timeout: timedelta = timedelta(minutes=30), **_: Any) -> Iterator[tuple[Any, int, int]]:
    """A rendezvous handler: yields store, rank and world size. The port, which is free, distinguishes groups."""
    from torch.distributed import FileStore

    parts = urlsplit(url)
    query = parse_qs(parts.query)
    rank, size = int(query["rank"][0]), int(query["world_size"][0])
    store = FileStore(os.path.join(os.environ[STORES], f"store-{parts.port}"), size)
    store.set_timeout(timeout)
    yield store, rank, size
    raise RuntimeError("a group cannot meet again")
