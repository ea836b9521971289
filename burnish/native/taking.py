"""Which parts of a model are computed in C.

The Hugging Face class stays the definition: a part is replaced only where it is a plain linear layer, or where its own
code and the one in C give the same on numbers made for the purpose. A module's class becomes a class of that name that
extends its own and has another `forward`: copies of the module are as good as itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from burnish.native.layers import Layers
from burnish.native.taught import TaughtLayers

Functions = Layers | TaughtLayers
Forward = Callable[..., Tensor]  # of the module and what it is given
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
ROTATE = "apply_rotary_pos_emb"  # what every modeling file of transformers calls it


def take_over(model: nn.Module, layers: Functions) -> int:
    """Let this instance compute in C what is the same there; how many modules do. Products that were joined have their
    own way to it."""
    taken = 0
    for module in model.modules():
        forward = next((found for make in MAKERS if (found := make(module, layers)) is not None), None)
        if forward is not None:
            own = type(module)
            module.__class__ = type(own.__name__, (own,), {"forward": forward, "__module__": own.__module__})
            taken += 1
    return taken


def _linear(module: nn.Module, layers: Functions) -> Forward | None:
    if type(module) is not nn.Linear or layers.product is None:
        return None
    return lambda module, rows: layers.product(rows, module.weight, module.bias)  # an engine has one format


def _norm(module: nn.Module, layers: Functions) -> Forward | None:
    """Some multiply by the weight, some by one more than it; which of both is seen."""
    weight = module._parameters.get("weight")
    epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    if weight is None or weight.dim() != 1 or len(module._parameters) != 1 or not isinstance(epsilon, float):
        return None
    probe, rows, own = copy.deepcopy(module), _numbers(3, len(weight)), type(module).forward
    probe.weight.data = _numbers(len(weight)).to(weight.dtype)
    expected = _answer(probe, rows)
    for offset in (0.0, 1.0):
        if _same(expected, layers.norm(rows, probe.weight, offset, epsilon)):
            break
    else:
        return None

    def forward(module: nn.Module, rows: Tensor) -> Tensor:
        return layers.norm(rows, module.weight, offset, epsilon) if _fits(rows) else own(module, rows)

    return forward


def _mlp(module: nn.Module, layers: Functions) -> Forward | None:
    """Its forward is tried with small layers in the place of its own."""
    if set(module._modules) | {"act_fn"} != MLP_PARTS or module._parameters:
        return None
    small = {"gate_proj": nn.Linear(6, 10), "up_proj": nn.Linear(6, 10), "down_proj": nn.Linear(10, 6)}
    for number, linear in enumerate(small.values()):
        linear.weight.data = _numbers(*linear.weight.shape, seed=number)
    probe, rows = copy.copy(module), _numbers(3, 6)
    probe.__dict__["_modules"] = {**module._modules, **small}
    gated = layers.gate(small["gate_proj"](rows), small["up_proj"](rows))
    if not _same(_answer(probe, rows), small["down_proj"](gated)):
        return None

    def forward(module: nn.Module, rows: Tensor) -> Tensor:
        gate, up = module.gate_proj(rows), module.up_proj(rows)
        return module.down_proj(layers.gate(gate, up) if _fits(gate) and _fits(up) else module.act_fn(gate) * up)

    return forward


def _attention(module: nn.Module, layers: Functions) -> Forward | None:
    """Its own forward, in which the name of the function that rotates stands for another."""
    forward = type(module).forward
    own = getattr(forward, "__globals__", {}).get(ROTATE)
    if own is None or ROTATE not in forward.__code__.co_names:
        return None

    def rotate(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        if how or len(query) != 1 or not all(_fits(x) for x in (query, key, cosine, sine)):
            return own(query, key, cosine, sine, *how)
        return layers.rotate(query, cosine, sine), layers.rotate(key, cosine, sine)

    given = _numbers(1, 4, 3, 8), _numbers(1, 2, 3, 8), _numbers(1, 3, 8), _numbers(1, 3, 8, seed=1)
    if not all(_same(*pair) for pair in zip(own(*given), rotate(*given), strict=True)):
        return None
    names = {**forward.__globals__, ROTATE: rotate}
    changed = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    changed.__kwdefaults__ = forward.__kwdefaults__
    return changed


MAKERS = (_linear, _norm, _mlp, _attention)


def _fits(given: Tensor) -> bool:
    """It may be called with what C does not know: under autocast, or on another device."""
    return given.dtype == torch.float32 and given.device.type == "cpu"


def _numbers(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def _answer(module: nn.Module, rows: Tensor) -> Tensor | None:
    """What it gives, if it takes rows alone."""
    try:
        answer = module(rows)
    except (TypeError, RuntimeError):
        return None
    return answer if isinstance(answer, Tensor) else None


def _same(expected: Tensor | None, found: Tensor) -> bool:
    return expected is not None and expected.shape == found.shape and torch.allclose(expected, found, 1e-5, 1e-5)
