"""Mixtures of experts under autocast, which does not treat them as it treats other layers.

Experts: transformers' grouped matrix products take no part in autocast, so that float32 weights would be multiplied in
float32, slowly. Routers: some compute explicitly in float32, which autocast would undo. Here both compute as with
weights of 16 bits: what the engine does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

from burnish.models.routing import is_router, num_experts

TRANSFORMERS = "grouped_mm"  # the implementation of experts that transformers chooses where it can
AUTOCAST = "burnish_autocast_grouped_mm"


def autocast_mixtures(model: PreTrainedModel) -> None:
    """Let routers and grouped products of experts compute in the dtype of autocast. Other implementations of experts
    consist of ordinary products. Does nothing for a dense model."""
    if not num_experts(model.config):
        return
    if model.config._experts_implementation == TRANSFORMERS:
        ExpertsInterface.register(AUTOCAST, _experts)
        model.set_experts_implementation(AUTOCAST)
    for module in model.modules():
        if is_router(module):
            module.forward = partial(_router, module, module.forward)


def _experts(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' function, with weights cast as autocast casts those of other products."""
    with _cast_weights(module, _autocast_dtype(hidden_states)):
        return grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)


def _router(module: nn.Module, forward: Callable[[Tensor], Any], hidden_states: Tensor) -> Any:
    dtype = _autocast_dtype(hidden_states)
    if dtype is None:
        return forward(hidden_states)
    with torch.autocast(hidden_states.device.type, enabled=False), _cast_weights(module, dtype):
        return forward(hidden_states.to(dtype))


def _autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


@contextlib.contextmanager
def _cast_weights(module: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Inside, the module's own parameters are copies of this dtype; their gradients reach the parameters."""
    parameters = dict(module._parameters)
    if dtype is not None:
        copies = {name: None if weight is None else weight.to(dtype) for name, weight in parameters.items()}
        module._parameters.update(cast(Any, copies))
    try:
        yield
    finally:
        module._parameters.update(parameters)
