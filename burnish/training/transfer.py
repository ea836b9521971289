"""Between the host's memory and the device's, without making either wait longer than it must."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device. From pinned memory the copy is made while the host goes on."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tree: Any) -> Any:
    """Lists, tuples and dicts of tensors as they are, with every tensor on the CPU: the host waits once for all."""
    leaves, shape = tree_flatten(tree)
    return tree_unflatten(_all_to_host(leaves), shape)


def _all_to_host(leaves: list[Any]) -> list[Any]:
    """What is no tensor, or on the CPU already, stays what it is."""
    streams = {leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda}
    homes = [_copied(leaf) if isinstance(leaf, Tensor) and leaf.is_cuda else leaf for leaf in leaves]
    for device in streams:
        torch.cuda.current_stream(device).synchronize()
    return [home.detach() if isinstance(home, Tensor) else home for home in homes]


def _copied(tensor: Tensor) -> Tensor:
    home = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return home.copy_(tensor.detach(), non_blocking=True)
