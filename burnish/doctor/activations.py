"""Bytes of a packed forward and backward pass: tensors that autograd saves, and temporaries.

The counts follow the Hugging Face modules line by line: what autograd saves of their inputs or, under torch.compile,
how the partitioner divides a layer into saved and recomputed tensors. Tests count the real tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.doctor.shapes import GEMMA, Shape
from burnish.sizing import FLOAT32_BYTES as FLOAT
from burnish.sizing import INT64_BYTES as INT


@dataclass(frozen=True)
class Itemsize:
    """Bytes per element of a model's weights, and of its matrix products' operands."""

    weights: int
    compute: int
    adapters: int = 0  # of LoRA weights; 0 without them

    @property
    def mixed(self) -> bool:
        """Whether weights and inputs are cast to another dtype for every matrix product."""
        return self.weights != self.compute

    @property
    def linear_input(self) -> int:
        """Of a linear layer's saved input. Adapters in a wider dtype than the rest cast it to theirs."""
        return self.compute if self.mixed else max(self.compute, self.adapters)


@dataclass(frozen=True)
class LayerKernels:
    """How decoder layers are computed."""

    compiled: bool = False  # torch.compile, one graph per layer
    flash: bool = False  # one flash-attention call per micro-batch, whose output o_proj reads without a copy


EAGER = LayerKernels()


@dataclass(frozen=True)
class MicroBatch:
    """The sequence lengths of one micro-batch, and how many of its tokens are response tokens."""

    lengths: tuple[int, ...]
    num_response_tokens: int

    @staticmethod
    def of(lengths: Sequence[int], num_response_tokens: int) -> MicroBatch:
        return MicroBatch(tuple(lengths), num_response_tokens)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def num_pairs(self) -> int:
        """Entries of the attention matrices of all sequences, per head."""
        return sum(length * length for length in self.lengths)


def saved_by_layer(shape: Shape, itemsize: Itemsize, batch: MicroBatch, kernels: LayerKernels = EAGER) -> int:
    """Bytes that one layer saves for the backward pass, without cast copies of weights."""
    if kernels.compiled:
        return batch.num_tokens * _compiled_layer(shape, itemsize) + _attention(shape, itemsize, batch, kernels)
    # Where inputs are cast, every linear layer saves a cast copy of its own.
    num_copies = (3, 2) if itemsize.weights != itemsize.linear_input else (1, 1)
    per_token = (
        shape.norms * _norm(shape, itemsize.weights, shape.hidden)
        + sum(num_copies) * itemsize.linear_input * shape.hidden
        # gate, its activation, up, and their product as the input of down_proj
        + (3 * itemsize.compute + itemsize.linear_input) * shape.active_intermediate
    )
    if shape.qk_norm:
        per_token += _head_norms(shape, itemsize.compute)
    return batch.num_tokens * per_token + _attention(shape, itemsize, batch, kernels) + _gemma_scales(shape)


def _compiled_layer(shape: Shape, itemsize: Itemsize) -> int:
    """Bytes per token of a compiled layer without attention: inputs and outputs of linear layers, and the norms'
    inverse roots. The partitioner recomputes whatever these give without a matrix product, such as residual sums."""
    c = itemsize.compute
    num_branches = shape.norms // 2  # branch outputs that a norm or the next residual sum reads
    per_token = (
        itemsize.weights * shape.hidden
        + (2 * itemsize.linear_input + num_branches * c) * shape.hidden
        + (2 * c + itemsize.linear_input) * shape.active_intermediate
        + FLOAT * shape.norms
    )
    if shape.qk_norm:
        per_token += c * (shape.query + shape.key) + FLOAT * (shape.heads + shape.kv_heads)
    return per_token


def _attention(shape: Shape, itemsize: Itemsize, batch: MicroBatch, kernels: LayerKernels) -> int:
    """Bytes that attention saves, and o_proj's input where that is not the kernel's output itself."""
    c = itemsize.compute
    o_proj_input = 0 if kernels.flash and itemsize.linear_input == c else itemsize.linear_input * shape.query
    if shape.softcap:
        return batch.num_tokens * o_proj_input + _eager_attention(shape, c, batch)
    # query, key, value, output and the log-sum-exp of each head
    return batch.num_tokens * (o_proj_input + c * (2 * shape.query + 2 * shape.key) + FLOAT * shape.heads)


def _norm(shape: Shape, weight_bytes: int, size: int) -> int:
    """Bytes per token of an RMS norm: its input in float32, the inverse root, the normalized input."""
    return FLOAT * size + FLOAT + (FLOAT if shape.family in GEMMA else weight_bytes) * size


def _head_norms(shape: Shape, compute: int) -> int:
    """Bytes per token of the norms of query and key heads."""
    size = shape.query + shape.key
    return FLOAT * size + FLOAT * (shape.heads + shape.kv_heads) + compute * size


def _gemma_scales(shape: Shape) -> int:
    """Gemma's norms multiply by 1 + weight, and autograd saves that sum."""
    return shape.norms * FLOAT * shape.hidden if shape.family in GEMMA else 0


def _eager_attention(shape: Shape, compute: int, batch: MicroBatch) -> int:
    """Attention without a fused kernel saves the attention matrix, and keys and values repeated for every head."""
    probabilities = FLOAT if compute == FLOAT else FLOAT + compute
    pairs = batch.num_pairs * (shape.heads * (compute + probabilities) + 1)
    return batch.num_tokens * 3 * compute * shape.query + pairs


def saved_outside_layers(shape: Shape, itemsize: Itemsize, batch: MicroBatch, *, head: bool) -> int:
    """Bytes saved by the embedding, the final norm and the head's inputs."""
    total = batch.num_tokens * (INT + _norm(shape, itemsize.weights, shape.hidden))
    if shape.family in GEMMA:
        total += FLOAT * shape.hidden + itemsize.weights
    if head:
        total += batch.num_response_tokens * (2 * INT + 2 * FLOAT + itemsize.compute * shape.hidden)
    return total


def layer_input(shape: Shape, itemsize: Itemsize, batch: MicroBatch) -> int:
    """Bytes saved of a layer that is recomputed in the backward pass."""
    return batch.num_tokens * itemsize.weights * shape.hidden


def layer_weight_copies(shape: Shape, itemsize: Itemsize) -> int:
    """Bytes of a layer's matrices cast to the compute dtype, where that differs."""
    return itemsize.compute * shape.layer_linear if itemsize.mixed else 0


def saved_activations(
    shape: Shape,
    itemsize: Itemsize,
    batch: MicroBatch,
    num_recomputed: int,
    *,
    head: bool = True,
    group: int = 1,
    kernels: LayerKernels = EAGER,
) -> int:
    """Bytes that the forward pass saves. Recomputed layers save one layer input per group of `group` layers."""
    total = (shape.layers - num_recomputed) * saved_by_layer(shape, itemsize, batch, kernels)
    if num_recomputed < shape.layers:
        total += batch.num_tokens * 2 * itemsize.weights * shape.head_dim  # rotary sine and cosine, shared by layers
    total += -(-num_recomputed // group) * layer_input(shape, itemsize, batch)
    return total + saved_outside_layers(shape, itemsize, batch, head=head)


def backward_temporaries(shape: Shape, itemsize: Itemsize, batch: MicroBatch, kernels: LayerKernels = EAGER) -> int:
    """Bytes of gradients alive at once in a layer's backward pass: in its MLP, or in a float32 norm."""
    if kernels.compiled:  # the gradients of gate and up, and of the layer's input and output in float32
        return batch.num_tokens * (2 * itemsize.compute * shape.active_intermediate + 2 * FLOAT * shape.hidden)
    mlp = itemsize.compute * (shape.active_intermediate + 3 * shape.hidden)
    return batch.num_tokens * max(mlp, 4 * FLOAT * shape.hidden)


def forward_temporaries(shape: Shape, itemsize: Itemsize, batch: MicroBatch, kernels: LayerKernels = EAGER) -> int:
    """Bytes alive at once in a layer when nothing is saved for a backward pass."""
    c, hidden = itemsize.compute, shape.hidden
    # A compiled layer writes the product over the gate, and fuses the residual sums.
    num_inner, num_residual = (2, 2) if kernels.compiled else (3, 4)
    mlp = num_inner * c * shape.active_intermediate + itemsize.weights * (num_residual * hidden + 2 * shape.head_dim)
    attention = c * (4 * shape.query + 3 * shape.key) + (2 * itemsize.weights + c) * hidden
    pairs = batch.num_pairs * shape.heads * 2 * FLOAT if shape.softcap else 0
    return batch.num_tokens * max(mlp, attention) + pairs
