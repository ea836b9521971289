"""The norm of a gradient whose parts may lie on several ranks, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from burnish.training.dtensor import local_part


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients down to max_norm where they are longer; the norm before, the same number on every rank.

    Weights may lie on different meshes (those that tensor ranks hold whole are split over data ranks only), which no
    operation of torch takes together. So each rank measures what it has, and what is split alike is summed together; a
    weight that several ranks hold whole counts once.
    """
    spread: dict[tuple[ProcessGroup, ...], list[Tensor]] = {}
    for gradient in (parameter.grad for parameter in parameters if parameter.grad is not None):
        spread.setdefault(split_over(gradient), []).append(local_part(gradient))
    norms = [_norm(parts, groups) for groups, parts in spread.items()]
    if not norms:
        return torch.zeros(())
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)  # the small number is that of torch's own clipping
    for parts in spread.values():
        torch._foreach_mul_(parts, factor)
    return total


def split_over(tensor: Tensor) -> tuple[ProcessGroup, ...]:
    """The groups of ranks that hold different parts of a tensor, one for each dimension of a mesh that splits it."""
    if not isinstance(tensor, DTensor):
        return ()
    dimensions = [number for number, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return tuple(tensor.device_mesh.get_group(number) for number in dimensions)


def _norm(parts: list[Tensor], groups: tuple[ProcessGroup, ...]) -> Tensor:
    """Of all parts, this rank's and those of the groups' other ranks."""
    norm = get_total_norm(parts)
    if not groups:
        return norm
    square = norm.float() ** 2
    for group in groups:
        distributed.all_reduce(square, group=group)
    return square.sqrt()
