"""Attention functions registered with transformers: packed sequences for training, a paged KV cache for the engine.

A model built with `attn_implementation=PACKED` or `PAGED` keeps its own code; only the attention function is ours.
No mask function is registered under these names, so transformers builds no mask and passes none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from burnish.errors import UserError
from burnish.models.autocast import in_autocast_dtype
from burnish.models.paged import KEYS, VALUES, PagedAttention
from burnish.models.varlen import (
    AttentionShape,
    Block,
    Segments,
    c_attention,
    c_kernel_applies,
    check_varlen,
    torch_attention,
    torch_kernel_applies,
    varlen_product,
)

if TYPE_CHECKING:
    from burnish.models.sequence.parallel import SequenceParallel

PACKED = "burnish_packed"
PACKED_EAGER = "burnish_packed_eager"
PACKED_VARLEN = {2: "burnish_packed_varlen_2", 3: "burnish_packed_varlen_3"}  # by the major version of flash-attn
PAGED = "burnish_paged"
# Names of `attn_implementation` and the packed function behind each.
SIMPLE_PRODUCTS = {"sdpa": PACKED, "eager": PACKED_EAGER}
VARLEN_PRODUCTS = {"flash_attention_2": 2, "flash_attention_3": 3}

# [rows, heads, T, d] query, key and value, shape, dropout -> [rows, heads, T, d]
Product = Callable[[Tensor, Tensor, Tensor, AttentionShape, float], Tensor]


def register() -> None:
    """Register all functions with transformers; called by the loader, not on import."""
    AttentionInterface.register(PAGED, paged_attention)
    AttentionInterface.register(PACKED, partial(shared_attention, packed_attention))
    AttentionInterface.register(
        PACKED_EAGER, partial(shared_attention, partial(packed_attention, product=eager_attention))
    )
    for number, name in PACKED_VARLEN.items():
        AttentionInterface.register(name, partial(shared_attention, partial(varlen_attention, number)))


def packed_function(name: str | None, device: torch.device, key: str) -> str:
    """The registered name of the packed function for an `attn_implementation`; refuses one that cannot run here."""
    if name is None or name in SIMPLE_PRODUCTS:
        return SIMPLE_PRODUCTS[name or "sdpa"]
    number = VARLEN_PRODUCTS.get(name)
    if number is None:
        known = [*SIMPLE_PRODUCTS, *VARLEN_PRODUCTS]
        raise UserError("not supported for packed sequences", key=key, value=name, allowed=known, hint=f"{key}=sdpa")
    check_varlen(number, device, key, name)
    return PACKED_VARLEN[number]


def shared_attention(
    packed: Callable[..., tuple[Tensor, None]],
    module: nn.Module,
    query: Tensor,  # [1, heads, T, d]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sequence: SequenceParallel | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """A packed function, with the keys of shared prompts for every sequence that sees them; with sequence parallelism,
    `sequence` combines the slices of all ranks."""
    segments = options["segments"]
    blocks: Sequence[Block] = getattr(segments, "blocks", ())

    def product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        width = value.shape[-1]
        if isinstance(segments, Segments):
            key, value = segments.shared(*in_autocast_dtype(key, value))
        query, key, value = one_width(query, key, value)
        output = packed(module, query, key, value, attention_mask, **options)[0][..., :width]
        if not blocks:
            return output
        return with_blocks(output, query, key, value, blocks, _shape(module, options), options.get("dropout", 0.0))

    if sequence is None:
        return product(query, key, value), None

    # Communication between ranks stays outside compiled graphs.
    attend = torch.compiler.disable(sequence.attend)
    return attend(query, key, value, segments, _shape(module, options), product), None  # pyright: ignore[reportCallIssue]


def with_blocks(
    output: Tensor,  # [1, T, heads, d]
    query: Tensor,  # [1, heads, T, d]
    key: Tensor,
    value: Tensor,
    blocks: Sequence[Block],
    shape: AttentionShape,
    dropout: float = 0.0,
) -> Tensor:
    """Replace the causal output of tokens that see their whole block. No kernel for packed sequences has such a mask,
    and blocks are short, so these tokens are computed twice."""
    query, key, value = in_autocast_dtype(query, key, value)
    outputs, places = [], []
    for block in blocks:
        mine, seen = slice(block.start, block.end), slice(block.sequence, block.end)
        parts = query[:, :, mine], key[:, :, seen], value[:, :, seen]
        outputs.append(block_attention(*parts, shape, dropout).transpose(1, 2))
        places.append(torch.arange(block.start, block.end))
    return output.index_copy(1, torch.cat(places).to(output.device), torch.cat(outputs, dim=1).to(output.dtype))


def block_attention(query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, dropout: float = 0.0) -> Tensor:
    """Attention of the last tokens of [rows, heads, T, d], which also see each other forwards, back to their window.

    The queries are those of one block, and the keys end with it.
    """
    length, num_queries = key.shape[2], query.shape[2]
    mask = None
    if shape.window is not None and length > shape.window:
        places = torch.arange(length, device=query.device)
        mask = places[length - num_queries :, None] - places[None, :] < shape.window
    if shape.softcap is not None:
        mask = torch.ones(num_queries, length, dtype=torch.bool, device=query.device) if mask is None else mask
        return _eager(query, key, value, mask, shape, dropout)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=shape.scaling, enable_gqa=grouped
    )


def varlen_attention(
    number: int,
    module: nn.Module,
    query: Tensor,  # [1, heads, T, d]
    key: Tensor,  # [1, kv_heads, T, d]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments | Sequence[int],
    **options: Any,
) -> tuple[Tensor, None]:
    """Packed attention through the flash-attn library: one call for all segments."""
    shape, dropout = _shape(module, options), options.get("dropout", 0.0)
    query, key, value = in_autocast_dtype(query, key, value)  # rotary embeddings leave queries and keys wider
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return varlen_product(number, q, k, v, segments, shape, dropout)[None], None


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, T, d]
    key: Tensor,  # [1, kv_heads, T, d]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments | Sequence[int],
    product: Product | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each segment of a packed stream: one call for all segments if a kernel supports that,
    else one per run of equally long segments."""
    shape, dropout = _shape(module, options), options.get("dropout", 0.0)
    query, key, value = in_autocast_dtype(query, key, value)  # rotary embeddings leave queries and keys wider
    if product is None and torch_kernel_applies(query, shape, dropout):
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return torch_attention(q, k, v, Segments.of(segments, query.device), shape)[None], None
    if product is None and c_kernel_applies(query, segments, shape, dropout):
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return c_attention(q, k, v, segments, shape)[None], None
    product = product or causal_attention
    return _by_runs(query, key, value, segments, product, shape, dropout), None  # pyright: ignore[reportCallIssue]


def attend_by_runs(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments | Sequence[int], shape: AttentionShape
) -> Tensor:
    """Causal attention inside each segment by torch's product, for any dtype: [1, heads, T, d] -> [1, T, heads, d]."""
    return _by_runs(query, key, value, segments, causal_attention, shape, 0.0)  # pyright: ignore[reportCallIssue]


@torch.compiler.disable  # one call per length: torch.compile would specialize on the lengths
def _by_runs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments | Sequence[int],
    product: Product,
    shape: AttentionShape,
    dropout: float,
) -> Tensor:
    """[1, T, heads, d]; one call per run of equally long segments."""
    segments = segments if isinstance(segments, Segments) else Segments(segments)
    lengths = zip(segments.lengths, segments.key_lengths, strict=True)
    counts = [(length, num_keys, len(list(same))) for (length, num_keys), same in itertools.groupby(lengths)]
    queries = query[0].split([length * count for length, _, count in counts], dim=1)
    keys, values = (x[0].split([num_keys * count for _, num_keys, count in counts], dim=1) for x in (key, value))
    outputs = []
    for (_, _, count), *parts in zip(counts, queries, keys, values, strict=True):
        # [heads, count * length, d] -> [count, heads, length, d] and back to tokens first
        q, k, v = (part.unflatten(1, (count, -1)).transpose(0, 1) for part in parts)
        outputs.append(product(q, k, v, shape, dropout).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None]


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: PagedAttention,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention over the engine's KV cache; each module holds its layer's part of it (`models.paged.bind_cache`)."""
    keys, values = getattr(module, KEYS, None), getattr(module, VALUES, None)
    width = value.shape[-1]
    query, key, value = (tensor[0] for tensor in in_autocast_dtype(*one_width(query, key, value)))
    shape = _shape(module, options)
    # Without a cache, `paged` is an implementation that does not read it.
    output = paged.attend(keys, values, query, key, value, shape)  # pyright: ignore[reportArgumentType]
    return output[..., :width].unsqueeze(0), None


def one_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With zeros behind the narrower ones: in DeepSeek's attention, values have another width than queries and keys.
    Kernels and caches have one width, and zeros add nothing to a product."""
    width = max(query.shape[-1], value.shape[-1])
    if query.shape[-1] == value.shape[-1]:
        return query, key, value
    query, key, value = (F.pad(x, (0, width - x.shape[-1])) for x in (query, key, value))
    return query, key, value


def causal_attention(query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, dropout: float = 0.0) -> Tensor:
    """Causal attention of [rows, heads, T, d]; a soft cap is computed without a fused kernel.

    There may be fewer queries than keys: they are then those of the last tokens.
    """
    length, num_queries = key.shape[2], query.shape[2]
    windowed = shape.window is not None and length > shape.window
    if shape.softcap is not None:
        return eager_attention(query, key, value, shape, dropout)
    mask = band_mask(length, shape.window, query.device, num_queries) if windowed or num_queries < length else None
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=mask is None,
        scale=shape.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def band_mask(length: int, window: int | None, device: torch.device, num_queries: int | None = None) -> Tensor:
    """[num_queries, T] of the last tokens (default: all), True where a query sees a key: at most window - 1 back."""
    places = torch.arange(length, device=device)
    distance = places[length - (length if num_queries is None else num_queries) :, None] - places[None, :]
    return (distance >= 0) & (distance < (window or length))


def eager_attention(query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, dropout: float = 0.0) -> Tensor:
    """Causal attention by matrix products and a float32 softmax, with an optional soft cap."""
    return _eager(
        query, key, value, band_mask(key.shape[2], shape.window, query.device, query.shape[2]), shape, dropout
    )


def _eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, shape: AttentionShape, dropout: float) -> Tensor:
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    scores = query @ key.transpose(2, 3) * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return F.dropout(weights, dropout) @ value


def _shape(module: nn.Module, options: dict[str, Any]) -> AttentionShape:
    if options.get("s_aux") is not None:
        raise UserError(
            f"{type(module).__name__} uses attention sinks, which packed and paged attention do not support",
            key="actor_rollout_ref.rollout.name",
            hint="actor_rollout_ref.rollout.name=hf",
        )
    return AttentionShape(options["scaling"], options.get("sliding_window"), options.get("softcap"))
