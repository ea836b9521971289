"""The norm of a gradient whose parts may lie on several meshes of ranks, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def clip(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale the gradients down to max_norm where they are longer; the norm before. The same number on every rank.

    A weight that several ranks hold whole counts once. Weights split over data ranks only and weights split over data
    and tensor ranks lie on different meshes, and no operation takes both: so each mesh has its own norm first.
    """
    meshes: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            meshes.setdefault(mesh_of(parameter.grad), []).append(parameter)
    norms = [whole(get_total_norm([parameter.grad for parameter in members])) for members in meshes.values()]
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.tensor([float(norm) for norm in norms]))
    for members in meshes.values():
        clip_grads_with_norm_(members, max_norm, total)
    return float(total)


def mesh_of(tensor: Tensor) -> DeviceMesh | None:
    """The ranks that a tensor is spread over; None where it is not."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every rank that has a part of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
