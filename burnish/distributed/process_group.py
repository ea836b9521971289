"""The torch.distributed process group of the ranks of one WorkerGroup."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

from burnish.distributed.rendezvous import open_store, verify_group

NO_TIMEOUT = timedelta(days=365)


@dataclass(frozen=True)
class RankInfo:
    """Which rank this process is, and where the ranks rendezvous."""

    rank: int
    size: int
    local_rank: int
    address: str  # of the store: rendezvous.py
    timeout: float = 600.0  # seconds that a collective may take
    key: bytes = field(default=b"", repr=False)  # known to the ranks of this group only

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.size}"


def init_process_group(info: RankInfo, device: torch.device) -> None:
    """Tensors on the device use its own backend (NCCL), those in CPU memory gloo."""
    timeout = timedelta(seconds=info.timeout)
    backend = dist.get_default_backend_for_device(device.type)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{backend}",
        # A store of our own: under torchrun, init_method would use torchrun's, which other users can read and write.
        store=open_store(info.address, info.rank, info.size, timeout),
        rank=info.rank,
        world_size=info.size,
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    verify_group(None, info.key, "all ranks")


def init_neighbor_group(info: RankInfo, size: int) -> dist.ProcessGroup:
    """The process group of each `size` neighboring ranks; this rank's. Its ranks may wait for each other without end:
    while the run does other things, and until the controller ends them."""
    starts = range(0, info.size, size)
    groups = [dist.new_group([*range(start, start + size)], timeout=NO_TIMEOUT) for start in starts]
    number = info.rank // size
    group = cast("dist.ProcessGroup", groups[number])
    verify_group(group, info.key, f"neighbors {number}")
    return group


def destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
