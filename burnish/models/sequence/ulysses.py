"""Ulysses sequence parallelism (arXiv 2309.14509): all-to-all from token slices to head slices around attention.

Before attention, each rank holds all heads of its slice of tokens; inside, its part of the heads for all tokens;
afterwards, all heads of its slice again. Any attention over whole segments works unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from burnish.models.varlen import AttentionShape


def ulysses_attention(
    group: ProcessGroup,
    query: Tensor,  # [1, heads, share, d] of this rank's tokens
    key: Tensor,  # [1, kv_heads, share, d]
    value: Tensor,
    segments: list[int],
    shape: AttentionShape,
    product: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """[1, share, heads, d]; `product` is the attention of whole segments, [1, heads, T, d] -> [1, T, heads, d]."""
    size = group.size()
    repeats = math.lcm(key.shape[1], size) // key.shape[1]
    if repeats > 1:  # fewer KV heads than ranks, or a count that they do not divide
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    output = product(*_heads_for_tokens(group, (query, key, value)))[0]
    parts = _Exchange.apply(output.unflatten(0, (size, -1)), group)  # [size, share, heads / size, d]
    return parts.transpose(0, 1).flatten(1, 2)[None]


def _heads_for_tokens(group: ProcessGroup, whole: tuple[Tensor, ...]) -> list[Tensor]:
    """[1, heads, share, d] -> [1, heads / size, T, d] of each, in one exchange."""
    size = group.size()
    shapes = [(size, x.shape[1] // size, *x.shape[2:]) for x in whole]
    sent = torch.cat([x.reshape(size, -1) for x in whole], dim=1)
    received = _Exchange.apply(sent, group).split([math.prod(shape[1:]) for shape in shapes], dim=1)
    return [
        part.reshape(shape).transpose(0, 1).flatten(1, 2)[None] for part, shape in zip(received, shapes, strict=True)
    ]


class _Exchange(torch.autograd.Function):
    """[size, ...]: all-to-all along the first dimension. Gradients take the same exchange."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchange(sent, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _exchange(grad, ctx.group), None


def _exchange(sent: Tensor, group: ProcessGroup) -> Tensor:
    sent = sent.contiguous()
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=group)
    return received
