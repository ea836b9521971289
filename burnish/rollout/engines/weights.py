"""Loading a weight stream into an engine's model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from burnish.models.fused.fp8 import fp8_layers
from burnish.models.parts import saved_buffers
from burnish.models.tensor_slices import Slices, part_of

RELEASED = "burnish_released_shape"
NOT_SLICED: Slices = {}


def release_weights(model: nn.Module) -> None:
    """Free the weights' memory until the next `copy_weights`."""
    for parameter in model.parameters():
        if not hasattr(parameter, RELEASED):
            setattr(parameter, RELEASED, parameter.shape)
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


@torch.no_grad()
def copy_weights(model: nn.Module, stream: Iterable[tuple[str, Tensor]], slices: Slices = NOT_SLICED) -> None:
    """Copy into the model's storage; the stream must contain every parameter and saved buffer, in its shape.

    The stream has whole weights, the model those parts of them that `slices` says; layers with weights of 8 bits round
    what they get.
    """
    rounded = fp8_layers(model)
    parameters = {**dict(model.named_parameters()), **dict(saved_buffers(model))}
    missing = set(parameters)
    for name, tensor in stream:
        if name not in parameters:
            continue  # some trainers send a tied head under both of its names
        shape = getattr(parameters[name], RELEASED, parameters[name].shape)
        part = part_of(slices, name, tensor)
        if part.shape != shape:
            raise ValueError(f"{name}: the stream has shape {list(part.shape)}, the model {list(shape)}")
        if parameters[name].shape != shape:
            parameters[name].data = torch.empty(shape, dtype=parameters[name].dtype, device=parameters[name].device)
        if name in rounded:
            rounded[name].load(part)
        else:
            parameters[name].copy_(part)
        missing.discard(name)
    if missing:
        raise ValueError(f"the weight stream left out {len(missing)} tensors: {sorted(missing)[:5]}")
