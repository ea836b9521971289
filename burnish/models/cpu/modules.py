"""Modules of a decoder layer that call the C kernels of layers.c.

Each replaces one module of a Hugging Face model: it holds the same parameters and submodules under the same names, so
state dicts, optimizers and adapters do not notice. replace.py decides which modules are replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from burnish.models.cpu.autograd import DifferentiableLayers
from burnish.models.cpu.layers import Layers

Kernels = Layers | DifferentiableLayers
ROTATE = "apply_rotary_pos_emb"  # the name of this function in every modeling file of transformers
EAGER = "eager_attention_forward"


class CpuLinear(nn.Linear):
    """A linear layer whose result for a row does not depend on the other rows of the batch. Inference only."""

    kernels: Layers

    @classmethod
    def from_module(cls, linear: nn.Linear, kernels: Layers) -> CpuLinear:
        module = cls.__new__(cls)  # nn.Linear.__init__ would allocate and initialize new parameters
        nn.Module.__init__(module)
        _share(linear, module)
        module.kernels = kernels
        return module

    def forward(self, input: Tensor) -> Tensor:
        return self.kernels.product(input, self.weight, self.bias)


class CpuRMSNorm(nn.Module):
    """RMSNorm times `weight` (offset 0) or times `1 + weight` (offset 1, Gemma)."""

    weight: Tensor

    def __init__(self, offset: float, eps: float, kernels: Kernels) -> None:
        super().__init__()
        self.offset, self.eps, self.kernels = offset, eps, kernels

    @classmethod
    def from_module(cls, norm: nn.Module, offset: float, eps: float, kernels: Kernels) -> CpuRMSNorm:
        module = cls(offset, eps, kernels)
        _share(norm, module)
        return module

    def forward(self, hidden_states: Tensor) -> Tensor:
        if is_supported(hidden_states):
            return self.kernels.norm(hidden_states, self.weight, self.offset, self.eps)
        rows = hidden_states.float()
        rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.eps)
        return (rows * (self.offset + self.weight.float())).to(hidden_states.dtype)


class CpuGatedMLP(nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x))"""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: Callable[[Tensor], Tensor]

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels

    @classmethod
    def from_module(cls, mlp: nn.Module, kernels: Kernels) -> CpuGatedMLP:
        module = cls(kernels)
        _share(mlp, module)
        return module

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate, up = self.gate_proj(hidden_states), self.up_proj(hidden_states)
        if is_supported(gate) and is_supported(up):
            return self.down_proj(self.kernels.gate(gate, up))
        return self.down_proj(self.act_fn(gate) * up)


class CpuAttention(nn.Module):
    """Self-attention whose rotary embedding is applied in C (Llama, Qwen2, Mistral, Gemma, Gemma2).

    `options` are the keyword arguments of the family's call of the attention function: scaling, window, soft cap.
    """

    submodules: ClassVar[frozenset[str]] = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
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

    def __init__(self, options: dict[str, Any], kernels: Kernels) -> None:
        super().__init__()
        self.options, self.kernels = options, kernels
        self.family_rotate: Callable[..., tuple[Tensor, Tensor]] | None = None
        self.family_attention: Callable[..., tuple[Tensor, Tensor | None]] | None = None

    @classmethod
    def from_module(cls, attention: nn.Module, options: dict[str, Any], kernels: Kernels) -> CpuAttention:
        module = cls(options, kernels)
        _share(attention, module)
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
        query, key, value = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)

    def split_heads(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def rotate(self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        """The kernel takes one packed row of tokens and rotates whole heads; the family's function does the rest."""
        supported = all(map(is_supported, (query, key, cosine, sine)))
        if not supported or len(query) != 1 or cosine.shape[-1] != self.head_dim:
            assert self.family_rotate is not None  # set by `from_module`
            return self.family_rotate(query, key, cosine, sine)
        return self.kernels.rotate(query, cosine, sine), self.kernels.rotate(key, cosine, sine)


class CpuHeadNormAttention(CpuAttention):
    """Queries and keys are normalized head by head before heads are transposed (Qwen3)."""

    submodules = CpuAttention.submodules | {"q_norm", "k_norm"}

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(heads)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(heads)).transpose(1, 2)
        return query, key, self.split_heads(self.v_proj(hidden_states))


class CpuTransposedHeadNormAttention(CpuAttention):
    """Queries and keys are normalized head by head after heads are transposed (Gemma 3).

    Not the same as CpuHeadNormAttention to the last bit: the gradient of a norm's weight sums rows in another order.
    """

    submodules = CpuHeadNormAttention.submodules

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().project(hidden_states)
        return self.q_norm(query), self.k_norm(key), value


class CpuRowNormAttention(CpuAttention):
    """Queries and keys are normalized over all heads together (OLMo 2)."""

    submodules = CpuHeadNormAttention.submodules

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key = self.q_norm(self.q_proj(hidden_states)), self.k_norm(self.k_proj(hidden_states))
        value = self.v_proj(hidden_states)
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)


class CpuRotatedNormAttention(CpuAttention):
    """Queries and keys are normalized head by head after they are rotated (HunYuan)."""

    submodules = CpuAttention.submodules | {"query_layernorm", "key_layernorm"}
    query_layernorm: nn.Module
    key_layernorm: nn.Module

    def rotate(self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        query, key = super().rotate(query, key, cosine, sine)
        return self.query_layernorm(query), self.key_layernorm(key)


class CpuFusedProjectionAttention(CpuAttention):
    """One projection for queries, keys and values (Phi-3)."""

    submodules = frozenset({"qkv_proj", "o_proj"})
    qkv_proj: nn.Module
    num_key_value_heads: int

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.qkv_proj(hidden_states)
        key_width = self.num_key_value_heads * self.head_dim
        query_width = rows.shape[-1] - 2 * key_width
        query, key = rows[..., :query_width], rows[..., query_width : query_width + key_width]
        value = rows[..., query_width + key_width :]
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)


ATTENTIONS = (
    CpuAttention,
    CpuHeadNormAttention,
    CpuTransposedHeadNormAttention,
    CpuRowNormAttention,
    CpuRotatedNormAttention,
    CpuFusedProjectionAttention,
)


def is_supported(tensor: Tensor) -> bool:
    """Whether the kernels take this tensor: float32 on a CPU. Under autocast a module may get another dtype."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _share(source: nn.Module, target: nn.Module) -> None:
    """Give `target` the parameters, buffers, submodules and public attributes of `source`, in the same order.

    Attributes matter beyond the forward pass: attention functions read `layer_idx` and `is_causal`, peft `in_features`.
    """
    for name, value in vars(source).items():
        if not name.startswith("_"):
            setattr(target, name, value)
    for name, parameter in source._parameters.items():
        target.register_parameter(name, parameter)
    for name, buffer in source._buffers.items():
        target.register_buffer(name, buffer, persistent=name not in source._non_persistent_buffers_set)
    for name, module in source._modules.items():
        target.add_module(name, module)
