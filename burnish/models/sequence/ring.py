"""Ring attention (arXiv 2310.01889): keys and values are passed from rank to rank. Works for any number of heads.

Attention is causal and limited to a segment or window, so a slice is passed from its owner to later ranks only, and no
further than some token attends to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import P2POp, ProcessGroup, Work

from burnish.models.sequence.tiles import Gradients, Merged, Queries, tiles
from burnish.models.varlen import AttentionShape


def ring_attention(
    group: ProcessGroup,
    query: Tensor,  # [1, heads, share, d] of this rank's tokens
    key: Tensor,  # [1, kv_heads, share, d]
    value: Tensor,
    segments: list[int],
    shape: AttentionShape,
    product: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """[1, share, heads, d]. `product` is not used: no rank ever holds whole segments."""
    _initialize_group(group, query.device)
    grouped = query[0].unflatten(0, (key.shape[1], -1))
    route = Route(group.rank(), group.size(), segments, query.shape[2], shape.window)
    with torch.autocast(query.device.type, enabled=False):  # dtypes are explicit, forward and backward
        output = _Ring.apply(grouped, key[0], value[0], shape, route, group)
    return output.flatten(0, 1).transpose(0, 1)[None]


@functools.cache
def _initialize_group(group: ProcessGroup, device: torch.device) -> None:
    """NCCL needs all ranks in a group's first operation, and a slice may not reach all of them."""
    distributed.all_reduce(torch.zeros(1, device=device), group=group)


class Route:
    """Which rank attends to whose slice. In step s, a rank works on the slice of the rank s before it."""

    def __init__(self, rank: int, size: int, segments: list[int], share: int, window: int | None) -> None:
        self.rank, self.size, self.segments, self.share, self.window = rank, size, segments, share, window
        self.earliest = [self._earliest(one) for one in range(size)]  # non-decreasing
        # All ranks take the same number of steps: the longest distance that a slice is passed.
        self.steps = max(self.last(owner) - owner for owner in range(size)) + 1

    def _earliest(self, rank: int) -> int:
        """The earliest slice that tokens of this rank attend to."""
        first, start = rank * self.share, 0
        for length in self.segments:
            if first < start + length:
                break
            start += length
        if self.window is not None:
            start = max(start, first - self.window + 1)
        return start // self.share

    def sees(self, rank: int, owner: int) -> bool:
        return rank < self.size and self.earliest[rank] <= owner <= rank

    def last(self, owner: int) -> int:
        """The last rank that attends to this slice."""
        return max(rank for rank in range(self.size) if self.sees(rank, owner))


class _Ring(torch.autograd.Function):
    """Saves this rank's slice and output; the backward pass passes the slices around again, with their gradients."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, route: Route, group: ProcessGroup
    ) -> Tensor:
        merged = Merged(query, value.shape[-1])
        held: Tensor | None = torch.cat([key, value], -1)  # passed as one tensor
        like, width = held, key.shape[-1]
        for step in range(route.steps):
            coming, moving = _pass_on(group, route, step, held, like)
            if held is not None:
                for tile in _tiles_of(route, step, query):
                    merged.add(query, held[..., :width], held[..., width:], shape, tile)
            _finish(moving)
            held = coming
        output = merged.output.to(value.dtype)
        ctx.save_for_backward(query, like, output, merged.lse)
        ctx.options = (width, shape, route, group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        query, like, output, lse = ctx.saved_tensors
        width, shape, route, group = ctx.options
        queries = Queries(query, lse, grad.to(query.dtype), (grad.float() * output.float()).sum(-1))
        grad_query = torch.zeros_like(query, dtype=torch.float32)
        held: Tensor | None = like
        own_grad = incoming_grad = None
        returning: list[Work] = []
        for step in range(route.steps):
            coming, moving = _pass_on(group, route, step, held, like)
            slice_grad = None
            if held is not None:
                slice_grad = torch.zeros_like(held, dtype=torch.float32)
                gradients = Gradients(grad_query, slice_grad[..., :width], slice_grad[..., width:])
                for tile in _tiles_of(route, step, query):
                    gradients.add(queries, held[..., :width], held[..., width:], shape, tile)
            _finish(returning)
            if incoming_grad is not None:
                assert slice_grad is not None  # gradients come with their slice
                slice_grad += incoming_grad
            if step == 0:
                own_grad = slice_grad
            incoming_grad, home, returning = _pass_back(group, route, step, slice_grad, like)
            own_grad = own_grad if home is None else home
            _finish(moving)
            held = coming
        _finish(returning)
        assert own_grad is not None
        grad_key, grad_value = own_grad.to(like.dtype).split([width, like.shape[-1] - width], -1)
        return grad_query.to(query.dtype), grad_key, grad_value, None, None, None


def _tiles_of(route: Route, step: int, query: Tensor) -> list:
    heads = query.shape[0] * query.shape[1]
    return list(tiles(route.segments, route.share, route.rank, route.rank - step, route.window, heads))


def _pass_on(
    group: ProcessGroup, route: Route, step: int, held: Tensor | None, like: Tensor
) -> tuple[Tensor | None, list[Work]]:
    """Send this step's slice to the next rank; receive the next step's slice from the previous rank."""
    rank, owner, coming, operations = route.rank, route.rank - step, None, []
    if held is not None and route.sees(rank + 1, owner):
        operations.append(P2POp(distributed.isend, held, group=group, group_peer=rank + 1))
    if route.sees(rank, owner - 1):
        coming = torch.empty_like(like)
        operations.append(P2POp(distributed.irecv, coming, group=group, group_peer=rank - 1))
    return coming, _begin(operations)


def _pass_back(
    group: ProcessGroup, route: Route, step: int, slice_grad: Tensor | None, like: Tensor
) -> tuple[Tensor | None, Tensor | None, list[Work]]:
    """Pass a slice's gradients along with it, accumulating; the last rank that attends to it returns them to its owner.

    -> accumulated gradients for the next step's slice, and the complete ones of this rank's slice if they arrive now.
    """
    rank, owner, coming, home, operations = route.rank, route.rank - step, None, None, []
    if slice_grad is not None and route.sees(rank + 1, owner):
        operations.append(P2POp(distributed.isend, slice_grad, group=group, group_peer=rank + 1))
    elif slice_grad is not None and step > 0:
        operations.append(P2POp(distributed.isend, slice_grad, group=group, group_peer=owner))
    if route.sees(rank, owner - 1):
        coming = torch.empty_like(like, dtype=torch.float32)
        operations.append(P2POp(distributed.irecv, coming, group=group, group_peer=rank - 1))
    if step > 0 and route.last(rank) == rank + step:
        home = torch.empty_like(like, dtype=torch.float32)
        operations.append(P2POp(distributed.irecv, home, group=group, group_peer=rank + step))
    return coming, home, _begin(operations)


def _begin(operations: list[P2POp]) -> list[Work]:
    return distributed.batch_isend_irecv(operations) if operations else []


def _finish(works: list[Work]) -> None:
    for work in works:
        work.wait()
