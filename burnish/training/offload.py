"""Offloading: tensors that live in CPU memory, and are on the device only while somebody works with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from burnish.training.dtensor import Rewrap, local_part, rewrap

CPU = torch.device("cpu")


def has_own_memory(device: torch.device) -> bool:
    """Is there anything to gain by offloading from it?"""
    return device.type != "cpu"


class Parked:
    """Something that waits in CPU memory, and is on the device while somebody works with it."""

    users = 0

    @contextlib.contextmanager
    def fetched(self) -> Iterator[None]:
        """On the device inside; several may be inside at once."""
        if self.users == 0:
            self.fetch()
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            if self.users == 0:
                self.park()

    def fetch(self) -> None:
        raise NotImplementedError

    def park(self) -> None:
        raise NotImplementedError


class Offload(Parked):
    """The tensors that `tensors()` names wait in CPU memory between phases; `changes` says which must be brought back.

    Only their storage moves: a parameter stays the same object, so that optimizers and hooks keep hold of it.
    """

    def __init__(
        self,
        tensors: Callable[[], Iterable[Tensor]],
        device: torch.device,
        changes: Callable[[Tensor], bool] = lambda tensor: True,
    ) -> None:
        self.tensors = tensors
        self.device = device
        self.changes = changes
        self.homes: dict[int, Tensor] = {}

    def fetch(self) -> None:
        for tensor in self.tensors():
            if self.device.type != "cuda" or tensor.data.is_pinned():  # else it finds a pinned home when it is parked
                self.homes[id(tensor)] = tensor.data
            tensor.data = tensor.data.to(self.device, non_blocking=True, copy=True)

    def park(self) -> None:
        """To CPU memory, and the device's memory back to whoever wants it."""
        homes = {}
        for tensor in self.tensors():
            home = self.homes.get(id(tensor))
            if home is None or home.shape != tensor.shape or home.dtype != tensor.dtype:
                home = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.device.type == "cuda")
                home.copy_(tensor.data)
            elif self.changes(tensor):
                home.copy_(tensor.data, non_blocking=True)
            homes[id(tensor)] = home
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for tensor in self.tensors():
            tensor.data = homes[id(tensor)]
        self.homes = homes
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the engine sizes its cache by what the driver calls free


@contextlib.contextmanager
def updated_on_cpu(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Weights and gradients are in CPU memory inside, where the optimizer's state lives; the weights go back after."""
    places = [parameter.data for parameter in parameters]
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        parameter.data = parameter.data.to(CPU, copy=True)
        parameter.grad = None if gradient is None else gradient.to(CPU)
    try:
        yield
    finally:
        for parameter, place in zip(parameters, places, strict=True):
            parameter.grad = None
            parameter.data = place.copy_(parameter.data)


def activations_on_cpu(module: nn.Module, device: torch.device) -> AbstractContextManager:
    """What the forward pass saves for the backward pass waits in CPU memory; weights stay where they are."""
    weights = {local_part(parameter.detach()).data_ptr() for parameter in module.parameters()}

    def pack(tensor: Tensor) -> tuple[Rewrap | None, Tensor, tuple[int, ...]]:
        held = local_part(tensor.detach())
        base = held if held._base is None else held._base
        if base.data_ptr() in weights or not held.is_floating_point():
            return None, tensor, ()
        home = torch.empty_like(held, device="cpu", pin_memory=device.type == "cuda")
        home.copy_(held, non_blocking=device.type == "cuda")
        return rewrap(tensor), home, held.stride()

    def unpack(packed: tuple[Rewrap | None, Tensor, tuple[int, ...]]) -> Tensor:
        wrap, tensor, stride = packed
        return tensor if wrap is None else wrap(_laid_out(tensor.to(device, non_blocking=True), stride))

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _laid_out(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """As it lay before: a compiled program reads its tensors by the strides it was compiled for."""
    if tensor.stride() == stride or 0 in stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
