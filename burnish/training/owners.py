"""Who holds the device's memory: weights, gradients, optimizer state, the engine's share, and the rest."""

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
    """The device's memory ran out. `owners` has bytes by owner; `asked` and `capacity` are None where not known."""

    def __init__(self, told: str, owners: Mapping[str, int], asked: str | None, capacity: int | None) -> None:
        super().__init__(told, owners, asked, capacity)  # all of them, so that it survives being sent to others
        self.owners = dict(owners)
        self.asked = asked
        self.capacity = capacity


@contextlib.contextmanager
def accounted(roles: Mapping[str, Any], device: torch.device) -> Iterator[None]:
    """Where the device's memory runs out inside, say who holds it. The roles may hold models, optimizers, an engine."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # The error's frames still hold the activations, so they are counted.
        owners = bytes_by_owner(roles, device)
        total = torch.cuda.memory_allocated(device) if device.type == "cuda" else sum(owners.values())
        owners[REST] = max(0, total - sum(owners.values()))
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        capacity = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
        raise OutOfMemory(str(error), owners, asked and asked.group(1), capacity) from error


def bytes_by_owner(roles: Mapping[str, Any], device: torch.device) -> dict[str, int]:
    """Bytes on the device, each tensor once: what two roles share is the first one's."""
    seen: set[int] = set()

    def count(tensors: Iterable[Tensor | None]) -> int:
        number = 0
        for tensor in tensors:
            storage = None if tensor is None else local_part(tensor).untyped_storage()
            if storage is not None and storage.device.type == device.type and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                number += storage.nbytes()
        return number

    found: dict[str, int] = {}
    for name, role in roles.items():
        if hasattr(role, "backend"):
            model = role.backend.model
            found[f"{name} weights"] = count([*model.parameters(), *model.buffers()])
            found[f"{name} gradients"] = count(parameter.grad for parameter in model.parameters())
        if hasattr(role, "optimizer"):
            kept = [value for values in role.optimizer.adamw.state.values() for value in values.values()]
            found[f"{name} optimizer"] = count(value for value in kept if isinstance(value, Tensor))
        if hasattr(role, "memory"):
            found |= {f"{name} {part}": count(tensors) for part, tensors in role.memory().items()}
    return {owner: number for owner, number in found.items() if number}
