"""Bytes of a packed pass: what the forward pass keeps for the backward pass, and what is alive for a moment.

The counts follow the Hugging Face modules line by line, as autograd keeps their inputs; tests count the tensors.
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

    @property
    def mixed(self) -> bool:
        """Are weights and inputs copied into another format for every product?"""
        return self.kept != self.compute


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


def kept_by_layer(shape: Shape, width: Width, rows: Pass) -> int:
    """Bytes that one layer keeps, without copies of weights."""
    c, tokens = width.compute, rows.tokens
    readers = (3, 2) if width.mixed else (1, 1)  # each product keeps a copy of its own where inputs are converted
    inner = shape.active_intermediate
    per_token = (
        shape.norms * _norm(shape, width.kept, shape.hidden)
        + sum(readers) * c * shape.hidden
        + 4 * c * inner  # gate, its activation, up, their product
        + c * shape.query  # what o_proj reads
    )
    if shape.qk_norm:
        per_token += _head_norms(shape, c)
    if shape.softcap:
        return tokens * per_token + _long_attention(shape, c, rows) + _gemma_scales(shape)
    # query, key, value, output and the log-sum-exp of each head
    per_token += c * (2 * shape.query + 2 * shape.key) + FLOAT * shape.heads
    return tokens * per_token + _gemma_scales(shape)


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


def kept(shape: Shape, width: Width, rows: Pass, recomputed: int, *, head: bool = True, group: int = 1) -> int:
    """Bytes that the whole forward pass keeps; of `recomputed` layers one in a group keeps its input, and only that."""
    whole = (shape.layers - recomputed) * kept_by_layer(shape, width, rows)
    if recomputed < shape.layers:
        whole += rows.tokens * 2 * width.kept * shape.head_dim  # the rotary embedding's sine and cosine, for all layers
    inputs = -(-recomputed // group) * layer_input(shape, width, rows)
    return whole + inputs + kept_outside_layers(shape, width, rows, head=head)


def backward_space(shape: Shape, width: Width, rows: Pass) -> int:
    """Bytes of gradients alive at once in a layer's backward pass: its feed-forward part, or a norm in float32."""
    inner = width.compute * (shape.active_intermediate + 3 * shape.hidden)
    return rows.tokens * max(inner, 4 * FLOAT * shape.hidden)


def forward_space(shape: Shape, width: Width, rows: Pass) -> int:
    """Bytes alive at once in a layer when nothing is kept for a backward pass."""
    c, hidden = width.compute, shape.hidden
    mlp = 3 * c * shape.active_intermediate + width.kept * (4 * hidden + 2 * shape.head_dim)
    attention = c * (4 * shape.query + 3 * shape.key) + (2 * width.kept + c) * hidden
    pairs = rows.squares * shape.heads * 2 * FLOAT if shape.softcap else 0
    return rows.tokens * max(mlp, attention) + pairs
