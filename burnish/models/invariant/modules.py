"""Layers of dense models whose forward passes are the invariant kernels, in engine and trainer alike.

They round at the same points whatever the dtype of their weights is: weights and the inputs of products to `dtype`, the
residual stream not at all. So float32 weights in the trainer and the 16-bit copies of them in the engine give the same
bits. Submodules keep their names, so that weights are found where they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from burnish.models.invariant.functions import gated, packed_attention, products, rms_norm, rotate, rounded
from burnish.models.kernels.invariant import QUERIES, rotary_tables
from burnish.models.paged import KEYS, VALUES, PagedAttention
from burnish.models.parts import backbone
from burnish.models.varlen import AttentionShape, Segments
from burnish.sizing import INVARIANT_FAMILIES


def why_not_invariant(config: PretrainedConfig) -> str | None:
    """Why a model of this config has no invariant kernels; None where it has."""
    if config.model_type not in INVARIANT_FAMILIES:
        return f"models of type {config.model_type!r} have no batch-invariant kernels"
    if config.hidden_act != "silu":
        return f"its activation {config.hidden_act!r} has no batch-invariant kernel"
    if config.num_attention_heads // config.num_key_value_heads > QUERIES:
        return f"more than {QUERIES} query heads share a key/value head"
    if getattr(config, "attention_dropout", 0.0):
        return "it has dropout in its attention"
    if (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0) != 1.0:
        return "it rotates a part of each head only"
    return None


def use_invariant_modules(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Replace the layers of a model that `why_not_invariant` has nothing against; products are computed in `dtype`."""
    network = backbone(model)
    network.embed_tokens = InvariantEmbedding(network.get_submodule("embed_tokens"), dtype)
    network.rotary_emb = InvariantRotary(network.get_submodule("rotary_emb"))
    network.norm = InvariantRMSNorm(network.get_submodule("norm"), dtype)
    for layer in network.get_submodule("layers").children():
        for name in ("input_layernorm", "post_attention_layernorm"):
            setattr(layer, name, InvariantRMSNorm(layer.get_submodule(name), dtype))
        layer.self_attn = InvariantAttention(layer.get_submodule("self_attn"), dtype)
        layer.mlp = InvariantMLP(layer.get_submodule("mlp"), dtype)


class InvariantEmbedding(nn.Embedding):
    """Float32 rows, rounded to `dtype`: the start of the residual stream."""

    def __init__(self, source: Any, dtype: torch.dtype) -> None:
        super().__init__(*source.weight.shape, padding_idx=source.padding_idx, device="meta")
        self.weight, self.dtype = source.weight, dtype

    def forward(self, input: Tensor) -> Tensor:
        return rounded(F.embedding(input, self.weight, self.padding_idx), self.dtype)


class InvariantRotary(nn.Module):
    """Cosine and sine of positions [1, T], float32 [T, d / 2]."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.register_buffer("inv_freq", source.inv_freq, persistent=False)
        self.scaling = float(source.attention_scaling)

    @torch.no_grad()
    def forward(self, stream: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = self.get_buffer("inv_freq")
        if frequencies.dtype != torch.float32:
            raise TypeError("frequencies of rotary embeddings are not float32")
        return rotary_tables(position_ids[0].contiguous(), frequencies.to(stream.device), self.scaling)


class InvariantRMSNorm(nn.Module):
    """Float32 -> `dtype`, rounded once."""

    def __init__(self, source: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.eps, self.dtype = source.weight, source.variance_epsilon, dtype

    def forward(self, stream: Tensor) -> Tensor:
        return rms_norm(stream, self.weight.to(self.dtype), self.eps, self.dtype)


class InvariantMLP(nn.Module):
    def __init__(self, source: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = source.gate_proj, source.up_proj, source.down_proj
        self.dtype = dtype

    def forward(self, input: Tensor) -> Tensor:
        joined = linear(input, [self.gate_proj, self.up_proj], self.dtype)
        return linear(gated(joined), [self.down_proj], self.dtype)


class InvariantAttention(nn.Module):
    """Over a packed stream in training (`segments`), over the paged KV cache in the engine (`paged`)."""

    def __init__(self, source: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            source.q_proj,
            source.k_proj,
            source.v_proj,
            source.o_proj,
        )
        config = source.config
        self.q_norm, self.k_norm = (getattr(source, name, None) for name in ("q_norm", "k_norm"))
        self.layer_idx, self.head_dim, self.dtype = source.layer_idx, source.head_dim, dtype
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        windowed = config if config.model_type == "mistral" else source
        self.shape = AttentionShape(source.scaling, getattr(windowed, "sliding_window", None))

    def forward(
        self,
        hidden_states: Tensor,  # [1, T, hidden]
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        paged: PagedAttention | None = None,
        segments: Segments | Sequence[int] | None = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        joined = linear(hidden_states[0], [self.q_proj, self.k_proj, self.v_proj], self.dtype)
        norms, eps = None, 0.0
        if self.q_norm is not None and self.k_norm is not None:
            norms = self.q_norm.weight.to(self.dtype), self.k_norm.weight.to(self.dtype)
            eps = self.q_norm.variance_epsilon
        rotated = rotate(joined, *position_embeddings, self.heads, self.kv_heads, norms, eps)
        query, key = rotated.split([self.heads, self.kv_heads], dim=1)
        value = joined[:, -self.kv_heads * self.head_dim :].unflatten(1, (self.kv_heads, self.head_dim))
        if paged is None:
            assert segments is not None
            spans = segments if isinstance(segments, Segments) else Segments(segments)
            output = packed_attention(query, key, value, spans, self.shape)
        else:
            keys, values = getattr(self, KEYS, None), getattr(self, VALUES, None)
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
            # Without a cache, `paged` is an implementation that does not read it.
            output = paged.attend(keys, values, query, key, value, self.shape)  # pyright: ignore[reportArgumentType]
        return linear(output.flatten(1)[None], [self.o_proj], self.dtype), None


def linear(input: Tensor, layers: Sequence[nn.Linear], dtype: torch.dtype) -> Tensor:
    """The outputs of linear layers with one input, side by side."""
    weights = [layer.weight.to(dtype) for layer in layers]
    biases = [None if layer.bias is None else layer.bias.to(dtype) for layer in layers]
    return products(input.to(dtype), weights, biases)
