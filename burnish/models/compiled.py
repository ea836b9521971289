"""Faster layers of a model in training: torch.compile on a GPU, C kernels on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from burnish.models.compile_cache import keep_compiled_programs
from burnish.models.cpu.autograd import DifferentiableLayers
from burnish.models.cpu.library import CannotCompileError
from burnish.models.fused.replace import replace_modules
from burnish.models.recompute import decoder_layers
from burnish.models.vision.family import vision_family
from burnish.models.vision.tower import stream_blocks
from burnish.sizing import COMPILED_FAMILIES

COMPILED_ON = frozenset({"cuda"})  # on a CPU, compilation takes longer than it saves


def can_compile(model: PreTrainedModel, device: torch.device) -> bool:
    family = vision_family(model.config)
    if family is not None and family.sees_whole_images:
        return False  # the places of images are numbers, on which torch.compile would specialize
    return device.type in COMPILED_ON and model.config.get_text_config().model_type in COMPILED_FAMILIES


def compile_layers(model: PreTrainedModel, key: str) -> int:
    """Compile the decoder layers, once for all layers and any number of tokens; returns how many there are. The blocks
    of a vision tower are compiled too.

    Call this before `enable_recompute`, which wraps the layers' forwards.
    """
    layers = decoder_layers(model, key)
    _compile(layers)
    compile_tower(model)
    return len(layers)


def compile_tower(model: PreTrainedModel) -> None:
    """Compile the blocks of a vision tower, if it has one that takes pictures of any sizes at once."""
    _compile(stream_blocks(model))


def _compile(layers: Sequence[nn.Module] | nn.ModuleList) -> None:
    keep_compiled_programs()
    for layer, forward in zip(layers, copied_forwards(layers), strict=True):
        layer.forward = torch.compile(forward, dynamic=True)


def copied_forwards(layers: Sequence[nn.Module] | nn.ModuleList) -> list[Callable[..., Any]]:
    """The layers' forwards, with a copy of the class's code object.

    torch.compile keeps at most eight graphs per code object and then falls back to eager. Engine, policy and reference
    need several each (kinds of layers, with and without gradients), so each model gets its own code object.
    """
    copies = {kind: _copy(kind.forward) for kind in {type(layer) for layer in layers}}
    return [layer.forward if "forward" in vars(layer) else MethodType(copies[type(layer)], layer) for layer in layers]


def _copy(function: FunctionType) -> FunctionType:
    parts = function.__globals__, function.__name__, function.__defaults__, function.__closure__
    copied = FunctionType(function.__code__.replace(), *parts)
    functools.update_wrapper(copied, function)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def use_cpu_kernels(model: PreTrainedModel) -> int:
    """Use C kernels for norms, gates and rotary embeddings of a float32 model; returns how many modules were replaced.

    Does nothing without a C compiler.
    """
    if model.dtype != torch.float32:
        return 0
    try:
        return replace_modules(model, DifferentiableLayers(), product=None)
    except CannotCompileError:
        return 0
