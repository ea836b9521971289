"""Gradient checkpointing: recompute activations in the backward pass instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from burnish.errors import UserError
from burnish.models.parts import backbone
from burnish.models.vision.family import vision_family

Parts = Sequence[range] | None  # the layers of each pipeline stage; None: there are no stages


def enable_recompute(
    model: PreTrainedModel, method: str | None, num_layers: int | None, key: str, parts: Parts = None
) -> None:
    """Checkpoint each layer (None), or use another of METHODS. `key` is the model's config section.

    As in Megatron, `num_layers` counts within each pipeline stage.
    """
    METHODS[method](model, num_layers, f"{key}.recompute.method", parts)


def each_layer(model: PreTrainedModel, num_layers: int | None, key: str, parts: Parts = None) -> None:
    """transformers' gradient checkpointing: keep each layer's input."""
    # Reentrant checkpointing loses gradients if a layer's input requires none, as with LoRA.
    model.gradient_checkpointing_enable({"use_reentrant": False})


def block(model: PreTrainedModel, num_layers: int | None, key: str, parts: Parts = None) -> None:
    """Recompute only the first `num_layers` layers."""
    each_layer(model, None, key)
    for layers in _split(model, key, parts) if num_layers is not None else ():
        for layer in layers[num_layers:]:
            layer.gradient_checkpointing = False  # pyright: ignore[reportArgumentType]


def uniform(model: PreTrainedModel, num_layers: int | None, key: str, parts: Parts = None) -> None:
    """Checkpoint groups of `num_layers` layers: keep only each group's input."""
    size = num_layers or 1
    family = vision_family(model.config)
    if size > 1 and family is not None and family.changes_layers:
        problem = f"models of type {family.name!r} add image features between layers, which cannot be grouped"
        raise UserError(problem, key=key, value="uniform", hint=f"{key}=block")
    for layers in _split(model, key, parts):
        for start in range(0, len(layers), size):
            _group(layers[start : start + size])


def planned(model: PreTrainedModel, num_layers: int | None, key: str, parts: Parts = None) -> None:
    """`block` with the number that the memory plan chose (loop/recompute.py), which may be 0; None is all layers."""
    if num_layers != 0:
        block(model, num_layers, key, parts)


def _split(model: PreTrainedModel, key: str, parts: Parts) -> list[list[nn.Module]]:
    layers = list(decoder_layers(model, key))
    return [layers] if parts is None else [layers[part.start : part.stop] for part in parts]


METHODS: dict[str | None, Callable[[PreTrainedModel, int | None, str, Parts], None]] = {
    None: each_layer,
    "uniform": uniform,
    "block": block,
    "auto": planned,
}


def decoder_layers(model: PreTrainedModel, key: str) -> nn.ModuleList:
    layers = getattr(backbone(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        problem = f"the layers of {type(model).__name__} cannot be found (no ModuleList named `layers`)"
        raise UserError(problem, key=key, hint=f"{key}=null")
    return layers


def _group(layers: list[nn.Module]) -> None:
    """Run a group of layers under one checkpoint.

    The model calls its layers one by one. All but the last layer of the group only record the call and return their
    input; the last one runs the recorded calls under one checkpoint.
    """
    calls: list[Callable[[Tensor], Tensor]] = []
    for layer in layers:
        layer.forward = partial(_record, layer, layer.forward, calls, layer is layers[-1])


def _record(
    layer: nn.Module,
    forward: Callable[..., Tensor],
    calls: list[Callable[[Tensor], Tensor]],
    last: bool,
    hidden: Tensor,
    *arguments: Any,
    **kwargs: Any,
) -> Tensor:
    if not layer.training:
        return forward(hidden, *arguments, **kwargs)
    calls.append(lambda hidden: forward(hidden, *arguments, **kwargs))
    if not last:
        return hidden
    group = tuple(calls)
    calls.clear()

    def run(hidden: Tensor) -> Tensor:
        for call in group:
            hidden = call(hidden)
        return hidden

    return checkpoint(run, hidden, use_reentrant=False)
