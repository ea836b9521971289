"""Weight transfer from one process to many: buckets of (name, tensor) broadcast over a process group.

The group is created for one transfer. It is not torch's default group, because trainers and engines have default groups
of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.distributed.rendezvous import exchange_proofs, open_store

HEADER = 2  # numbers before every bucket: bytes of its description, bytes of its tensors


@dataclass(frozen=True)
class Endpoint:
    """One process of a transfer. Rank 0 sends."""

    address: str  # of the store: rendezvous.py
    rank: int
    size: int
    backend: str  # gloo or nccl
    bucket_bytes: int
    timeout: float = 600.0
    key: bytes = field(default=b"", repr=False)  # known to the processes of this transfer only


def send(stream: Iterable[tuple[str, Tensor]], endpoint: Endpoint, device: torch.device) -> int:
    """Send all weights; returns the number of bytes."""
    group = _join(endpoint, device)
    total = 0
    for bucket in _buckets(stream, endpoint.bucket_bytes):
        entries = [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in bucket]
        description = json.dumps(entries).encode()
        data = torch.cat([_bytes(tensor) for _, tensor in bucket])
        group.header(len(description), data.numel())
        group.broadcast(torch.frombuffer(bytearray(description), dtype=torch.uint8).to(group.device))
        group.broadcast(data.to(group.device))
        total += data.numel()
    group.header(0, 0)
    return total


def receive(endpoint: Endpoint, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    group = _join(endpoint, device)
    while True:
        length, size = group.header()
        if length == 0:
            return
        description = group.broadcast(torch.empty(length, dtype=torch.uint8, device=group.device))
        data = group.broadcast(torch.empty(size, dtype=torch.uint8, device=group.device))
        start = 0
        for name, shape, dtype_name in json.loads(description.cpu().numpy().tobytes()):
            dtype: torch.dtype = getattr(torch, dtype_name)
            end = start + math.prod(shape) * dtype.itemsize
            yield name, data[start:end].clone().view(dtype).view(shape)
            start = end


class _Group:
    """Broadcasts from rank 0."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self.device = device

    def broadcast(self, tensor: Tensor) -> Tensor:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self.group.broadcast([tensor], options).wait()
        return tensor

    def header(self, *numbers: int) -> tuple[int, int]:
        """Send the two numbers, or receive them."""
        header = torch.tensor(numbers or [0] * HEADER, dtype=torch.int64, device=self.device)
        length, size = self.broadcast(header).tolist()
        return length, size


def _join(endpoint: Endpoint, device: torch.device) -> _Group:
    rank, size, timeout = endpoint.rank, endpoint.size, timedelta(seconds=endpoint.timeout)
    store = open_store(endpoint.address, rank, size, timeout)
    if endpoint.backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return _Group(dist.ProcessGroupNCCL(store, rank, size, options), device)
    group: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
    exchange_proofs(
        *(rank, size, endpoint.key, "weights"),
        send=lambda tensor, other: group.send([tensor], other, 0),
        receive=lambda tensor, other: group.recv([tensor], other, 0),
    )
    return _Group(group, torch.device("cpu"))


def _buckets(stream: Iterable[tuple[str, Tensor]], limit: int) -> Iterator[list[tuple[str, Tensor]]]:
    bucket: list[tuple[str, Tensor]] = []
    filled = 0
    for name, tensor in stream:
        size = tensor.numel() * tensor.element_size()
        if bucket and filled + size > limit:
            yield bucket
            bucket, filled = [], 0
        bucket.append((name, tensor))
        filled += size
    if bucket:
        yield bucket


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
