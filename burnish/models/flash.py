"""Attention inside the sequences of a packed stream by torch's flash kernel, as one custom operator.

The queries of a sequence are those of its last keys; there are fewer where sequences share the keys of a prompt.

torch.compile does not look inside the operator, and sequence offsets are a tensor, so that other lengths need no other
graph. On a GPU it calls the flash kernel; the CPU implementation below is its reference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("burnish::packed_attention", mutates_args=(), device_types="cuda")
def packed_product(
    query: Tensor,  # [T, heads, d]
    key: Tensor,  # [keys, kv_heads, d]
    value: Tensor,
    starts: Tensor,  # [rows + 1] int32: offsets of the sequences' queries, and the end
    key_starts: Tensor,  # and of their keys
    longest: int,
    longest_keys: int,
    scaling: float,
    window: int,  # sliding window in tokens, itself included; 0 for none
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """[T, heads, d], and the log-sum-exp of the scores [heads, T], float32."""
    lengths = (starts, key_starts, longest, longest_keys)
    output, normalizer, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, *lengths, 0.0, causal, False, scale=scaling, **_band(window)
    )
    return output.contiguous(), normalizer


@torch.library.custom_op("burnish::packed_attention_backward", mutates_args=(), device_types="cuda")
def packed_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    normalizer: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    longest: int,
    longest_keys: int,
    scaling: float,
    window: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    unused = torch.empty(0, device=grad.device, dtype=torch.uint64)  # RNG state: no dropout
    lengths = (starts, key_starts, longest, longest_keys)
    gradients = torch.ops.aten._flash_attention_backward(
        *(grad, query, key, value, output, normalizer, *lengths, 0.0, causal, unused, unused),
        scale=scaling,
        **_band(window),
    )
    return tuple(part.contiguous() for part in gradients)


def check_shared_keys(device: torch.device, dtype: torch.dtype) -> None:
    """Raise where the device's kernel does not take the queries of a sequence for those of its last keys."""
    starts, key_starts = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 2, 5], [0, 7, 13]))
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(count, 2, 64, generator=generator, dtype=torch.float32).to(dtype) for count in (5, 13, 13)]

    def results(device: torch.device) -> list[Tensor]:
        """The output, and the gradients of its sum of squares."""
        leaves = [tensor.to(device).requires_grad_() for tensor in tensors]
        output, _ = packed_product(*leaves, starts.to(device), key_starts.to(device), 3, 7, 0.1, 0, True)
        return [output.detach(), *torch.autograd.grad(output.float().square().sum(), leaves)]

    with torch.enable_grad():
        pairs = zip(results(device), results(torch.device("cpu")), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found.cpu(), expected, rtol=0.05, atol=0.05)


def _band(window: int) -> dict[str, int]:
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


@packed_product.register_fake
def _shaped(query: Tensor, key: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    normalizer = query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)
    return query.new_empty(query.shape), normalizer


@packed_gradients.register_fake
def _shaped_gradients(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return tuple(part.new_empty(part.shape) for part in (query, key, value))


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    query, key, value, starts, key_starts, *rest = inputs
    ctx.save_for_backward(query, key, value, *output, starts, key_starts)
    ctx.rest = rest


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple:
    return (*packed_gradients(grad.contiguous(), *ctx.saved_tensors, *ctx.rest), *[None] * 7)


packed_product.register_autograd(_differentiate, setup_context=_keep)


# CPU implementation: one sequence at a time.


@packed_product.register_kernel("cpu")
def _product_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    longest: int,
    longest_keys: int,
    scaling: float,
    window: int,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    output = torch.empty(query.shape, dtype=query.dtype)
    normalizer = torch.empty(query.shape[1], query.shape[0])
    for row, _, q, k, v in _rows(starts, key_starts, query, key, value):
        scores = _scores(q, k, scaling, window, causal)
        normalizer[:, row] = scores.logsumexp(-1).float()
        output[row] = (scores.softmax(-1) @ v).transpose(0, 1)
    return output, normalizer


@packed_gradients.register_kernel("cpu")
def _gradients_on_cpu(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    normalizer: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    longest: int,
    longest_keys: int,
    scaling: float,
    window: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_query, grad_key, grad_value = (torch.empty(part.shape, dtype=part.dtype) for part in (query, key, value))
    kv_heads = key.shape[1]
    for row, seen, q, k, v in _rows(starts, key_starts, query, key, value):
        grad_out, out = grad[row].transpose(0, 1), output[row].transpose(0, 1)
        probs = _scores(q, k, scaling, window, causal).softmax(-1)
        grad_scores = probs * (grad_out @ v.transpose(-1, -2) - (grad_out * out).sum(-1, keepdim=True)) * scaling
        parts = (
            grad_scores @ k,
            *(_per_group(x, kv_heads) for x in (grad_scores.transpose(-1, -2) @ q, probs.transpose(-1, -2) @ grad_out)),
        )
        for whole, place, part in zip((grad_query, grad_key, grad_value), (row, seen, seen), parts, strict=True):
            whole[place] = part.transpose(0, 1)
    return grad_query, grad_key, grad_value


def _rows(
    starts: Tensor, key_starts: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> Iterator[tuple[slice, slice, Tensor, Tensor, Tensor]]:
    """Per sequence: slices of its queries and keys; [heads, t, d] query, key and value (keys repeated per group)."""
    group = query.shape[1] // key.shape[1]
    runs = ([slice(*run) for run in itertools.pairwise(offsets.tolist())] for offsets in (starts, key_starts))
    for row, seen in zip(*runs, strict=True):
        k, v = (x[seen].transpose(0, 1).repeat_interleave(group, 0) for x in (key, value))
        yield row, seen, query[row].transpose(0, 1), k, v


def _scores(query: Tensor, key: Tensor, scaling: float, window: int, causal: bool) -> Tensor:
    if not causal:
        return query @ key.transpose(-1, -2) * scaling
    position = torch.arange(key.shape[1])
    distance = position[key.shape[1] - query.shape[1] :, None] - position[None, :]
    seen = (distance >= 0) & (distance < window) if window else distance >= 0
    return (query @ key.transpose(-1, -2) * scaling).masked_fill(~seen, float("-inf"))


def _per_group(gradient: Tensor, kv_heads: int) -> Tensor:
    """[heads, t, d] summed over the query heads of each key/value head."""
    return gradient.unflatten(0, (kv_heads, -1)).sum(1)
