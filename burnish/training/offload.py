"""Offloading: tensors that live in CPU memory and are on the device only while in use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from burnish.training.dtensor import Rewrap, local_part, rewrap

CPU = torch.device("cpu")


def has_own_memory(device: torch.device) -> bool:
    """Whether offloading from the device gains anything."""
    return device.type != "cpu"


class Offloaded:
    """Something that lives in CPU memory and is on the device while in use."""

    num_users = 0

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        """On the device inside; contexts may nest."""
        if self.num_users == 0:
            self.load()
        self.num_users += 1
        try:
            yield
        finally:
            self.num_users -= 1
            if self.num_users == 0:
                self.unload()

    def load(self) -> None:
        raise NotImplementedError

    def unload(self) -> None:
        raise NotImplementedError


class TensorOffload(Offloaded):
    """Offloads the tensors that `tensors()` yields; only those that `changes` accepts are copied back.

    Only their storage moves: a parameter stays the same object, so optimizers and hooks keep referring to it.
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
        self.cpu_copies: dict[int, Tensor] = {}

    def load(self) -> None:
        for tensor in self.tensors():
            if self.device.type != "cuda" or tensor.data.is_pinned():  # else `unload` allocates a pinned copy
                self.cpu_copies[id(tensor)] = tensor.data
            tensor.data = tensor.data.to(self.device, non_blocking=True, copy=True)

    def unload(self) -> None:
        copies = {}
        for tensor in self.tensors():
            copy = self.cpu_copies.get(id(tensor))
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.device.type == "cuda")
                copy.copy_(tensor.data)
            elif self.changes(tensor):
                copy.copy_(tensor.data, non_blocking=True)
            copies[id(tensor)] = copy
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for tensor in self.tensors():
            tensor.data = copies[id(tensor)]
        self.cpu_copies = copies
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the engine sizes its KV cache by what the driver reports as free


@contextlib.contextmanager
def updated_on_cpu(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Keep weights and gradients in CPU memory inside, beside the optimizer's state; then copy the weights back."""
    device_data = [parameter.data for parameter in parameters]
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        parameter.data = parameter.data.to(CPU, copy=True)
        parameter.grad = None if gradient is None else gradient.to(CPU)
    try:
        yield
    finally:
        for parameter, data in zip(parameters, device_data, strict=True):
            parameter.grad = None
            parameter.data = data.copy_(parameter.data)


def activations_on_cpu(module: nn.Module, device: torch.device) -> AbstractContextManager:
    """Keep what the forward pass saves for the backward pass in CPU memory; weights stay on the device."""
    weights = {local_part(parameter.detach()).data_ptr() for parameter in module.parameters()}

    def pack(tensor: Tensor) -> tuple[Rewrap | None, Tensor, tuple[int, ...]]:
        local = local_part(tensor.detach())
        base = local if local._base is None else local._base
        if base.data_ptr() in weights or not local.is_floating_point():
            return None, tensor, ()
        copy = torch.empty_like(local, device="cpu", pin_memory=device.type == "cuda")
        copy.copy_(local, non_blocking=device.type == "cuda")
        return rewrap(tensor), copy, local.stride()

    def unpack(packed: tuple[Rewrap | None, Tensor, tuple[int, ...]]) -> Tensor:
        wrap, tensor, stride = packed
        return tensor if wrap is None else wrap(_with_stride(tensor.to(device, non_blocking=True), stride))

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _with_stride(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Compiled code requires the strides it was compiled for."""
    if tensor.stride() == stride or 0 in stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
