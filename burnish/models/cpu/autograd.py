"""The norm, gate and rotation kernels of layers.py with gradients, for models that train."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.models.cpu.layers import Layers


class DifferentiableLayers:
    """Like `Layers`, without a matrix product: torch is as fast for the many rows of a training batch."""

    def __init__(self) -> None:
        self.layers = Layers()

    def supports(self, *tensors: Tensor) -> bool:
        return self.layers.supports(*tensors)

    def norm(self, rows: Tensor, weight: Tensor, offset: float, eps: float) -> Tensor:
        return _Norm.apply(self.layers, rows, weight, offset, eps)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        return _Gate.apply(self.layers, gate, up)

    def rotate(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return _Rotation.apply(self.layers, heads, cosine, sine)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layers: Layers, rows: Tensor, weight: Tensor, offset: float, eps: float) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.layers, ctx.constants = layers, (offset, eps)
        return layers.norm(rows, weight, offset, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.layers.norm_backward(*ctx.saved_tensors, *ctx.constants, grad), None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layers: Layers, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.layers = layers
        return layers.gate(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.layers.gate_backward(*ctx.saved_tensors, grad)


class _Rotation(torch.autograd.Function):
    """Cosines and sines get no gradient."""

    @staticmethod
    def forward(ctx: Any, layers: Layers, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.layers = layers
        return layers.rotate(heads, cosine, sine)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, ctx.layers.rotate_backward(grad, *ctx.saved_tensors), None, None
