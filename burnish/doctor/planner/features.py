"""Work of a rank's GPU in each phase of a step, in seconds at the GPU's published peaks.

A phase takes the sum of these terms, each times a coefficient that is fitted to measured phases (coefficients.py): how
much longer a kernel takes than its arithmetic or its memory traffic would at peak. Where micro-batches are small, the
host takes longer to launch the layers (`launch`) than the GPU to compute them; the longer of both counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from burnish.doctor.gpus import Gpu
from burnish.doctor.shapes import Shape

HALF = 2  # bytes
FLOAT = 4
# Tensors of hidden or inner width that a layer's norms, residual sums, rotary embedding and gates read or write.
HIDDEN_PASSES, INNER_PASSES = 12, 4
# Passes over a chunk of logits: the product is written and read; with gradients it is computed twice and overwritten.
LOGIT_PASSES = {False: 3, True: 8}
HEAD_PRODUCTS = {False: 1, True: 4}
ADAM_PASSES = 9  # over float32 tensors: norm, clipping, weight, gradient and moments
LAUNCH_BACKWARD = 1.6  # launches of a backward pass, where a forward pass is one
ATTENTION_BACKWARD = 2.5  # a flash backward pass has five products instead of two

# Terms
LINEAR, ELEMENTWISE, ATTENTION, HEAD = "linear", "elementwise", "attention", "head"
OPTIMIZER, LAUNCH, ROWS, PHASE = "optimizer", "launch", "rows", "phase"
DECODE_LAYER, DECODE_WEIGHTS, DECODE_LINEAR = "decode_layer", "decode_weights", "decode_linear"
DECODE_CACHE, DECODE_PROMPT, DECODE_SAMPLE = "decode_cache", "decode_prompt", "decode_sample"
ROLLOUT_TOKENS, ROLLOUT_ROWS, ROLLOUT = "rollout_tokens", "rollout_rows", "rollout"
SYNC_TENSORS, SYNC_BYTES, HOST_TOKENS, STEP = "sync_tensors", "sync_bytes", "host_tokens", "step"

AROUND = (ROWS, PHASE)  # neither the GPU's work nor launches

Terms = Counter[str]  # term -> seconds at peak, or a count


@dataclass(frozen=True)
class Part:
    """The part of a model and of a batch that one rank computes."""

    rows: float  # sequences
    length: float  # tokens of each, with the prompt
    response: float  # of them, in the response
    micro_batches: int
    tensor: int = 1
    context: int = 1
    stages: int = 1
    has_head: bool = True  # the last stage

    @property
    def tokens(self) -> float:
        return self.rows * self.length / self.context


def forward(shape: Shape, gpu: Gpu, part: Part, *, head: bool = True) -> Terms:
    """Without gradients."""
    terms = _layers(shape, gpu, part)
    if head and part.has_head:
        terms += Counter({HEAD: head_seconds(shape, gpu, part.rows * part.response / part.context, training=False)})
    return terms + Counter({ROWS: part.rows, PHASE: 1.0})


def update(
    shape: Shape,
    gpu: Gpu,
    part: Part,
    *,
    recompute: bool,
    trained: float,
    updates: int,
    adapters: bool,
    head: bool = True,
) -> Terms:
    """Forward and backward passes of all micro-batches, and the optimizer. `trained` parameters are on this rank."""
    once = _layers(shape, gpu, part)
    repeats = 2 if recompute else 1
    # Frozen weights need no gradient of their own.
    products = repeats + (1 if adapters else 2)
    terms = Counter(
        {
            LINEAR: once[LINEAR] * products,
            ELEMENTWISE: once[ELEMENTWISE] * (repeats + 2),
            ATTENTION: once[ATTENTION] * (repeats + ATTENTION_BACKWARD),
            LAUNCH: once[LAUNCH] * (repeats + LAUNCH_BACKWARD),
            OPTIMIZER: updates * ADAM_PASSES * FLOAT * trained / gpu.bandwidth,
            ROWS: part.rows,
            PHASE: 1.0,
        }
    )
    if head and part.has_head:
        terms += Counter({HEAD: head_seconds(shape, gpu, part.rows * part.response / part.context, training=True)})
    return terms


def _layers(shape: Shape, gpu: Gpu, part: Part) -> Terms:
    layers = shape.layers / part.stages
    hidden = HIDDEN_PASSES * shape.hidden
    inner = INNER_PASSES * shape.active_intermediate / part.tensor
    pairs = part.rows * part.length**2 / 2 / part.context
    return Counter(
        {
            LINEAR: 2 * part.tokens * layers * active_linear(shape) / part.tensor / gpu.flops,
            ELEMENTWISE: HALF * part.tokens * layers * (hidden + inner) / gpu.bandwidth,
            ATTENTION: 4 * pairs * layers * shape.query / part.tensor / gpu.flops,
            LAUNCH: layers * part.micro_batches,
        }
    )


def active_linear(shape: Shape) -> int:
    """Entries of the matrices that one token meets in a layer."""
    attention = sum(linear.weights for linear in shape.attention())
    return attention + 3 * shape.hidden * shape.active_intermediate + shape.experts * shape.hidden


def head_seconds(shape: Shape, gpu: Gpu, tokens: float, *, training: bool) -> float:
    """The vocabulary's products, and passes over the logits."""
    products = 2 * HEAD_PRODUCTS[training] * tokens * shape.embedding / gpu.flops
    return products + LOGIT_PASSES[training] * HALF * tokens * shape.vocab / gpu.bandwidth


def decode(
    shape: Shape,
    gpu: Gpu,
    *,
    sequences: float,
    prompt: float,
    cached: float,
    steps: float,
    itemsize: int,
    tensor: int = 1,
) -> Terms:
    """`steps` tokens for each of `sequences`, with a prompt of that length and `cached` response tokens on average."""
    matrices = shape.layers * active_linear(shape) + shape.embedding
    # With many sequences every expert is used by some token.
    held = shape.layers * shape.layer_linear + shape.embedding
    cache = sequences * shape.cache_per_token(itemsize) / tensor / gpu.bandwidth
    return Counter(
        {
            DECODE_LAYER: steps * shape.layers,
            DECODE_WEIGHTS: steps * held * itemsize / tensor / gpu.bandwidth,
            DECODE_LINEAR: steps * 2 * sequences * matrices / tensor / gpu.flops,
            DECODE_CACHE: steps * cached * cache,
            DECODE_PROMPT: steps * prompt * cache,
            DECODE_SAMPLE: steps * sequences * shape.vocab * HALF / gpu.bandwidth,
        }
    )


def rounds(rows: float, at_once: int, response: float) -> tuple[float, float]:
    """Sequences that an engine decodes together, and its decoding steps for all `rows`."""
    sequences = max(1.0, min(rows, at_once))
    return sequences, response * rows / sequences


def rollout(
    shape: Shape,
    gpu: Gpu,
    *,
    rows: float,
    prompts: float,
    at_once: int,
    prompt: float,
    response: float,
    itemsize: int,
    tensor: int = 1,
) -> Terms:
    """All responses of one engine on `tensor` GPUs: the prompts' forward passes, then decoding `at_once` sequences."""
    terms: Terms = Counter()
    if prompt > 0:
        part = Part(prompts, prompt, 0, micro_batches=1, tensor=tensor)
        terms += _layers(shape, gpu, part)
        del terms[LAUNCH]
    sequences, steps = rounds(rows, at_once, response)
    cached = response / 2
    terms += decode(
        shape, gpu, sequences=sequences, prompt=prompt, cached=cached, steps=steps, itemsize=itemsize, tensor=tensor
    )
    return terms + Counter({ROLLOUT_TOKENS: rows * response, ROLLOUT_ROWS: rows, ROLLOUT: 1.0})


def weight_sync(shape: Shape, gpu: Gpu, itemsize: int) -> Terms:
    """Into an engine on the same GPU."""
    return Counter({SYNC_TENSORS: float(shape.tensors), SYNC_BYTES: shape.parameters * itemsize / gpu.bandwidth})


def model_flops(shape: Shape, rows: float, length: float, response: float) -> float:
    """FLOPs of forward and backward passes as MFU counts them: no recomputation, the head on response tokens."""
    linear = 6 * rows * length * shape.layers * active_linear(shape)
    attention = 3 * 4 * rows * length**2 / 2 * shape.query * shape.layers
    return linear + attention + 6 * rows * response * shape.embedding
