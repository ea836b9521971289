"""The engine's way through the layers: weights of 16 bits, what they add to in 32.

Every layer adds to the same stream. Where that has 16 bits, it is rounded twice a layer, and after 24 layers these
roundings are most of what engine and trainer differ by: the trainer keeps its weights in 32 bits and computes under
autocast, where the stream is as wide as the embedding. So is the engine's, by the same means.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.models.parts import backbone
from burnish.sizing import FLOAT32_RESIDUAL_FAMILIES

NARROW = frozenset({torch.bfloat16, torch.float16})


def is_wide(model: PreTrainedModel) -> bool:
    """Is the stream wider than the weights?"""
    return model.dtype in NARROW and model.config.get_text_config().model_type in FLOAT32_RESIDUAL_FAMILIES


def hidden_states(model: PreTrainedModel, ids: Tensor, positions: Tensor, paged: Any) -> Tensor:
    """[tokens, hidden] after the last layer, in the format of the weights; `paged` is what attention is given."""
    inputs = {"position_ids": positions[None], "use_cache": False, "attention_mask": None, "paged": paged}
    if not is_wide(model):
        return backbone(model)(input_ids=ids[None], **inputs).last_hidden_state[0]
    # Nothing is kept between calls: no weight has to be converted, and a CUDA graph must not find what another made.
    with torch.autocast(ids.device.type, model.dtype, cache_enabled=False):
        embedded = model.get_input_embeddings()(ids[None]).float()
        output = backbone(model)(inputs_embeds=embedded, **inputs)
    return output.last_hidden_state[0].to(model.dtype)
