"""Norms, gates and rotations in C for a model that is taught: the functions of layers.py with their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.native.layers import Layers


class TaughtLayers:
    """As `Layers`, but for products: those of many rows are as fast in torch."""

    product = None

    def __init__(self) -> None:
        self.layers = Layers()

    def norm(self, rows: Tensor, weight: Tensor, offset: float, epsilon: float) -> Tensor:
        return _Norm.apply(self.layers, rows, weight, offset, epsilon)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        return _Gate.apply(self.layers, gate, up)

    def rotate(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return _Rotation.apply(self.layers, heads, cosine, sine)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layers: Layers, rows: Tensor, weight: Tensor, offset: float, epsilon: float) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.layers, ctx.numbers = layers, (offset, epsilon)
        return layers.norm(rows, weight, offset, epsilon)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.layers.norm_backward(*ctx.saved_tensors, *ctx.numbers, slope), None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layers: Layers, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.layers = layers
        return layers.gate(gate, up)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.layers.gate_backward(*ctx.saved_tensors, slope)


class _Rotation(torch.autograd.Function):
    """Angles are not taught."""

    @staticmethod
    def forward(ctx: Any, layers: Layers, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.layers = layers
        return layers.rotate(heads, cosine, sine)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return None, ctx.layers.rotate_backward(slope, *ctx.saved_tensors), None, None
