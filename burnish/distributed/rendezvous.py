"""Where the ranks of a torch process group meet: a store, and proofs that the peers are those of the run.

Ranks of one machine use a file in a folder that only this user can enter; their sockets listen on the loopback
interface. Ranks of several machines use a TCPStore at one address of rank 0's machine, bound before its port is told.

Gloo accepts any connection that names the right sequence number, and objects travel over gloo as pickles. So all ranks
of a new group prove to each other that they know the group's key before anything else is sent.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.network import bind, join_address, split_address

FILE = "file:"  # the beginning of addresses that are files
PROOF = 32  # bytes

_RESERVED: dict[str, socket.socket] = {}  # sockets that listen for stores of this process, by address


def reserve_address(connection: int) -> str:
    """host:port for a store of this process, on the interface of this connection (a descriptor)."""
    with socket.socket(fileno=os.dup(connection)) as other:
        return reserve_address_at(other.getsockname()[0])


def reserve_address_at(host: str) -> str:
    """host:port for a store of this process, at this address of this machine."""
    listener = bind(host)
    listener.listen(128)
    address = join_address(host, listener.getsockname()[1])
    _RESERVED[address] = listener
    return address


def open_store(address: str, rank: int, size: int, timeout: timedelta) -> dist.Store:
    """The store at this address; over TCP, rank 0 hosts it."""
    if address.startswith(FILE):
        store: dist.Store = dist.FileStore(address.removeprefix(FILE), size)
        store.set_timeout(timeout)
        return store
    host, port = split_address(address)
    listener = _RESERVED.pop(address, None) if rank == 0 else None
    return dist.TCPStore(
        host,
        port,
        size,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def verify_group(group: dist.ProcessGroup | None, key: bytes, label: str) -> None:
    """Raise unless every rank of this group knows the key. None is the default group; groups have different labels."""
    chosen = dist.group.WORLD if group is None else group
    if chosen is None or not _uses_gloo(chosen):
        return  # NCCL's ranks prove a number from the store to each other, and it carries tensors only
    ranks = dist.get_process_group_ranks(chosen)
    exchange_proofs(
        *(ranks.index(dist.get_rank()), len(ranks), key, label),
        send=lambda tensor, rank: dist.isend(tensor, ranks[rank], chosen),
        receive=lambda tensor, rank: dist.irecv(tensor, ranks[rank], chosen),
    )


def _uses_gloo(group: dist.ProcessGroup) -> bool:
    try:
        return isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    except RuntimeError:  # no backend for tensors in CPU memory
        return False


def exchange_proofs(
    rank: int,
    size: int,
    key: bytes,
    label: str,
    send: Callable[[Tensor, int], dist.Work | None],
    receive: Callable[[Tensor, int], dist.Work | None],
) -> None:
    """Send every other rank a proof, over the connection that this pair of ranks will use, and check theirs."""
    others = [other for other in range(size) if other != rank]
    incoming = {other: torch.zeros(PROOF, dtype=torch.uint8) for other in others}
    outgoing = {o: torch.frombuffer(bytearray(_proof(key, label, rank, o)), dtype=torch.uint8) for o in others}
    work = [receive(incoming[other], other) for other in others] + [send(outgoing[other], other) for other in others]
    for one in work:
        if one is not None:
            one.wait()
    for other in others:
        if not hmac.compare_digest(incoming[other].numpy().tobytes(), _proof(key, label, other, rank)):
            raise RuntimeError(f"rank {rank}: a process that is not of this run answered as rank {other} ({label})")


def _proof(key: bytes, label: str, sender: int, receiver: int) -> bytes:
    return hmac.digest(key, f"{label}: {sender} to {receiver}".encode(), "sha256")
