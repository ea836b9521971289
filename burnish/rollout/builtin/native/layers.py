"""Parts of a decoder layer on a CPU in C (layers.c): products, norms, gates.

The Hugging Face class stays the definition: a part is replaced only where it is a plain linear layer, or where its own
forward and the one in C give the same on numbers made for the purpose. Products read weights that are laid out for them
(a copy), are computed row by row whatever the batch, and so need no padding to be invariant.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable

import torch
from torch import Tensor, nn

from burnish.rollout.builtin.native.library import compiled

Forward = Callable[[Tensor], Tensor]
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
POINTER, LONG, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
SIGNATURES = {
    "burnish_pack": (POINTER, LONG, LONG, POINTER),
    "burnish_product": (POINTER, LONG, LONG, POINTER, LONG, POINTER, LONG, POINTER),
    "burnish_norm": (POINTER, LONG, LONG, LONG, POINTER, FLOAT, FLOAT, POINTER),
    "burnish_gate": (POINTER, LONG, POINTER, LONG, LONG, LONG, POINTER),
}


class Layers:
    """The functions of layers.c over tensors, and the weights that they have laid out."""

    def __init__(self) -> None:
        self.library = compiled("layers")
        for name, arguments in SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, None
        self.width = self.library.burnish_width()  # of a panel
        self.packed: dict[int, Tensor] = {}  # by the address of the weight

    def forget(self) -> None:
        """The weights have changed, or go."""
        self.packed.clear()

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer."""
        width, depth = weight.shape
        flat = _rows(rows)
        output = flat.new_empty(len(flat), width)
        given = None if bias is None else bias.data_ptr()
        self.library.burnish_product(
            *(flat.data_ptr(), len(flat), flat.stride(0), self._panels(weight).data_ptr(), depth, given, width),
            output.data_ptr(),
        )
        return output.view(*rows.shape[:-1], width)

    def norm(self, rows: Tensor, weight: Tensor, offset: float, epsilon: float) -> Tensor:
        """Each row over its root mean square, times (offset + weight)."""
        flat = _rows(rows)
        output = flat.new_empty(flat.shape)
        self.library.burnish_norm(
            *(flat.data_ptr(), len(flat), flat.stride(0), flat.shape[1], weight.data_ptr(), offset, epsilon),
            output.data_ptr(),
        )
        return output.view(rows.shape)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up"""
        one, other = _rows(gate), _rows(up)
        output = one.new_empty(one.shape)
        self.library.burnish_gate(
            *(one.data_ptr(), one.stride(0), other.data_ptr(), other.stride(0), *one.shape), output.data_ptr()
        )
        return output.view(gate.shape)

    def _panels(self, weight: Tensor) -> Tensor:
        """The weight as burnish_product reads it, made when it is first asked for."""
        panels = self.packed.get(weight.data_ptr())
        if panels is None:
            width, depth = weight.shape
            panels = weight.new_empty(-(-width // self.width) * self.width * depth)
            self.library.burnish_pack(weight.contiguous().data_ptr(), width, depth, panels.data_ptr())
            self.packed[weight.data_ptr()] = panels
        return panels


def _rows(tensor: Tensor) -> Tensor:
    """[..., size] -> [rows, size] whose rows are each in one piece."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def take_over(model: nn.Module, layers: Layers) -> None:
    """Let this instance compute in C what is the same there. Products that were joined have their own way to it."""
    for module in model.modules():
        forward = _linear(module, layers) or _norm(module, layers) or _mlp(module, layers)
        if forward is not None:
            module.forward = forward


def _linear(module: nn.Module, layers: Layers) -> Forward | None:
    if type(module) is not nn.Linear:
        return None
    return lambda rows: layers.product(rows, module.weight, module.bias)


def _norm(module: nn.Module, layers: Layers) -> Forward | None:
    """Some multiply by the weight, some by one more than it; which of both is seen."""
    weight = module._parameters.get("weight")
    epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    if weight is None or weight.dim() != 1 or len(module._parameters) != 1 or not isinstance(epsilon, float):
        return None
    probe, rows = copy.deepcopy(module), _numbers(3, len(weight))
    probe.weight.data = _numbers(len(weight)).to(weight.dtype)
    expected = _answer(probe, rows)
    for offset in (0.0, 1.0):
        if _same(expected, layers.norm(rows, probe.weight, offset, epsilon)):
            return lambda rows, offset=offset: layers.norm(rows, module.weight, offset, epsilon)
    return None


def _mlp(module: nn.Module, layers: Layers) -> Forward | None:
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
    return lambda rows: module.down_proj(layers.gate(module.gate_proj(rows), module.up_proj(rows)))


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
