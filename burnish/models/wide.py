"""The engine's forward pass: 16-bit weights with a float32 residual stream.

A 16-bit residual stream is rounded twice per layer. After 24 layers these roundings are most of the difference between
engine and trainer, which keeps float32 weights and runs under autocast, where the residual stream has the dtype of the
embedding. The engine does the same: float32 embeddings under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.models.parts import backbone
from burnish.models.positions import batched
from burnish.models.vision.family import Embedded
from burnish.sizing import FLOAT32_RESIDUAL_FAMILIES

NARROW = frozenset({torch.bfloat16, torch.float16})


def is_wide(model: PreTrainedModel) -> bool:
    """Whether the residual stream has a wider dtype than the weights."""
    return model.dtype in NARROW and model.config.get_text_config().model_type in FLOAT32_RESIDUAL_FAMILIES


def embed_in(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Let embeddings come out in `dtype`, whatever that of the weight is while the model runs: it is the dtype of the
    residual stream and of the rotary tables."""
    model.get_input_embeddings().register_forward_hook(partial(_in_dtype, dtype))


def _in_dtype(dtype: torch.dtype, embedding: nn.Embedding, args: tuple[Tensor], output: Tensor) -> Tensor:
    scale: Any = getattr(embedding, "scalar_embed_scale", None)
    if output.dtype == dtype or scale is None:
        return output.to(dtype)
    # Gemma multiplies in the dtype of the weight, where the square root of the hidden size has an error of up to 0.2%.
    return nn.Embedding.forward(embedding, *args).to(dtype) * scale


def hidden_states(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, paged: Any, embed: Callable[[], Embedded] | None = None
) -> Tensor:
    """[tokens, hidden] after the last layer, in the dtype of the weights; `paged` goes to the attention function.

    `embed`: the input of the layers, where it is more than the embeddings of `ids` (images).
    """
    inputs = {"position_ids": batched(positions), "use_cache": False, "attention_mask": None, "paged": paged}
    if not is_wide(model):
        if embed is None:
            return backbone(model)(input_ids=ids[None], **inputs).last_hidden_state[0]
        embedded = embed()
        inputs |= embedded.arguments
        return backbone(model)(inputs_embeds=embedded.embeds[None], **inputs).last_hidden_state[0]
    # No autocast cache: weights need no conversion, and a CUDA graph must not use tensors of another graph.
    with torch.autocast(ids.device.type, model.dtype, cache_enabled=False):
        embedded = Embedded(model.get_input_embeddings()(ids)) if embed is None else embed()
        inputs |= embedded.arguments
        output = backbone(model)(inputs_embeds=embedded.embeds[None].float(), **inputs)
    return output.last_hidden_state[0].to(model.dtype)
