"""Causal attention inside the rows of a packed stream by torch's own flash kernel, as one operation.

One operation to torch.compile too, which need not look inside: where rows start is a tensor, so that other rows need no
other program. On a GPU the flash kernel does it; on a CPU the plain products below, which say what it computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor


@torch.library.custom_op("burnish::packed_attention", mutates_args=(), device_types="cuda")
def packed_product(
    query: Tensor,  # [T, heads, d]
    key: Tensor,  # [T, kv_heads, d]
    value: Tensor,
    starts: Tensor,  # [rows + 1] int32: where each row starts, and one past the end
    longest: int,
    scaling: float,
    window: int,  # tokens that one sees, itself included; 0 for all
) -> tuple[Tensor, Tensor]:
    """[T, heads, d], and the logarithm of each softmax's denominator [heads, T], float32."""
    output, normaliser, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, starts, starts, longest, longest, 0.0, True, False, scale=scaling, **_band(window)
    )
    return output.contiguous(), normaliser


@torch.library.custom_op("burnish::packed_attention_backward", mutates_args=(), device_types="cuda")
def packed_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    normaliser: Tensor,
    starts: Tensor,
    longest: int,
    scaling: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of query, key and value."""
    unused = torch.empty(0, device=grad.device, dtype=torch.uint64)  # the state of random numbers: nothing is dropped
    found = torch.ops.aten._flash_attention_backward(
        *(grad, query, key, value, output, normaliser, starts, starts, longest, longest, 0.0, True, unused, unused),
        scale=scaling,
        **_band(window),
    )
    return tuple(part.contiguous() for part in found)


def _band(window: int) -> dict[str, int]:
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


@packed_product.register_fake
def _shaped(query: Tensor, key: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    normaliser = query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)
    return query.new_empty(query.shape), normaliser


@packed_gradients.register_fake
def _shaped_gradients(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return tuple(part.new_empty(part.shape) for part in (query, key, value))


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    query, key, value, starts, *rest = inputs
    ctx.save_for_backward(query, key, value, *output, starts)
    ctx.rest = rest


def _differentiate(ctx: torch.autograd.function.FunctionCtx, grad: Tensor, _: Tensor | None) -> tuple:
    return (*packed_gradients(grad.contiguous(), *ctx.saved_tensors, *ctx.rest), None, None, None, None)


packed_product.register_autograd(_differentiate, setup_context=_keep)


# On a CPU: row by row, all scores at once.


@packed_product.register_kernel("cpu")
def _product_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, scaling: float, window: int
) -> tuple[Tensor, Tensor]:
    output = torch.empty(query.shape, dtype=query.dtype)
    normaliser = torch.empty(query.shape[1], query.shape[0])
    for row, q, k, v in _rows(starts, query, key, value):
        scores = _scores(q, k, scaling, window)
        normaliser[:, row] = scores.logsumexp(-1).float()
        output[row] = (scores.softmax(-1) @ v).transpose(0, 1)
    return output, normaliser


@packed_gradients.register_kernel("cpu")
def _gradients_on_cpu(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    normaliser: Tensor,
    starts: Tensor,
    longest: int,
    scaling: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    found = tuple(torch.empty(part.shape, dtype=part.dtype) for part in (query, key, value))
    kv_heads = key.shape[1]
    for row, q, k, v in _rows(starts, query, key, value):
        given, made = grad[row].transpose(0, 1), output[row].transpose(0, 1)
        share = _scores(q, k, scaling, window).softmax(-1)
        pull = share * (given @ v.transpose(-1, -2) - (given * made).sum(-1, keepdim=True)) * scaling
        parts = (
            pull @ k,
            *(_per_group(x, kv_heads) for x in (pull.transpose(-1, -2) @ q, share.transpose(-1, -2) @ given)),
        )
        for whole, part in zip(found, parts, strict=True):
            whole[row] = part.transpose(0, 1)
    return found


def _rows(starts: Tensor, query: Tensor, *pairs: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Each row's place in the stream and its [heads, t, d] query, key and value, keys repeated for their groups."""
    ends = starts.tolist()
    group = query.shape[1] // pairs[0].shape[1]
    for start, end in itertools.pairwise(ends):
        row = slice(start, end)
        yield row, query[row].transpose(0, 1), *(x[row].transpose(0, 1).repeat_interleave(group, 0) for x in pairs)


def _scores(query: Tensor, key: Tensor, scaling: float, window: int) -> Tensor:
    place = torch.arange(query.shape[1])
    back = place[:, None] - place[None, :]
    seen = (back >= 0) & (back < window) if window else back >= 0
    return (query @ key.transpose(-1, -2) * scaling).masked_fill(~seen, float("-inf"))


def _per_group(found: Tensor, kv_heads: int) -> Tensor:
    """[heads, t, d] summed over the heads that share a key."""
    return found.unflatten(0, (kv_heads, -1)).sum(1)
