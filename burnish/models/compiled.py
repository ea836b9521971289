"""Fewer kernels in the layers of a model that is taught: torch.compile on a GPU, and on a CPU what there is in C."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from burnish.models.recompute import decoder_layers
from burnish.native.library import CannotCompileError
from burnish.native.taking import take_over
from burnish.native.taught import TaughtLayers
from burnish.sizing import COMPILED_FAMILIES

COMPILED_ON = frozenset({"cuda"})  # on a CPU the compiler takes longer than it saves


def can_compile(model: PreTrainedModel, device: torch.device) -> bool:
    return device.type in COMPILED_ON and model.config.get_text_config().model_type in COMPILED_FAMILIES


def compile_layers(model: PreTrainedModel, key: str) -> int:
    """Compile them, once for all layers and every number of tokens; how many there are.

    Before `enable_recompute`, which wraps what it finds.
    """
    layers = decoder_layers(model, key)
    for layer, forward in zip(layers, own_forwards(layers), strict=True):
        layer.forward = torch.compile(forward, dynamic=True)
    return len(layers)


def own_forwards(layers: Sequence[nn.Module]) -> list[Callable[..., Any]]:
    """Their forwards, from a copy of their classes' code.

    torch.compile makes at most eight programs of one piece of code, whoever asked for them, and then leaves it as it
    is. Engine, policy and reference have several each (kinds of layers, with and without gradients).
    """
    copies = {kind: _copy(kind.forward) for kind in {type(layer) for layer in layers}}
    return [layer.forward if "forward" in vars(layer) else MethodType(copies[type(layer)], layer) for layer in layers]


def _copy(function: FunctionType) -> FunctionType:
    parts = function.__globals__, function.__name__, function.__defaults__, function.__closure__
    copied = functools.update_wrapper(FunctionType(function.__code__.replace(), *parts), function)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def compute_in_c(model: PreTrainedModel) -> int:
    """Norms, gates and rotations of a model in 32 bits on a CPU; how many modules do. None without a C compiler."""
    if model.dtype != torch.float32:
        return 0
    try:
        return take_over(model, TaughtLayers())
    except CannotCompileError:
        return 0
