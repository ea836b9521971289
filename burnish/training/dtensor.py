"""DTensors: this rank's part, and the full tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

Rewrap = Callable[[Tensor], Tensor]


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rewrap(tensor: Tensor) -> Rewrap:
    """A function that makes such a tensor from this rank's part; it does not keep the tensor alive."""
    if not isinstance(tensor, DTensor):
        return _identity
    layout = {"shape": tensor.shape, "stride": tensor.stride(), "run_check": False}
    wrap = partial(DTensor.from_local, device_mesh=tensor.device_mesh, placements=tensor.placements, **layout)
    return cast(Rewrap, wrap)


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor, on every rank that holds a part; all of them must call it.

    Gathers one mesh dimension after the other, in reverse order of the sharding.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    placements = list(tensor.placements)
    for dimension in range(len(placements)):
        placements[dimension] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()
