"""Filling an engine's model from a weight stream."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

RELEASED = "burnish_released_shape"


def release_weights(model: nn.Module) -> None:
    """Give the weights' memory back; the next weight stream takes it again."""
    for parameter in model.parameters():
        if not hasattr(parameter, RELEASED):
            setattr(parameter, RELEASED, parameter.shape)
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


@torch.no_grad()
def copy_weights(model: nn.Module, stream: Iterable[tuple[str, Tensor]]) -> None:
    """Copy into the model's fixed storage; every parameter must come, in its own shape."""
    own = dict(model.named_parameters())
    missing = set(own)
    for name, tensor in stream:
        if name not in own:
            continue  # a tied head is sent by some trainers under both its names
        shape = getattr(own[name], RELEASED, own[name].shape)
        if tensor.shape != shape:
            raise ValueError(f"{name} came as {list(tensor.shape)}, the model has {list(shape)}")
        if own[name].shape != shape:
            own[name].data = torch.empty(shape, dtype=own[name].dtype, device=own[name].device)
        own[name].copy_(tensor)
        missing.discard(name)
    if missing:
        raise ValueError(f"the weight stream left out {sorted(missing)[:5]} ({len(missing)} tensors)")
