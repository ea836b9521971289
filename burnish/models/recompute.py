"""Gradient checkpointing: which activations are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from burnish.errors import UserError
from burnish.models.parts import backbone


def enable_recompute(model: PreTrainedModel, method: str | None, num_layers: int | None, key: str) -> None:
    """Every layer by itself (None), or one of Megatron's methods. `key` is the model's section."""
    METHODS[method](model, num_layers, f"{key}.recompute.method")


def each_layer(model: PreTrainedModel, num_layers: int | None, key: str) -> None:
    """transformers' own way: a layer's input is kept, the rest is computed again."""
    # Not the reentrant kind: that one loses the gradient where a layer's input needs none, as under LoRA.
    model.gradient_checkpointing_enable({"use_reentrant": False})


def block(model: PreTrainedModel, num_layers: int | None, key: str) -> None:
    """Only the first layers are computed again; the others keep what they made."""
    each_layer(model, None, key)
    for layer in decoder_layers(model, key)[num_layers:] if num_layers is not None else ():
        layer.gradient_checkpointing = False


def uniform(model: PreTrainedModel, num_layers: int | None, key: str) -> None:
    """Groups of layers: only a group's input is kept."""
    size = num_layers or 1
    layers = list(decoder_layers(model, key))
    for start in range(0, len(layers), size):
        _group(layers[start : start + size])


METHODS: dict[str | None, Callable[[PreTrainedModel, int | None, str], None]] = {
    None: each_layer,
    "uniform": uniform,
    "block": block,
}


def decoder_layers(model: PreTrainedModel, key: str) -> nn.ModuleList:
    layers = getattr(backbone(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        problem = f"the layers of {type(model).__name__} cannot be told apart"
        raise UserError(problem, key=key, hint=f"{key}=null")
    return layers


def _group(layers: list[nn.Module]) -> None:
    """The model calls its layers one by one, each with its own arguments. All but the last of a group only note
    their arguments and hand their input on; the last runs the whole group under one checkpoint."""
    noted: list[Callable[[Tensor], Tensor]] = []
    for layer in layers:
        layer.forward = partial(_noting, layer, layer.forward, noted, layer is layers[-1])


def _noting(
    layer: nn.Module,
    forward: Callable[..., Tensor],
    noted: list[Callable[[Tensor], Tensor]],
    last: bool,
    hidden: Tensor,
    *arguments: Any,
    **named: Any,
) -> Tensor:
    if not layer.training:
        return forward(hidden, *arguments, **named)
    noted.append(lambda given: forward(given, *arguments, **named))
    if not last:
        return hidden
    group = tuple(noted)
    noted.clear()

    def run(given: Tensor) -> Tensor:
        for one in group:
            given = one(given)
        return given

    return checkpoint(run, hidden, use_reentrant=False)
