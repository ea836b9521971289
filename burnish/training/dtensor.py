"""Tensors that are split over ranks: the part of this rank, and the whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

Rewrap = Callable[[Tensor], Tensor]


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rewrap(tensor: Tensor) -> Rewrap:
    """How to make such a tensor again from this rank's part of it; the tensor itself is not kept alive by that."""
    if not isinstance(tensor, DTensor):
        return _as_it_is
    how = {"shape": tensor.shape, "stride": tensor.stride(), "run_check": False}
    return partial(DTensor.from_local, device_mesh=tensor.device_mesh, placements=tensor.placements, **how)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every rank that holds a part; to be called on all of them.

    One dimension of the mesh after the other, in the order opposite to that in which it was split.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    placements = list(tensor.placements)
    for dimension in range(len(placements)):
        placements[dimension] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()
