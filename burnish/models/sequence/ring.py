"""Ring attention (arXiv 2310.01889): keys and values are passed from rank to rank. Works for any number of heads.

A rank's slice is one part from the head of the stream and one from its tail (`spans`), so that all ranks have equal
work. A slice is passed around the ring no further than some token attends to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import P2POp, ProcessGroup, Work

from burnish.models.sequence.spans import PARTS, spans_of
from burnish.models.sequence.tiles import Gradients, Merged, Queries, Tile, tiles
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

    def __init__(self, rank: int, size: int, segments: Sequence[int], share: int, window: int | None) -> None:
        self.rank, self.size, self.segments, self.window = rank, size, list(segments), window
        self.spans = [spans_of(one, size, share, PARTS) for one in range(size)]
        # How far each slice is passed; all ranks take the same number of steps.
        self.reach = [max(d for d in range(size) if self.sees((owner + d) % size, owner)) for owner in range(size)]
        self.steps = max(self.reach) + 1

    def owner(self, step: int) -> int:
        return (self.rank - step) % self.size

    def neighbor(self, distance: int) -> int:
        return (self.rank + distance) % self.size

    def arrives(self, step: int) -> bool:
        """Whether the slice of the rank `step` before this one is passed on to it."""
        return step < self.size and step <= self.reach[self.owner(step)]

    def goes_on(self, step: int) -> bool:
        """Whether the slice of this step is passed on."""
        return step < self.reach[self.owner(step)]

    def sees(self, rank: int, owner: int) -> bool:
        """Whether a token of this rank attends to one of the owner's slice."""
        return rank == owner or any(True for _ in self.tiles(rank, owner, 1))

    def tiles(self, rank: int, owner: int, heads: int) -> Iterator[Tile]:
        """What a rank computes of a slice; of its own slice, what shows every token itself comes first."""
        pairs = [(mine, other) for mine in self.spans[rank] for other in self.spans[owner] if other.start <= mine.start]
        for mine, other in sorted(pairs, key=lambda pair: pair[0] != pair[1]):
            yield from tiles(self.segments, mine, other, self.window, heads)


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
    return list(route.tiles(route.rank, route.owner(step), query.shape[0] * query.shape[1]))


def _pass_on(
    group: ProcessGroup, route: Route, step: int, held: Tensor | None, like: Tensor
) -> tuple[Tensor | None, list[Work]]:
    """Send this step's slice to the next rank; receive the next step's slice from the previous rank."""
    coming, operations = None, []
    if held is not None and route.goes_on(step):
        operations.append(P2POp(distributed.isend, held, group=group, group_peer=route.neighbor(1)))
    if route.arrives(step + 1):
        coming = torch.empty_like(like)
        operations.append(P2POp(distributed.irecv, coming, group=group, group_peer=route.neighbor(-1)))
    return coming, _begin(operations)


def _pass_back(
    group: ProcessGroup, route: Route, step: int, slice_grad: Tensor | None, like: Tensor
) -> tuple[Tensor | None, Tensor | None, list[Work]]:
    """Pass a slice's gradients along with it, accumulating; the last rank that attends to it returns them to its owner.

    -> accumulated gradients for the next step's slice, and the complete ones of this rank's slice if they arrive now.
    """
    coming, home, operations = None, None, []
    if slice_grad is not None and (step > 0 or route.goes_on(step)):
        peer = route.neighbor(1) if route.goes_on(step) else route.owner(step)
        operations.append(P2POp(distributed.isend, slice_grad, group=group, group_peer=peer))
    if route.arrives(step + 1):
        coming = torch.empty_like(like, dtype=torch.float32)
        operations.append(P2POp(distributed.irecv, coming, group=group, group_peer=route.neighbor(-1)))
    if step > 0 and route.reach[route.rank] == step:
        home = torch.empty_like(like, dtype=torch.float32)
        operations.append(P2POp(distributed.irecv, home, group=group, group_peer=route.neighbor(step)))
    return coming, home, _begin(operations)


def _begin(operations: list[P2POp]) -> list[Work]:
    return distributed.batch_isend_irecv(operations) if operations else []


def _finish(works: list[Work]) -> None:
    for work in works:
        work.wait()
