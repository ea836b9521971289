"""What a rank sends in a phase of a step: collectives and messages, and their bytes.

Exact for the FSDP2 and pipeline backends: tests count the real ones. (With several chunks per stage FSDP prefetches a
few layers once too often, which is not planned.) Bytes are those of the larger side: what a gather
returns, what a reduction is given, what an all-to-all or a message sends. Sums of one number (norms) and Python objects
(metrics) are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from burnish.doctor.planner.layout import Layout
from burnish.doctor.shapes import Shape

# Kinds of traffic
GATHER, REDUCE, COPIES, TENSOR = "gather weights", "reduce gradients", "average copies", "tensor all-reduce"
CONTEXT, PIPELINE, EXPERT, RESULTS = "context all-to-all", "pipeline messages", "expert all-to-all", "context results"
INT = 8  # bytes of a count


class Flow(NamedTuple):
    """Operations of one kind, their bytes on one rank, and how many ranks take part in each."""

    messages: int
    bytes: float
    ranks: int


@dataclass(frozen=True)
class Passes:
    """Passes of one rank through its model. Tokens are those of the ranks that share a sequence, per micro-batch."""

    micro_batch_tokens: Sequence[int]
    response_tokens: int  # of all micro-batches
    training: bool
    itemsize: int  # of weights in products and of their inputs
    reduce_itemsize: int = 4
    stream_itemsize: int = 4  # of the residual stream, which pipeline stages exchange
    recompute: bool = False
    head: bool = True  # a language-model head; else one value per token
    outputs: int = 1  # numbers per response token that ranks of a sequence exchange: log-probs, and entropies

    @property
    def count(self) -> int:
        return len(self.micro_batch_tokens)

    @property
    def repeats(self) -> int:
        """Forward passes through a layer."""
        return 2 if self.training and self.recompute else 1


class Unit(NamedTuple):
    """The parameters that FSDP gathers together: (first dimension, number of elements) of each."""

    parameters: list[tuple[int, int]]

    def padded(self, shards: int) -> int:
        """Elements over all shards; each parameter is cut along its first dimension into equal parts."""
        return sum(-(-rows // shards) * shards * (size // rows) for rows, size in self.parameters)


def traffic(shape: Shape, layout: Layout, passes: Passes, stage: int = 0) -> dict[str, Flow]:
    """Flows of a rank of this pipeline stage. Those of experts are the mean over the ranks of a group."""
    layers = shape.layers // layout.pipeline
    found: dict[str, Flow] = {}
    if layout.pipeline == 1:
        found |= _sharding(shape, layout, passes)
    else:
        found |= _staged_sharding(shape, layout, passes, stage)
        found[PIPELINE] = _pipeline(shape, layout, passes, stage)
    if layout.tensor > 1:
        # Two in each direction. Recomputation stops before the last one, whose result nothing saved needs.
        num = layers * (2 * (1 + passes.training) + passes.repeats - 1)
        tokens = sum(-(-number // layout.context) for number in passes.micro_batch_tokens)
        found[TENSOR] = Flow(num * passes.count, num * tokens * shape.hidden * passes.itemsize, layout.tensor)
    if layout.context > 1:
        found |= _context(shape, layout, passes, layers)
    if layout.expert > 1:
        found[EXPERT] = _experts(shape, layout, passes, layers)
    return {kind: flow for kind, flow in found.items() if flow.messages}


def layer_unit(shape: Shape, tensor: int = 1, *, with_experts: bool = True) -> Unit:
    """A decoder layer, as one of `tensor` ranks holds it."""
    *inputs, last = shape.attention()
    found = [(linear.outputs // tensor, linear.weights // tensor) for linear in inputs]
    found += [_vector(linear.outputs // tensor) for linear in inputs if linear.bias]
    found.append((last.outputs, last.weights // tensor))
    found += [_vector(last.outputs)] if last.bias else []
    if shape.experts:
        found.append((shape.experts, shape.experts * shape.hidden))
        found += _expert_weights(shape, shape.experts) if with_experts else []
    inner = shape.shared_intermediate if shape.experts else shape.intermediate // tensor
    if inner:
        found += [(inner, inner * shape.hidden)] * 2 + [(shape.hidden, inner * shape.hidden)]
        found += [_vector(inner)] * 2 + [_vector(shape.hidden)] if shape.mlp_bias else []
    found += [_vector(shape.hidden)] * shape.norms
    return Unit(found + ([_vector(shape.head_dim)] * 2 if shape.qk_norm else []))


def _vector(size: int) -> tuple[int, int]:
    return size, size


def _expert_weights(shape: Shape, experts: int) -> list[tuple[int, int]]:
    gate_up = experts * 2 * shape.intermediate * shape.hidden
    return [(experts, gate_up), (experts, gate_up // 2)]


def root_unit(shape: Shape, *, head: bool = True, first: bool = True, last: bool = True) -> Unit:
    """What is outside of the layers: the embedding on the first stage, final norm and head on the last."""
    embedding = (shape.vocab, shape.embedding)
    found = [embedding] if first else []
    if last:
        found.append((shape.hidden, shape.hidden))
        if not head:
            found += [(1, shape.hidden), (1, 1)]
        elif not (shape.tied and first):
            found.append(embedding)
    return Unit(found)


class _Sharding:
    """Collectives of FSDP over one group of shards and, beyond it, copies."""

    def __init__(self, shards: int, copies: int, passes: Passes) -> None:
        self.shards, self.copies, self.passes = shards, copies, passes
        self.gathers = self.reduces = self.averages = 0
        self.gathered = self.reduced = self.averaged = 0.0

    def add(self, unit: Unit, gathers: int, reduces: int) -> None:
        size = unit.padded(self.shards)
        if not size:
            return
        if self.shards > 1:
            self.gathers += gathers
            self.gathered += gathers * size * self.passes.itemsize
            self.reduces += reduces
            self.reduced += reduces * size * self.passes.reduce_itemsize
        if self.copies > 1:
            self.averages += reduces
            self.averaged += reduces * size // self.shards * self.passes.reduce_itemsize

    def flows(self) -> dict[str, Flow]:
        return {
            GATHER: Flow(self.gathers, self.gathered, self.shards),
            REDUCE: Flow(self.reduces, self.reduced, self.shards),
            COPIES: Flow(self.averages, self.averaged, self.copies),
        }


def _sharding(shape: Shape, layout: Layout, passes: Passes) -> dict[str, Flow]:
    """Every layer is gathered for its forward pass and again for its backward pass; the rest once for both."""
    dense = _Sharding(layout.shard, layout.replicas, passes)
    own_experts = layout.expert > 1
    count, training = passes.count, int(passes.training)
    layer = layer_unit(shape, layout.tensor, with_experts=not own_experts)
    dense.add(layer, count * shape.layers * (1 + training), training * count * shape.layers)
    # Without a backward pass, embedding and head stay gathered until the phase ends.
    dense.add(root_unit(shape, head=passes.head), count if passes.training else 1, training * count)
    found = dense.flows()
    if own_experts:
        shards = layout.shard // layout.expert
        experts = _Sharding(shards, layout.replicas, passes)
        unit = Unit(_divided_experts(shape, layout.expert, shards))
        experts.add(unit, count * shape.layers * (1 + training), training * count * shape.layers)
        found = {kind: _sum(flow, experts.flows()[kind]) for kind, flow in found.items()}
    return found


def _divided_experts(shape: Shape, experts: int, shards: int) -> list[tuple[int, int]]:
    """One rank's experts, cut along a matrix dimension if it divides, else along that of experts."""
    local = shape.experts // experts
    gate_up, down = (2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)
    return [(rows if rows % shards == 0 else local, local * rows * columns) for rows, columns in (gate_up, down)]


def _sum(one: Flow, other: Flow) -> Flow:
    return Flow(one.messages + other.messages, one.bytes + other.bytes, max(one.ranks, other.ranks))


def _staged_sharding(shape: Shape, layout: Layout, passes: Passes, stage: int) -> dict[str, Flow]:
    """As without stages, for the layers of one rank. Embedding and head stay gathered through all micro-batches."""
    first, last = stage == 0, stage == layout.pipeline - 1
    own_layers, training = shape.layers // layout.pipeline, int(passes.training)
    dense = _Sharding(layout.shard, layout.replicas, passes)
    layer = layer_unit(shape, layout.tensor, with_experts=layout.expert == 1)
    dense.add(layer, passes.count * own_layers * (1 + training), training * passes.count * own_layers)
    dense.add(root_unit(shape, head=passes.head, first=first, last=last), 1, training * passes.count)
    return dense.flows()


def _pipeline(shape: Shape, layout: Layout, passes: Passes, stage: int) -> Flow:
    """Hidden states to the next stage and their gradients back, for every chunk but the ends; and, for tied embeddings,
    the gradient that both ends sum."""
    stages = [chunk * layout.pipeline + stage for chunk in range(layout.virtual)]
    forward = sum(number < layout.pipeline * layout.virtual - 1 for number in stages)
    backward = sum(number > 0 for number in stages) if passes.training else 0
    tokens = sum(-(-number // layout.context) for number in passes.micro_batch_tokens)
    messages = (forward + backward) * passes.count
    num_bytes = (forward + backward) * tokens * shape.hidden * passes.stream_itemsize
    if passes.training and passes.head and shape.tied and stage in (0, layout.pipeline - 1):
        messages += 1
        num_bytes += -(-shape.vocab // layout.shard) * shape.hidden * passes.reduce_itemsize
    return Flow(messages, num_bytes, 2)


def _context(shape: Shape, layout: Layout, passes: Passes, layers: int) -> dict[str, Flow]:
    """Ulysses: query, key and value before attention, its output after, and the same back."""
    size, heads = layout.context, shape.heads // layout.tensor
    kv_heads = max(1, shape.kv_heads // layout.tensor)
    repeated = lcm(kv_heads, size)
    share = sum(-(-number // size) for number in passes.micro_batch_tokens)
    directions = passes.repeats + passes.training
    width = (2 * heads + 2 * repeated) * shape.head_dim * passes.itemsize
    found = {CONTEXT: Flow(2 * directions * layers * passes.count, directions * layers * share * width, size)}
    num_outputs = passes.outputs * passes.count
    # In float32, or wider if the model is.
    width = max(4, passes.itemsize) * passes.outputs
    found[RESULTS] = Flow(num_outputs, passes.response_tokens * width, size)
    return found


def _experts(shape: Shape, layout: Layout, passes: Passes, layers: int) -> Flow:
    """Counts, then tokens to their experts and back; gradients take the way of the tokens."""
    tokens = sum(-(-number // layout.context) for number in passes.micro_batch_tokens)
    chosen = max(1, shape.active_experts)
    exchanges = 2 * (passes.repeats + passes.training)
    messages = (exchanges + passes.repeats) * layers * passes.count
    counts = passes.repeats * layers * passes.count * shape.experts * INT
    num_bytes = exchanges * layers * tokens * chosen * shape.hidden * passes.itemsize + counts
    return Flow(messages, num_bytes, layout.expert)
