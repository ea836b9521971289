"""Bytes of a packed pass: what the forward pass keeps for the backward pass, and what is alive for a moment.

The counts follow the Hugging Face modules line by line, as autograd keeps their inputs, or as torch.compile divides a
layer into what is kept and what is computed again; tests count the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.doctor.shapes import GEMMA, Shape

FLOAT = 4  # bytes of float32
INT = 8  # bytes of an index


@dataclass(frozen=True)
class Width:
    """Bytes of a number: as weights are kept, and as products are computed."""

    kept: int
    compute: int
    adapters: int = 0  # as adapters are kept; 0 where there are none

    @property
    def mixed(self) -> bool:
        """Are weights and inputs copied into another format for every product?"""
        return self.kept != self.compute

    @property
    def read(self) -> int:
        """Bytes of a matrix's input as it is kept; adapters in a wider format than the rest want it in theirs."""
        return self.compute if self.mixed else max(self.compute, self.adapters)


@dataclass(frozen=True)
class Making:
    """How layers are computed."""

    compiled: bool = False  # by torch.compile, each as one program
    flash: bool = False  # attention by one kernel for all rows, whose output the next matrix reads as it is


PLAIN = Making()


@dataclass(frozen=True)
class Pass:
    """One micro-batch: the rows' lengths, and how many of their tokens are responses."""

    lengths: tuple[int, ...]
    responses: int

    @staticmethod
    def of(lengths: Sequence[int], responses: int) -> Pass:
        return Pass(tuple(lengths), responses)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def squares(self) -> int:
        """Pairs of tokens of the same row."""
        return sum(length * length for length in self.lengths)


def kept_by_layer(shape: Shape, width: Width, rows: Pass, making: Making = PLAIN) -> int:
    """Bytes that one layer keeps, without copies of weights."""
    if making.compiled:
        return rows.tokens * _compiled_parts(shape, width) + _attention(shape, width, rows, making)
    # Each product keeps a copy of its own where inputs are converted.
    readers = (3, 2) if width.kept != width.read else (1, 1)
    inner = shape.active_intermediate
    per_token = (
        shape.norms * _norm(shape, width.kept, shape.hidden)
        + sum(readers) * width.read * shape.hidden
        + (3 * width.compute + width.read) * inner  # gate, its activation, up, and their product as it is read
    )
    if shape.qk_norm:
        per_token += _head_norms(shape, width.compute)
    return rows.tokens * per_token + _attention(shape, width, rows, making) + _gemma_scales(shape)


def _compiled_parts(shape: Shape, width: Width) -> int:
    """Bytes per token of a compiled layer beside attention: inputs and outputs of matrices, and norms' inverse roots.
    What can be had from these without a product, as the sum of a branch and its input, is made again."""
    c = width.compute
    branches = shape.norms // 2  # outputs that a norm or the next sum reads: attention's, and before a norm the other's
    per_token = (
        width.kept * shape.hidden
        + (2 * width.read + branches * c) * shape.hidden
        + (2 * c + width.read) * shape.active_intermediate
        + FLOAT * shape.norms
    )
    if shape.qk_norm:
        per_token += c * (shape.query + shape.key) + FLOAT * (shape.heads + shape.kv_heads)
    return per_token


def _attention(shape: Shape, width: Width, rows: Pass, making: Making) -> int:
    """Bytes that the product keeps, and what o_proj reads where that is not the kernel's output itself."""
    c = width.compute
    read = 0 if making.flash and width.read == c else width.read * shape.query
    if shape.softcap:
        return rows.tokens * read + _long_attention(shape, c, rows)
    # query, key, value, output and the log-sum-exp of each head
    return rows.tokens * (read + c * (2 * shape.query + 2 * shape.key) + FLOAT * shape.heads)


def _norm(shape: Shape, kept: int, size: int) -> int:
    """Bytes per token of an RMS norm: its input in float32, the inverse root, the normalised input."""
    return FLOAT * size + FLOAT + (FLOAT if shape.family in GEMMA else kept) * size


def _head_norms(shape: Shape, compute: int) -> int:
    """Bytes per token of the norms of query and key heads."""
    size = shape.query + shape.key
    return FLOAT * size + FLOAT * (shape.heads + shape.kv_heads) + compute * size


def _gemma_scales(shape: Shape) -> int:
    """Gemma adds one to a norm's weight, and keeps the sum."""
    return shape.norms * FLOAT * shape.hidden if shape.family in GEMMA else 0


def _long_attention(shape: Shape, compute: int, rows: Pass) -> int:
    """Attention by plain products: every pair of tokens is kept, and keys and values repeated for their heads."""
    probabilities = FLOAT if compute == FLOAT else FLOAT + compute
    pairs = rows.squares * (shape.heads * (compute + probabilities) + 1)
    return rows.tokens * 3 * compute * shape.query + pairs


def kept_outside_layers(shape: Shape, width: Width, rows: Pass, *, head: bool) -> int:
    """Bytes kept by the embedding, the last norm and the head's inputs."""
    once = rows.tokens * (INT + _norm(shape, width.kept, shape.hidden))
    scales = (FLOAT * shape.hidden + width.kept) if shape.family in GEMMA else 0
    if not head:
        return once + scales
    return once + scales + rows.responses * (2 * INT + 2 * FLOAT + width.compute * shape.hidden)


def layer_input(shape: Shape, width: Width, rows: Pass) -> int:
    """All that is kept of a layer that is computed again in the backward pass."""
    return rows.tokens * width.kept * shape.hidden


def layer_weight_copies(shape: Shape, width: Width) -> int:
    """Bytes of a layer's matrices in the format of the products, where that is another."""
    return width.compute * shape.layer_linear if width.mixed else 0


def kept(
    shape: Shape,
    width: Width,
    rows: Pass,
    recomputed: int,
    *,
    head: bool = True,
    group: int = 1,
    making: Making = PLAIN,
) -> int:
    """Bytes that the whole forward pass keeps; of `recomputed` layers one in a group keeps its input, and only that."""
    whole = (shape.layers - recomputed) * kept_by_layer(shape, width, rows, making)
    if recomputed < shape.layers:
        whole += rows.tokens * 2 * width.kept * shape.head_dim  # the rotary embedding's sine and cosine, for all layers
    inputs = -(-recomputed // group) * layer_input(shape, width, rows)
    return whole + inputs + kept_outside_layers(shape, width, rows, head=head)


def backward_space(shape: Shape, width: Width, rows: Pass, making: Making = PLAIN) -> int:
    """Bytes of gradients alive at once in a layer's backward pass: its feed-forward part, or a norm in float32."""
    if making.compiled:  # the gradients of gate and up, and those of the layer's two ends in float32
        return rows.tokens * (2 * width.compute * shape.active_intermediate + 2 * FLOAT * shape.hidden)
    inner = width.compute * (shape.active_intermediate + 3 * shape.hidden)
    return rows.tokens * max(inner, 4 * FLOAT * shape.hidden)


def forward_space(shape: Shape, width: Width, rows: Pass, making: Making = PLAIN) -> int:
    """Bytes alive at once in a layer when nothing is kept for a backward pass."""
    c, hidden = width.compute, shape.hidden
    # A compiled program writes the product over the gate, and has no sums beside what it makes them of.
    inner, sums = (2, 2) if making.compiled else (3, 4)
    mlp = inner * c * shape.active_intermediate + width.kept * (sums * hidden + 2 * shape.head_dim)
    attention = c * (4 * shape.query + 3 * shape.key) + (2 * width.kept + c) * hidden
    pairs = rows.squares * shape.heads * 2 * FLOAT if shape.softcap else 0
    return rows.tokens * max(mlp, attention) + pairs
