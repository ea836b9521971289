"""Filling an engine's model from a weight stream."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


@torch.inference_mode()
def copy_weights(model: nn.Module, stream: Iterable[tuple[str, Tensor]]) -> None:
    """Copy into the model's fixed storage; every parameter must come, in its own shape."""
    own = dict(model.named_parameters())
    missing = set(own)
    for name, tensor in stream:
        if name not in own:
            continue  # a tied head is sent by some trainers under both its names
        if tensor.shape != own[name].shape:
            raise ValueError(f"{name} came as {list(tensor.shape)}, the model has {list(own[name].shape)}")
        own[name].copy_(tensor)
        missing.discard(name)
    if missing:
        raise ValueError(f"the weight stream left out {sorted(missing)[:5]} ({len(missing)} tensors)")
