"""torch.compile for the layers of a model that is taught: norms, positions, gates and sums become few kernels."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from burnish.models.recompute import decoder_layers

# Families whose layers are known to become one program each; experts, for one, are chosen token by token.
COMPILED_FAMILIES = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "smollm3", "olmo2"})


COMPILED_ON = frozenset({"cuda"})  # on a CPU the compiler takes longer than it saves


def can_compile(model: PreTrainedModel, device: torch.device) -> bool:
    return device.type in COMPILED_ON and model.config.get_text_config().model_type in COMPILED_FAMILIES


def compile_layers(model: PreTrainedModel, key: str) -> int:
    """Compile them, once for all layers and every number of tokens; how many there are.

    Before `enable_recompute`, which wraps what it finds.
    """
    layers = decoder_layers(model, key)
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    return len(layers)
