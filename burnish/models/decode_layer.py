"""The operations that a decoder layer consists of when it decodes one token per row, besides attention.

Each exists twice: in plain torch here, which is the reference and runs without Triton, and as one Triton kernel each
(models/kernels/decode_products.py). Everything is a tensor of fixed shape, so a CUDA graph can capture the calls.

The residual stream is float32; products have the dtype of the weights and are summed up in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}


class LayerShape(NamedTuple):
    """What all layers of a model have in common."""

    hidden: int
    inner: int  # of the gated MLP
    heads: int
    kv_heads: int
    dim: int  # of a head
    eps: float
    offset: float  # added to the weights of norms: 1 in Gemma, else 0
    activation: str
    post_norms: bool  # whether a norm follows attention and MLP, before the residual stream (Gemma)


class HeadNorms(NamedTuple):
    """Norms of every head of queries and keys, [dim] each (Qwen3, Gemma 3)."""

    query: Tensor
    key: Tensor


class Rotary(NamedTuple):
    """Rotary embeddings of all positions, [positions, dim / 2] float32 each."""

    cos: Tensor
    sin: Tensor


@dataclass
class Stream:
    """The residual stream and the input of the next product; `add` updates both in place."""

    hidden: Tensor  # [rows, hidden] float32
    scaled: Tensor  # [rows, hidden] in the dtype of the weights: hidden * weight of the next norm, not divided by rms
    sums: Tensor  # [rows, parts] float32: of the squares of `hidden`; a row's parts have to be added


class Products(Protocol):
    @property
    def counters(self) -> Tensor | None:
        """Zeros, for kernels whose last program completes the work of others."""
        ...

    def begin(self, hidden: Tensor, weight: Tensor) -> Stream:
        """The residual stream before the first layer, whose input norm has this weight; `hidden` becomes a part."""
        ...

    def heads(
        self,
        stream: Stream,
        weight: Tensor,
        bias: Tensor | None,
        norms: HeadNorms | None,
        rotary: Rotary,
        positions: Tensor,
    ) -> Tensor:
        """[rows, heads + 2 * kv_heads, dim]: norm, product with [q; k; v], norms of heads, rotary embedding."""
        ...

    def add(self, stream: Stream, input: Tensor, weight: Tensor, post: Tensor | None, following: Tensor) -> None:
        """Add a product to the residual stream, after its own norm (`post`) if there is one.

        `following` is the weight of the norm that comes next.
        """
        ...

    def gate_up(self, stream: Stream, weight: Tensor) -> Tensor:
        """[rows, inner]: norm, product with [gate; up], activation(gate) * up."""
        ...

    def end(self, stream: Stream, weight: Tensor) -> Tensor:
        """[rows, hidden] after the last norm, in the dtype of the weights."""
        ...


class TorchProducts:
    """The reference."""

    counters = None

    def __init__(self, shape: LayerShape) -> None:
        self.shape = shape

    def begin(self, hidden: Tensor, weight: Tensor) -> Stream:
        stream = Stream(hidden, hidden.new_empty(hidden.shape, dtype=weight.dtype), hidden.new_empty(len(hidden), 1))
        self._follow(stream, weight)
        return stream

    def heads(
        self,
        stream: Stream,
        weight: Tensor,
        bias: Tensor | None,
        norms: HeadNorms | None,
        rotary: Rotary,
        positions: Tensor,
    ) -> Tensor:
        shape = self.shape
        product = self._normed_product(stream, weight)
        if bias is not None:
            product = product + bias.float()
        product = product.unflatten(-1, (-1, shape.dim))
        query, key, value = product.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if norms is not None:
            query, key = (self._norm(x, w) for x, w in ((query, norms.query), (key, norms.key)))
        cos, sin = (table[positions].repeat(1, 2)[:, None] for table in rotary)
        rotated = [x * cos + _half_turned(x) * sin for x in (query, key)]
        return torch.cat([*rotated, value], dim=1).to(weight.dtype)

    def add(self, stream: Stream, input: Tensor, weight: Tensor, post: Tensor | None, following: Tensor) -> None:
        product = _product(input, weight)
        stream.hidden += product if post is None else self._norm(product, post)
        self._follow(stream, following)

    def gate_up(self, stream: Stream, weight: Tensor) -> Tensor:
        gate, up = self._normed_product(stream, weight).chunk(2, dim=-1)
        return (ACTIVATIONS[self.shape.activation](gate) * up).to(weight.dtype)

    def end(self, stream: Stream, weight: Tensor) -> Tensor:
        return self._norm(stream.hidden, weight).to(weight.dtype)

    def _follow(self, stream: Stream, weight: Tensor) -> None:
        stream.scaled.copy_(stream.hidden * (weight.float() + self.shape.offset))
        stream.sums.copy_(stream.hidden.square().sum(-1, keepdim=True))

    def _normed_product(self, stream: Stream, weight: Tensor) -> Tensor:
        """[rows, outputs] float32."""
        mean = stream.sums.sum(-1, keepdim=True) / stream.hidden.shape[-1]
        return _product(stream.scaled, weight) * torch.rsqrt(mean + self.shape.eps)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.shape.eps)
        return x * scale * (weight.float() + self.shape.offset)


def _product(input: Tensor, weight: Tensor) -> Tensor:
    return input.float() @ weight.float().t()


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)
