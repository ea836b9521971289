"""The torch.distributed process group of the ranks of one WorkerGroup."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class RankInfo:
    """Which rank this process is, and where the ranks rendezvous."""

    rank: int
    size: int
    local_rank: int
    address: str  # host:port of the rendezvous
    timeout: float = 600.0  # seconds that a collective may take

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.size}"


def init_process_group(info: RankInfo, device: torch.device) -> None:
    """Tensors on the device use its own backend (NCCL), those in CPU memory gloo."""
    host, _, port = info.address.rpartition(":")
    timeout = timedelta(seconds=info.timeout)
    # A store of our own: under torchrun, init_method would use torchrun's.
    store = dist.TCPStore(host, int(port), info.size, is_master=info.rank == 0, timeout=timeout, wait_for_workers=False)
    backend = dist.get_default_backend_for_device(device.type)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{backend}",
        store=store,
        rank=info.rank,
        world_size=info.size,
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )


def destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
