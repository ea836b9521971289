"""torch.compile for the parts of a layer that are many small operations: its norms and its feed-forward part."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from burnish.models.recompute import decoder_layers


def compile_layers(model: PreTrainedModel, key: str) -> int:
    """Compile them, once for all layers and every number of tokens; how many modules there are.

    The attention between them stays as it is: it is called with the lengths of the rows, which are others each time.
    """
    parts = [part for layer in decoder_layers(model, key) for part in _parts(layer)]
    for part in parts:
        part.forward = torch.compile(part.forward, dynamic=True)
    return len(parts)


def _parts(layer: nn.Module) -> list[nn.Module]:
    named = dict(layer.named_children())
    return [module for name, module in named.items() if name == "mlp" or name.endswith("layernorm")]
