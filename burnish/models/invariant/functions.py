"""The invariant kernels as differentiable functions.

Forward passes are the engine's kernels. Gradients need no fixed order: they come from ordinary matrix products, torch's
flash attention and elementwise functions, which torch.compile fuses on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.models.flash import packed_gradients
from burnish.models.kernels import invariant as kernels
from burnish.models.kernels.invariant import Spans, tokens_per_tile
from burnish.models.logits import fused
from burnish.models.varlen import AttentionShape, Segments
from burnish.sizing import flash_attention_fits

COMPILED_ON = frozenset({"cuda"})


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor's values in the precision of `dtype`, in float32; gradients pass unrounded."""
    return _Rounded.apply(tensor, dtype)


def products(rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    """[..., K] times the transposed weights, side by side, in the rows' dtype; weights and biases have that dtype."""
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    return _Products.apply(flat, len(weights), *weights, *biases).unflatten(0, rows.shape[:-1])


def rms_norm(rows: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """RMSNorm of [..., hidden] in float32, rounded to `dtype`."""
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    return _RMSNorm.apply(flat, weight, eps, dtype).view(rows.shape)


def gated(joined: Tensor) -> Tensor:
    """SiLU of the left half of [..., 2 N], times the right half."""
    return _Gated.apply(joined.flatten(0, -2)).view(*joined.shape[:-1], -1)


def rotate(
    joined: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Queries and keys [T, heads + kv_heads, d] of a joined product [T, width], normed and rotated."""
    return _Rotate.apply(joined, cos, sin, heads, kv_heads, eps, *(norms or (None, None)))


def packed_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, shape: AttentionShape) -> Tensor:
    """Causal attention inside each segment, [T, heads, d]; keys and values are [T, kv_heads, d]."""
    return _PackedAttention.apply(query, key, value, segments, shape)


def packed_spans(segments: Segments, group: int, device: torch.device) -> Spans:
    """For a packed stream, on its device; kept with the segments for all layers."""
    kept = segments.spans.get(group)
    if kept is None or kept.tables.device != device:
        kept = segments.spans[group] = _packed_spans(segments.lengths, group, device)
    return kept


def _packed_spans(lengths: Sequence[int], group: int, device: torch.device) -> Spans:
    count = torch.tensor(list(lengths), dtype=torch.int32)
    first = count.cumsum(0, dtype=torch.int32) - count
    per_tile = tokens_per_tile(group)
    tiles = [(number, offset) for number, length in enumerate(lengths) for offset in range(0, length, per_tile)]
    table = torch.arange(-(-max(lengths, default=0) // kernels.KEYS), dtype=torch.int32)
    parts = (
        torch.stack([first, count, torch.zeros_like(count), first], dim=1),
        torch.tensor(tiles, dtype=torch.int32).view(-1, 2),
    )
    table = _moved(table, device)[None].expand(len(lengths), -1)
    return Spans(table, *(_moved(part, device) for part in parts), block=kernels.KEYS, packed=True)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _fused_on(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled where that pays off."""
    return fused(function) if device.type in COMPILED_ON else function


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(dtype).float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return grad, None


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(rows, *weights)
        ctx.biased = biases[0] is not None
        return kernels.product(rows, weights, biases)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        rows, *weights = ctx.saved_tensors
        parts = grad.split([len(weight) for weight in weights], dim=1)
        grad_rows = None
        if ctx.needs_input_grad[0]:
            grad_rows = parts[0] @ weights[0]
            for part, weight in zip(parts[1:], weights[1:], strict=True):
                grad_rows = torch.addmm(grad_rows, part, weight)
        needs = ctx.needs_input_grad[2 : 2 + len(weights)]
        grad_weights = [part.t() @ rows if needed else None for part, needed in zip(parts, needs, strict=True)]
        sums = [part.sum(0) if ctx.biased else None for part in parts]
        return (grad_rows, None, *grad_weights, *sums)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.eps = eps
        return kernels.rms_norm(rows, weight, eps, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        rows, weight = ctx.saved_tensors
        grad_rows, grad_weight = _fused_on(grad.device, norm_gradients)(grad, rows, weight, ctx.eps)
        return grad_rows, grad_weight, None, None


def norm_gradients(grad: Tensor, rows: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Gradients of rows [..., hidden] and weight, each in its dtype."""
    wide, upper = rows.float(), grad.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = wide * inverse
    scaled = upper * weight.float()
    grad_rows = inverse * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    grad_weight = (upper * normed).flatten(0, -2).sum(0)
    return grad_rows.to(rows.dtype), grad_weight.to(weight.dtype)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        ctx.save_for_backward(joined)
        return kernels.gated(joined)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (joined,) = ctx.saved_tensors
        return (_fused_on(grad.device, gate_gradient)(grad, joined),)


def gate_gradient(grad: Tensor, joined: Tensor) -> Tensor:
    gate, up = joined.float().chunk(2, dim=-1)
    upper, sigmoid = grad.float(), torch.sigmoid(gate)
    of_gate = upper * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat([of_gate, upper * gate * sigmoid], dim=-1).to(joined.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        joined: Tensor,
        cos: Tensor,
        sin: Tensor,
        heads: int,
        kv_heads: int,
        eps: float,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
    ) -> Tensor:
        norms = None if query_norm is None or key_norm is None else (query_norm, key_norm)
        ctx.save_for_backward(joined, cos, sin, query_norm, key_norm)
        ctx.numbers = heads, kv_heads, eps
        return kernels.rotate(joined, cos, sin, heads, kv_heads, norms, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        joined, cos, sin, query_norm, key_norm = ctx.saved_tensors
        heads, kv_heads, eps = ctx.numbers
        gradients = _fused_on(grad.device, rotation_gradients)
        grad_joined, *norms = gradients(grad, joined, cos, sin, heads, kv_heads, query_norm, key_norm, eps)
        return (grad_joined, None, None, None, None, None, *norms)


def rotation_gradients(
    grad: Tensor,
    joined: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of the joined product, whose values are not rotated, and of the norms' weights."""
    dim = 2 * cos.shape[1]
    left, right = grad.float().chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    unrotated = torch.cat([left * c + right * s, right * c - left * s], dim=-1)
    norms: list[Tensor | None] = [None, None]
    if query_norm is not None and key_norm is not None:
        before = joined[:, : (heads + kv_heads) * dim].unflatten(1, (-1, dim))
        parts = []
        spans = ((slice(0, heads), query_norm), (slice(heads, heads + kv_heads), key_norm))
        for number, (span, weight) in enumerate(spans):
            part, norms[number] = norm_gradients(unrotated[:, span], before[:, span].float(), weight, eps)
            parts.append(part)
        unrotated = torch.cat(parts, dim=1)
    rest = joined.shape[1] - (heads + kv_heads) * dim
    grad_joined = torch.nn.functional.pad(unrotated.flatten(1).to(joined.dtype), (0, rest))
    return grad_joined, norms[0], norms[1]


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, shape: AttentionShape
    ) -> Tensor:
        spans = packed_spans(segments, query.shape[1] // key.shape[1], query.device)
        # [T, heads, d] as a cache of one block
        keys, values = (part.transpose(0, 1)[None] for part in (key, value))
        output, normalizer = kernels.attend(query.transpose(0, 1), keys, values, spans, shape)
        ctx.save_for_backward(query, key, value, output, normalizer)
        ctx.segments, ctx.shape = segments, shape
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        query, key, value, output, normalizer = ctx.saved_tensors
        shape = ctx.shape
        on_gpu = grad.device.type == "cuda"
        if on_gpu and not flash_attention_fits(query.dtype.itemsize, query.shape[-1], False):
            gradients = _recomputed_gradients(grad, (query, key, value), ctx.segments, shape)
        else:
            segments = Segments.of(ctx.segments, grad.device)
            where = (*segments.offsets(), shape.scaling, shape.window or 0, True)
            inputs = (part.contiguous() for part in (grad, query, key, value))
            gradients = packed_gradients(*inputs, output, normalizer, *where)
        return (*gradients, None, None)


def _recomputed_gradients(
    grad: Tensor, inputs: tuple[Tensor, Tensor, Tensor], segments: Segments, shape: AttentionShape
) -> tuple[Tensor, ...]:
    """By the ordinary packed attention, where torch has no flash kernel (float32 on a GPU)."""
    from burnish.models.attention import attend_by_runs

    with torch.enable_grad():
        leaves = [part.detach().requires_grad_() for part in inputs]
        query, key, value = (part.transpose(0, 1)[None] for part in leaves)
        output = attend_by_runs(query, key, value, segments, shape)[0]
    return torch.autograd.grad(output, leaves, grad)
