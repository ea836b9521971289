"""Modules of a decoder layer: one product for several linear layers, and kernels in place of torch's functions.

Each replaces one module of a Hugging Face model: it holds the same parameters and submodules under the same names, so
state dicts, optimizers and adapters do not notice. replace.py decides which modules are replaced.

Without a product (training), linear layers are called one by one. Without kernels, or for tensors that these do not
support, torch computes what the family's own module does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from burnish.models.fused.fp8 import fuse_fp8
from burnish.models.fused.linear import FusedLinear, Product, fuse, share_parts

ROTATE = "apply_rotary_pos_emb"  # the name of this function in every modeling file of transformers
EAGER = "eager_attention_forward"


class Kernels(Protocol):
    """Functions that are faster than torch's: in C for a CPU, models/cpu/layers.py and autograd.py."""

    def supports(self, *tensors: Tensor) -> bool: ...

    def norm(self, rows: Tensor, weight: Tensor, offset: float, eps: float) -> Tensor:
        """RMSNorm of each row, times (offset + weight)."""
        ...

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up"""
        ...

    def rotate(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotary embedding of [1, heads, tokens, size] by the angles [1, tokens, size]."""
        ...


class KernelRMSNorm(nn.Module):
    """RMSNorm times `weight` (offset 0) or times `1 + weight` (offset 1, Gemma)."""

    weight: Tensor

    def __init__(self, offset: float, eps: float, kernels: Kernels) -> None:
        super().__init__()
        self.offset, self.eps, self.kernels = offset, eps, kernels

    @classmethod
    def from_module(cls, norm: nn.Module, offset: float, eps: float, kernels: Kernels) -> KernelRMSNorm:
        module = cls(offset, eps, kernels)
        share_parts(norm, module)
        return module

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.kernels.supports(hidden_states):
            return self.kernels.norm(hidden_states, self.weight, self.offset, self.eps)
        rows = hidden_states.float()
        rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.eps)
        return (rows * (self.offset + self.weight.float())).to(hidden_states.dtype)


def _fuse(layers: Sequence[nn.Module], product: Product | None) -> FusedLinear | None:
    """One product for layers with the same input; None where they are called one by one."""
    return fuse_fp8(layers) or fuse(layers, product)


class FusedMLP(nn.Module):
    """down_proj(act_fn(gate_proj(x)) * up_proj(x)). The activation is silu where there are kernels."""

    residual_dropout = 0.0  # of the output; Seed-OSS has one
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: Callable[[Tensor], Tensor]

    def __init__(self, kernels: Kernels | None) -> None:
        super().__init__()
        self.kernels = kernels
        self.gate_up: FusedLinear | None = None

    @classmethod
    def from_module(cls, mlp: nn.Module, kernels: Kernels | None, product: Product | None = None) -> FusedMLP:
        module = cls(kernels)
        share_parts(mlp, module)
        module.gate_up = _fuse([module.gate_proj, module.up_proj], product)
        return module

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.gate_up is None:
            gate, up = self.gate_proj(hidden_states), self.up_proj(hidden_states)
        else:
            gate, up = self.gate_up(hidden_states)
        if self.kernels is not None and self.kernels.supports(gate, up):
            gated = self.kernels.gate(gate, up)
        else:
            gated = self.act_fn(gate) * up
        return F.dropout(self.down_proj(gated), self.residual_dropout, self.training)


class FusedAttention(nn.Module):
    """Self-attention with rotary embeddings (Llama, Qwen2, Mistral, Gemma, Gemma2).

    `options` are the keyword arguments of the family's call of the attention function: scaling, window, soft cap.
    """

    projections: ClassVar[tuple[str, ...]] = ("q_proj", "k_proj", "v_proj")
    norms: ClassVar[tuple[str, ...]] = ()  # of queries and keys
    residual_dropout = 0.0  # of the output; Seed-OSS and StarCoder2 have one
    # Taken over from the family's module.
    config: PretrainedConfig
    layer_idx: int
    head_dim: int
    attention_dropout: float
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    # Submodules of subclasses that normalize queries and keys.
    q_norm: nn.Module
    k_norm: nn.Module

    def __init__(self, options: dict[str, Any], kernels: Kernels | None) -> None:
        super().__init__()
        self.options, self.kernels = options, kernels
        self.qkv: FusedLinear | None = None
        self.family_rotate: Callable[..., tuple[Tensor, Tensor]] | None = None
        self.family_attention: Callable[..., tuple[Tensor, Tensor | None]] | None = None

    @classmethod
    def submodules(cls) -> set[str]:
        return {*cls.projections, *cls.norms, "o_proj"}

    @classmethod
    def from_module(
        cls, attention: nn.Module, options: dict[str, Any], kernels: Kernels | None, product: Product | None = None
    ) -> FusedAttention:
        module = cls(options, kernels)
        share_parts(attention, module)
        module.qkv = _fuse([attention.get_submodule(name) for name in cls.projections], product)
        family = sys.modules[type(attention).__module__]
        module.family_rotate = getattr(family, ROTATE)
        module.family_attention = getattr(family, EAGER, None)
        return module

    def forward(
        self,
        hidden_states: Tensor,  # [batch, tokens, hidden]
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = self.project(hidden_states)  # [batch, heads, tokens, head_dim]
        if position_embeddings is not None:
            query, key = self.rotate(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation,  # pyright: ignore[reportArgumentType]
            self.family_attention,  # pyright: ignore[reportArgumentType]
        )
        dropout = self.attention_dropout if self.training else 0.0
        options = {"dropout": dropout, **self.options, **kwargs}  # some families pass what is also in kwargs
        output, weights = attend(self, query, key, value, attention_mask, **options)
        output = output.reshape(*hidden_states.shape[:-1], -1).contiguous()
        return F.dropout(self.o_proj(output), self.residual_dropout, self.training), weights

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [batch, heads, tokens, head_dim]."""
        query, key, value = self.products(hidden_states)
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)

    def products(self, hidden_states: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, each [batch, tokens, heads * head_dim]."""
        if self.qkv is None:
            return self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        return self.qkv(hidden_states)

    def split_heads(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def rotate(self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        """The kernel takes one packed row of tokens and rotates whole heads; the family's function does the rest."""
        kernels, fits = self.kernels, len(query) == 1 and cosine.shape[-1] == self.head_dim
        if kernels is not None and fits and kernels.supports(query, key, cosine, sine):
            return kernels.rotate(query, cosine, sine), kernels.rotate(key, cosine, sine)
        assert self.family_rotate is not None  # set by `from_module`
        return self.family_rotate(query, key, cosine, sine)


class UnrotatedAttention(FusedAttention):
    """Without position embeddings (some layers of SmolLM3)."""

    def rotate(self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        return query, key


class HeadNormAttention(FusedAttention):
    """Queries and keys are normalized head by head before heads are transposed (Qwen3)."""

    norms = ("q_norm", "k_norm")

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = self.products(hidden_states)
        query, key = self.q_norm(query.view(heads)).transpose(1, 2), self.k_norm(key.view(heads)).transpose(1, 2)
        return query, key, self.split_heads(value)


class TransposedHeadNormAttention(FusedAttention):
    """Queries and keys are normalized head by head after heads are transposed (Gemma 3).

    Not the same as HeadNormAttention to the last bit: the gradient of a norm's weight sums rows in another order.
    """

    norms = ("q_norm", "k_norm")

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().project(hidden_states)
        return self.q_norm(query), self.k_norm(key), value


class RowNormAttention(FusedAttention):
    """Queries and keys are normalized over all heads together (OLMo 2)."""

    norms = ("q_norm", "k_norm")

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.products(hidden_states)
        return self.split_heads(self.q_norm(query)), self.split_heads(self.k_norm(key)), self.split_heads(value)


class RotatedNormAttention(FusedAttention):
    """Queries and keys are normalized head by head after they are rotated (HunYuan)."""

    norms = ("query_layernorm", "key_layernorm")
    query_layernorm: nn.Module
    key_layernorm: nn.Module

    def rotate(self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        query, key = super().rotate(query, key, cosine, sine)
        return self.query_layernorm(query), self.key_layernorm(key)


class OneProjectionAttention(FusedAttention):
    """The family itself has one projection for queries, keys and values (Phi-3)."""

    projections = ("qkv_proj",)
    qkv_proj: nn.Module
    num_key_value_heads: int

    def products(self, hidden_states: Tensor) -> tuple[Tensor, ...]:
        rows = self.qkv_proj(hidden_states)
        key_width = self.num_key_value_heads * self.head_dim
        return rows.split([rows.shape[-1] - 2 * key_width, key_width, key_width], dim=-1)


ATTENTIONS = (
    FusedAttention,
    UnrotatedAttention,
    HeadNormAttention,
    TransposedHeadNormAttention,
    RowNormAttention,
    RotatedNormAttention,
    OneProjectionAttention,
)
