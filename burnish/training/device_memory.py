"""Device memory by owner: weights, gradients, optimizer state, the engine's share, and the rest."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from burnish.training.dtensor import local_part

REST = "activations and the rest"


class OutOfMemory(RuntimeError):
    """The device is out of memory. `owners` has bytes by owner; `requested` and `capacity` are None where unknown."""

    def __init__(self, message: str, owners: Mapping[str, int], requested: str | None, capacity: int | None) -> None:
        super().__init__(message, owners, requested, capacity)  # all arguments, so that it can be pickled
        self.owners = dict(owners)
        self.requested = requested
        self.capacity = capacity


@contextlib.contextmanager
def memory_reported(roles: Mapping[str, Any], device: torch.device) -> Iterator[None]:
    """Turn torch.OutOfMemoryError into an OutOfMemory that lists what these roles hold on the device."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # The error's frames still hold the activations, so they are counted.
        owners = bytes_by_owner(roles, device)
        total = torch.cuda.memory_allocated(device) if device.type == "cuda" else sum(owners.values())
        owners[REST] = max(0, total - sum(owners.values()))
        requested = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        capacity = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
        raise OutOfMemory(str(error), owners, requested and requested.group(1), capacity) from error


def bytes_by_owner(roles: Mapping[str, Any], device: torch.device) -> dict[str, int]:
    """Bytes on the device. A tensor that two roles share counts for the first."""
    seen: set[int] = set()

    def count(tensors: Iterable[Tensor | None]) -> int:
        num_bytes = 0
        for tensor in tensors:
            storage = None if tensor is None else local_part(tensor).untyped_storage()
            if storage is not None and storage.device.type == device.type and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                num_bytes += storage.nbytes()
        return num_bytes

    owners: dict[str, int] = {}
    for name, role in roles.items():
        backend = getattr(role, "backend", None)
        if backend is not None:
            model, optimizer = backend.model, backend.optimizer
            owners[f"{name} weights"] = count([*model.parameters(), *model.buffers()])
            owners[f"{name} gradients"] = count(parameter.grad for parameter in model.parameters())
            if optimizer is not None:
                state = [value for values in optimizer.inner.state.values() for value in values.values()]
                owners[f"{name} optimizer"] = count(value for value in state if isinstance(value, Tensor))
        if hasattr(role, "memory"):
            owners |= {f"{name} {part}": count(tensors) for part, tensors in role.memory().items()}
    return {owner: num_bytes for owner, num_bytes in owners.items() if num_bytes}
