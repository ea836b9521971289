"""Fewer kernels in the layers of a model that is taught: torch.compile on a GPU, and on a CPU what there is in C."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from burnish.models.recompute import decoder_layers
from burnish.native.library import CannotCompileError
from burnish.native.taking import take_over
from burnish.native.taught import TaughtLayers

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


def compute_in_c(model: PreTrainedModel) -> int:
    """Norms, gates and rotations of a model in 32 bits on a CPU; how many modules do. None without a C compiler."""
    if model.dtype != torch.float32:
        return 0
    try:
        return take_over(model, TaughtLayers())
    except CannotCompileError:
        return 0
