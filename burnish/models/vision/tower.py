"""Attention of the towers that take many images as one stream of patches: one kernel call for all, on a GPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from burnish.sizing import flash_attention_fits

# transformers passes the lengths of a stream's images, and does not call us for each image, if the name has "flash".
STREAM = "burnish_flash_tower"
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
    fits = flash_attention_fits(query.dtype.itemsize, query.shape[-1], softcap=False)
    if query.device.type == "cuda" and fits and not dropout:
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        starts, longest = cu_seq_lens_q.to(torch.int32), int(max_length_q)
        output, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, starts, starts, longest, longest, 0.0, False, False, scale=scaling
        )
        return output[None], None
    lengths = (cu_seq_lens_q[1:] - cu_seq_lens_q[:-1]).tolist()
    parts = zip(*(part.split(lengths, dim=2) for part in (query, key, value)), strict=True)
    outputs = [F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling) for q, k, v in parts]
    return torch.cat(outputs, dim=2).transpose(1, 2), None
