"""Experts of a mixture under autocast, which does not take part in transformers' grouped matrix products.

Without this, float32 weights are multiplied in float32 where every other product has 16 bits: slower, and not what the
engine and sharded ranks compute.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

from burnish.models.routing import num_experts

TRANSFORMERS = "grouped_mm"  # the implementation of experts that transformers chooses where it can
AUTOCAST = "burnish_autocast_grouped_mm"


def autocast_experts(model: PreTrainedModel) -> None:
    """Let grouped products of experts follow autocast. Other implementations consist of ordinary products."""
    if num_experts(model.config) and model.config._experts_implementation == TRANSFORMERS:
        ExpertsInterface.register(AUTOCAST, grouped_products)
        model.set_experts_implementation(AUTOCAST)


def grouped_products(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' function, with weights cast as autocast casts those of other products."""
    device, weights = hidden_states.device.type, dict(module.named_parameters(recurse=False))
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        if any(weight.dtype != dtype for weight in weights.values()):
            cast = {name: weight.to(dtype) for name, weight in weights.items()}
            return functional_call(module, cast, (hidden_states, top_k_index, top_k_weights))  # calls this again
    return grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
