"""Copies between host and device with as few synchronizations as possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device. From pinned memory, the host does not wait for the copy."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tree: Any) -> Any:
    """Copy every tensor of nested lists, tuples and dicts to the CPU, with one synchronization for all."""
    leaves, structure = tree_flatten(tree)
    return tree_unflatten(_all_to_host(leaves), structure)


def _all_to_host(leaves: list[Any]) -> list[Any]:
    """Other objects, and tensors on the CPU, stay as they are."""
    devices = {leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda}
    copies = [_start_copy(leaf) if isinstance(leaf, Tensor) and leaf.is_cuda else leaf for leaf in leaves]
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return [copy.detach() if isinstance(copy, Tensor) else copy for copy in copies]


def _start_copy(tensor: Tensor) -> Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor.detach(), non_blocking=True)
