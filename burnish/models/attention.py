"""The attention functions registered with transformers: packed rows for training, a paged cache for the engine.

A model built with `attn_implementation=PACKED` or `PAGED` keeps its own code; only the inner attention product is ours.
No mask function is registered under these names, so transformers builds no mask and passes none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from burnish.errors import UserError

PACKED = "burnish_packed"
PAGED = "burnish_paged"


@dataclass(frozen=True)
class AttentionShape:
    """What one layer's product needs besides query, key and value."""

    scaling: float
    window: int | None = None
    softcap: float | None = None


class PagedContext(Protocol):
    """What the engine passes through the model to its own cache, once per forward."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
        """query [heads, T, d], key and value [kv_heads, T, d] of this forward's tokens -> [T, heads, d]."""
        ...


def register() -> None:
    """Make both names known to transformers; called by the loader, not on import."""
    AttentionInterface.register(PACKED, packed_attention)
    AttentionInterface.register(PAGED, paged_attention)


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, T, d]
    key: Tensor,  # [1, kv_heads, T, d]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: list[int],
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each segment of one packed token stream; equally long neighbours go through one call."""
    shape, dropout = _shape(module, options), options.get("dropout", 0.0)
    runs = [(length, len(list(same))) for length, same in itertools.groupby(segments)]
    sizes = [length * count for length, count in runs]
    outputs = []
    for (length, count), *parts in zip(runs, *(x[0].split(sizes, dim=1) for x in (query, key, value)), strict=True):
        # [heads, count * length, d] -> [count, heads, length, d] and back to tokens first
        q, k, v = (part.unflatten(1, (count, length)).transpose(0, 1) for part in parts)
        outputs.append(causal_attention(q, k, v, shape, dropout).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None], None


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: PagedContext,
    **options: Any,
) -> tuple[Tensor, None]:
    """Hand the tokens of this forward to the engine's cache, which knows whose they are."""
    output = paged.attend(module.layer_idx, query[0], key[0], value[0], _shape(module, options))
    return output.unsqueeze(0), None


def causal_attention(query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, dropout: float = 0.0) -> Tensor:
    """[rows, heads, T, d] causal product of each row; a window or a soft cap takes the long way."""
    length = query.shape[2]
    windowed = shape.window is not None and length > shape.window
    if shape.softcap is not None:
        return _capped_attention(query, key, value, shape, dropout)
    mask = band_mask(length, shape.window, query.device) if windowed else None
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


def band_mask(length: int, window: int | None, device: torch.device) -> Tensor:
    """[T, T], True where a query may look: itself and at most window - 1 tokens back."""
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)[None, :]
    return (distance >= 0) & (distance < (window or length))


def _capped_attention(query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape, dropout: float) -> Tensor:
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    scores = query @ key.transpose(2, 3) * shape.scaling
    scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores.masked_fill(~band_mask(query.shape[2], shape.window, query.device), float("-inf"))
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
