"""Joining the other ranks: torch.distributed, with the backend that the device asks for."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from burnish.distributed.host import RankInfo


def join(seat: RankInfo, device: torch.device) -> None:
    """Meet the other ranks. Tensors on the device go by its own library, those in CPU memory by gloo."""
    host, _, port = seat.address.rpartition(":")
    wait = timedelta(seconds=seat.timeout)
    # A store of our own: under torchrun a rendezvous by address would look for torchrun's.
    store = dist.TCPStore(host, int(port), seat.size, is_master=seat.rank == 0, timeout=wait, wait_for_workers=False)
    own = dist.get_default_backend_for_device(device.type)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{own}",
        store=store,
        rank=seat.rank,
        world_size=seat.size,
        timeout=wait,
        device_id=None if device.type == "cpu" else device,
    )


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
