"""The attention functions registered with transformers: packed rows for training, a paged cache for the engine.

A model built with `attn_implementation=PACKED` or `PAGED` keeps its own code; only the inner attention product is ours.
No mask function is registered under these names, so transformers builds no mask and passes none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from burnish.errors import UserError
from burnish.models.paged import KEYS, VALUES, PagedAttention
from burnish.models.varlen import (
    AttentionShape,
    Segments,
    check_varlen,
    in_c,
    own_kernel_fits,
    own_product,
    product_in_c,
    varlen_product,
)

if TYPE_CHECKING:
    from burnish.models.sequence.parallel import SequenceParallel

PACKED = "burnish_packed"
PACKED_EAGER = "burnish_packed_eager"
PACKED_VARLEN = {2: "burnish_packed_varlen_2", 3: "burnish_packed_varlen_3"}  # by the major version of flash-attn
PAGED = "burnish_paged"
# What users call the product, and how it is done on packed rows.
SIMPLE_PRODUCTS = {"sdpa": PACKED, "eager": PACKED_EAGER}
VARLEN_PRODUCTS = {"flash_attention_2": 2, "flash_attention_3": 3}

# [rows, heads, T, d] query, key and value, shape, dropout -> [rows, heads, T, d]
Product = Callable[[Tensor, Tensor, Tensor, AttentionShape, float], Tensor]


def register() -> None:
    """Make both names known to transformers; called by the loader, not on import."""
    AttentionInterface.register(PAGED, paged_attention)
    AttentionInterface.register(PACKED, partial(shared_attention, packed_attention))
    AttentionInterface.register(
        PACKED_EAGER, partial(shared_attention, partial(packed_attention, product=eager_attention))
    )
    for number, name in PACKED_VARLEN.items():
        AttentionInterface.register(name, partial(shared_attention, partial(varlen_attention, number)))


def packed_function(asked: str | None, device: torch.device, key: str) -> str:
    """The registered name of the packed function with this product; refuses one that cannot run here."""
    if asked is None or asked in SIMPLE_PRODUCTS:
        return SIMPLE_PRODUCTS[asked or "sdpa"]
    number = VARLEN_PRODUCTS.get(asked)
    if number is None:
        known = [*SIMPLE_PRODUCTS, *VARLEN_PRODUCTS]
        raise UserError("does not work on packed rows", key=key, value=asked, allowed=known, hint=f"{key}=sdpa")
    check_varlen(number, device, key, asked)
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
    """A packed function, also where several ranks share the stream: `sequence` then joins their slices."""
    if sequence is None:
        return packed(module, query, key, value, attention_mask, **options)

    def product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return packed(module, query, key, value, attention_mask, **options)[0]

    # What ranks say to each other is no part of a compiled program.
    attend = torch.compiler.disable(sequence.attend)
    return attend(query, key, value, options["segments"], _shape(module, options), product), None


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
    """The same through flash-attn: one call for all segments."""
    shape, dropout = _shape(module, options), options.get("dropout", 0.0)
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
    """Causal attention inside each segment of one packed stream: one call for all where a kernel can, else one for
    equally long neighbours."""
    shape, dropout = _shape(module, options), options.get("dropout", 0.0)
    query, key, value = _in_computed_format(query, key, value)
    if product is None and own_kernel_fits(query, shape, dropout):
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return own_product(q, k, v, Segments.of(segments, query.device), shape)[None], None
    if product is None and in_c(query, segments, shape, dropout):
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return product_in_c(q, k, v, segments, shape)[None], None
    return _by_runs(query, key, value, segments, product or causal_attention, shape, dropout), None


def _in_computed_format(*tensors: Tensor) -> Iterator[Tensor]:
    """As autocast would have them for a product: rotating positions leaves queries and keys in a wider format."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return iter(tensors)
    return (tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


@torch.compiler.disable  # one call for each length: other rows would need another program
def _by_runs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments | Sequence[int],
    product: Product,
    shape: AttentionShape,
    dropout: float,
) -> Tensor:
    """[1, T, heads, d]; one call for equally long neighbours."""
    runs = [(length, len(list(same))) for length, same in itertools.groupby(segments)]
    sizes = [length * count for length, count in runs]
    outputs = []
    for (length, count), *parts in zip(runs, *(x[0].split(sizes, dim=1) for x in (query, key, value)), strict=True):
        # [heads, count * length, d] -> [count, heads, length, d] and back to tokens first
        q, k, v = (part.unflatten(1, (count, length)).transpose(0, 1) for part in parts)
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
    """Attention over the engine's cache; each module holds its layer's part of it (`models.paged.bind_cache`)."""
    keys, values = getattr(module, KEYS, None), getattr(module, VALUES, None)
    query, key, value = (tensor[0] for tensor in _in_computed_format(query, key, value))
    output = paged.attend(keys, values, query, key, value, _shape(module, options))
    return output.unsqueeze(0), None


def causal_attention(query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, dropout: float = 0.0) -> Tensor:
    """[rows, heads, T, d] causal product of each row; a window or a soft cap takes the long way.

    Queries may be those of the last tokens only; keys and values are of all.
    """
    length, asked = key.shape[2], query.shape[2]
    windowed = shape.window is not None and length > shape.window
    if shape.softcap is not None:
        return eager_attention(query, key, value, shape, dropout)
    mask = band_mask(length, shape.window, query.device, asked) if windowed or asked < length else None
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


def band_mask(length: int, window: int | None, device: torch.device, asked: int | None = None) -> Tensor:
    """[asked, T], True where a query of the last `asked` tokens (all by default) may look: at most window - 1 back."""
    places = torch.arange(length, device=device)
    distance = places[length - (length if asked is None else asked) :, None] - places[None, :]
    return (distance >= 0) & (distance < (window or length))


def eager_attention(query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, dropout: float = 0.0) -> Tensor:
    """The same by plain products and a softmax in float32, with a soft cap where there is one."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    scores = query @ key.transpose(2, 3) * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores.masked_fill(~band_mask(key.shape[2], shape.window, query.device, query.shape[2]), float("-inf"))
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return F.dropout(weights, dropout) @ value


def _shape(module: nn.Module, options: dict[str, Any]) -> AttentionShape:
    if options.get("s_aux") is not None:
        raise UserError(
            f"{type(module).__name__} uses attention sinks, which the packed and paged attention do not know",
            key="actor_rollout_ref.rollout.name",
            hint="actor_rollout_ref.rollout.name=hf",
        )
    return AttentionShape(options["scaling"], options.get("sliding_window"), options.get("softcap"))
