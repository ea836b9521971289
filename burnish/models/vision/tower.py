"""Towers that take many images as one stream of patches, on a GPU: one kernel call for the attention of all, and
matrix products of aligned sizes. torch.compile makes one program of all blocks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from burnish.models.flash import packed_product
from burnish.models.varlen import AttentionShape, torch_kernel_applies

# transformers passes the lengths of a stream's images, and does not call us for each image, if the name has "flash".
STREAM = "burnish_flash_tower"
ALIGNMENT = 8  # 16-bit numbers: with rows of other lengths a GPU takes twice as long for a matrix product
STREAM_TOWERS = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl"})  # others take batches of images of one size


def with_stream_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Use it in the towers that take a stream. Not as an argument of loading: transformers takes the name for that of
    a library to install."""
    vision: Any = getattr(model.config, "vision_config", None)
    if model.config.model_type in STREAM_TOWERS and vision._attn_implementation == "sdpa":
        AttentionInterface.register(STREAM, stream_attention)
        vision._attn_implementation = STREAM
    return model


def without_stream_attention(config: PretrainedConfig) -> None:
    """A config from which transformers can build a model."""
    vision: Any = getattr(config, "vision_config", None)
    if getattr(vision, "_attn_implementation", None) == STREAM:
        vision._attn_implementation = "sdpa"


def stream_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks of a tower that takes a stream, which may be compiled; products of unaligned sizes are replaced."""
    vision: Any = getattr(model.config, "vision_config", None)
    if getattr(vision, "_attn_implementation", None) != STREAM:
        return []
    blocks: Any = list(model.get_submodule("model.visual.blocks").children())
    for block in blocks:
        if AlignedMlp.fits(block.mlp):
            block.mlp = AlignedMlp(block.mlp)
    return blocks


class AlignedMlp(nn.Module):
    """Qwen2.5-VL's gated MLP, whose width of 3,420 is padded with zeros in the products. Parameters keep their names
    and sizes."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.act_fn = mlp.act_fn
        self.padding = -mlp.gate_proj.out_features % ALIGNMENT

    @staticmethod
    def fits(mlp: nn.Module) -> bool:
        parts: list[Any] = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        plain = all(type(part) is nn.Linear for part in parts)  # not adapters
        return plain and parts[0].out_features % ALIGNMENT != 0

    def forward(self, hidden: Tensor) -> Tensor:
        pad = self.padding
        gate, up = (
            F.linear(
                hidden, F.pad(part.weight, (0, 0, 0, pad)), None if part.bias is None else F.pad(part.bias, (0, pad))
            )
            for part in (self.gate_proj, self.up_proj)
        )
        return F.linear(self.act_fn(gate) * up, F.pad(self.down_proj.weight, (0, pad)), self.down_proj.bias)


def stream_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, patches, d]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,  # [images + 1]: where the patches of each image (or window) begin, and the end
    max_length_q: int,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention in both directions inside each image, [1, patches, heads, d]."""
    dtype = torch.get_autocast_dtype(query.device.type) if torch.is_autocast_enabled(query.device.type) else value.dtype
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if torch_kernel_applies(query, AttentionShape(scaling), dropout):
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        starts = cu_seq_lens_q.to(torch.int32)
        lengths = (starts, starts, max_length_q, max_length_q)
        return packed_product(q, k, v, *lengths, scaling, 0, False)[0][None], None
    lengths = (cu_seq_lens_q[1:] - cu_seq_lens_q[:-1]).tolist()
    parts = zip(*(part.split(lengths, dim=2) for part in (query, key, value)), strict=True)
    outputs = [F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling) for q, k, v in parts]
    return torch.cat(outputs, dim=2).transpose(1, 2), None
