"""Memory of a rollout engine: its weights, its largest forward pass, and the KV cache that the rest allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from burnish.config.rollout import SamplingConfig
from burnish.doctor.activations import Itemsize, MicroBatch, forward_temporaries
from burnish.doctor.roles import default_itemsize, itemsize_of
from burnish.doctor.shapes import Linear, Shape
from burnish.sizing import (
    CACHE_BLOCK,
    CPU_PREFILL_TOKENS,
    CUDA_GRAPH_FAMILIES,
    DEVICE_LOOP_BLOCK,
    DIGEST_WIDTH,
    FIRST_TOKEN_BATCH,
    FLOAT32_RESIDUAL_FAMILIES,
    FLOAT_COLUMNS,
    FP8_BLOCK,
    INT_COLUMNS,
    INVARIANT_FAMILIES,
    NUM_STOP_TOKENS,
    SYNC_INTERVAL,
    cache_blocks,
    capture_sizes,
    max_chunk_rows,
)
from burnish.sizing import FLOAT32_BYTES as FLOAT
from burnish.sizing import INT64_BYTES as INT

BLOCK_INDEX = 4  # bytes of an entry of a block table
LOW_CONCURRENCY = 4  # a cache for fewer than one in so many sequences is a problem
# Of rounding a weight: float32, the 8-bit result, and the bytes that a checksum reads.
ROUNDING_BYTES = FLOAT + 2
EXTERNAL_ENGINES = ("vllm", "sglang", "trtllm")  # they reserve a share of the whole GPU


@dataclass(frozen=True)
class EnginePlan:
    """Bytes of one engine on one GPU."""

    weights: int
    activations: int
    logits: int
    token_bytes: int  # keys and values of one token
    max_model_len: int
    max_num_seqs: int
    memory_share: float
    external: bool
    keeps_weights: bool  # they stay on the GPU while other roles compute
    keeps_cache: bool = False  # and so does the KV cache
    decode_state: int = 0  # CUDA graphs' memory pool, and the tensors with fixed addresses that the graphs read
    logits_buffer: int = 0  # allocated and freed together with the KV cache
    num_checksum_words: int = 0
    rounding: int = 0  # temporaries of rounding one matrix to 8 bits
    max_sequence_len: int = 0  # of a step; 0: max_model_len
    num_responses: int | None = None  # of one step on this engine; None: unknown
    device_loop: bool = False  # decodes on the device between host synchronizations, with smaller cache blocks
    notes: tuple[str, ...] = ()

    @property
    def block(self) -> int:
        """Tokens of a cache block."""
        return DEVICE_LOOP_BLOCK if self.device_loop else CACHE_BLOCK

    @property
    def checksum_layout(self) -> int:
        """Bytes kept between two weight comparisons: three int64 per word."""
        return 3 * INT * self.num_checksum_words

    @property
    def checksum_temporaries(self) -> int:
        """Bytes alive at once in a comparison: the sums of both sides, and their hashes."""
        return 8 * INT * self.num_checksum_words

    @property
    def sequence_bytes(self) -> int:
        """KV cache of the longest sequence of a step, in whole blocks."""
        return self._bytes_of(self.max_sequence_len or self.max_model_len)

    def _bytes_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block) * self.block * self.token_bytes

    @property
    def sequences_wanted(self) -> int:
        """Sequences that the engine would generate at once with enough memory."""
        return self.max_num_seqs if self.num_responses is None else min(self.max_num_seqs, self.num_responses)

    def holds_a_sequence(self, capacity: int) -> bool:
        """Whether an external engine starts: it refuses a cache that is smaller than one sequence."""
        return not self.external or self._reserved(capacity) >= self._bytes_of(self.max_model_len)

    def _reserved(self, capacity: int) -> int:
        """What the share of an external engine leaves for its cache."""
        return int(self.memory_share * capacity) - self.weights - self.activations - self.logits

    def cache(self, capacity: int, free: int) -> tuple[int, str]:
        """Bytes of the KV cache, and a note on how many sequences it holds."""
        if self.external:
            cache = max(self._bytes_of(self.max_model_len), self._reserved(capacity))
        else:
            num_blocks = cache_blocks(self.max_model_len, self.max_num_seqs, self.block, device_loop=self.device_loop)
            least, most = (blocks * self.block * self.token_bytes for blocks in num_blocks)
            # The engine takes its share of the memory that is free before it allocates the logits buffer.
            cache = max(least, min(most, int(self.memory_share * max(0, free)) - self.logits_buffer))
        held, wanted = cache // self.sequence_bytes, self.sequences_wanted
        if held >= wanted:
            return cache, f"the cache holds all {wanted:,} sequences at full length"
        return cache, f"the cache holds {held:,} of {wanted:,} sequences at full length"


@dataclass(frozen=True)
class Concurrency:
    """How many sequences one engine generates at once."""

    engine: EnginePlan
    held: int  # sequences of full length that the KV cache holds
    starts: bool = True  # False: an external engine refuses so small a cache

    @staticmethod
    def of(engine: EnginePlan, cache: int, capacity: int) -> Concurrency:
        return Concurrency(engine, cache // engine.sequence_bytes, engine.holds_a_sequence(capacity))

    @property
    def wanted(self) -> int:
        return self.engine.sequences_wanted

    @property
    def at_once(self) -> int:
        return min(self.held, self.wanted)

    @property
    def is_low(self) -> bool:
        """Whether generation takes several times as long as it would with enough memory."""
        return self.held * LOW_CONCURRENCY < self.wanted


def engine_plan(
    rollout: SamplingConfig, shape: Shape, ranks: int, on_cpu: bool, num_responses: int | None = None
) -> EnginePlan:
    """Plan the engine of a rollout section. `num_responses` are those of one step on one engine."""
    itemsize = itemsize_of(rollout.dtype, default_itemsize(on_cpu))
    external = rollout.name in EXTERNAL_ENGINES
    tensor = rollout.tensor_model_parallel_size if external or (rollout.name == "builtin" and ranks > 1) else 1
    stages = rollout.pipeline_model_parallel_size if external else 1
    # Every tensor rank has all of a latent cache.
    weights, num_kv_shards = shape.all_parameters // (tensor * stages), stages * (1 if shape.latent else tensor)
    if not external:  # the layers are divided; embedding, head and vision tower are whole
        weights = shape.all_parameters - shape.layers * shape.layer * (tensor - 1) // tensor
        num_kv_shards = min(tensor, shape.kv_heads)
    max_model_len = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    num_tokens = min(rollout.max_num_batched_tokens, max_model_len * rollout.max_num_seqs)
    if on_cpu and not external:
        num_tokens = min(num_tokens, CPU_PREFILL_TOKENS)
    lengths = [max_model_len] * (num_tokens // max_model_len) or [num_tokens]
    by_token = rollout.invariant and shape.family not in INVARIANT_FAMILIES
    device_loop = not (external or on_cpu or by_token or tensor > 1)
    cache_itemsize = 1 if device_loop and _caches_8_bits(rollout) else itemsize
    buffers = _DecodeBuffers.of(rollout, shape, itemsize, max_model_len)
    rounded = rounded_matrices(rollout, shape, external=external)
    saved = sum(layers * (itemsize * linear.weights - fp8_bytes(linear, rollout)) for layers, linear in rounded)
    verifies = getattr(rollout, "verify_weights", False)  # `burnish generate` has no trainer to compare with
    prefill = forward_temporaries(shape, _itemsize(shape, itemsize, external), MicroBatch.of(lengths, 0))
    features = 0 if shape.tower is None else shape.tower.temporaries(num_tokens, itemsize)
    return EnginePlan(
        weights=weights * itemsize - saved // (tensor * stages),
        activations=max(prefill // tensor, features),
        logits=buffers.first_tokens if device_loop else rollout.max_num_seqs * shape.vocab * (itemsize + 2 * FLOAT),
        token_bytes=max(1, shape.cache_per_token(cache_itemsize, latent=external) // num_kv_shards),
        max_model_len=max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        memory_share=memory_share(rollout),
        external=external,
        keeps_weights=not (external and rollout.free_cache_engine),
        keeps_cache=not rollout.free_cache_engine,
        decode_state=buffers.rows + buffers.graphs if device_loop else 0,
        logits_buffer=buffers.logits if device_loop else 0,
        num_checksum_words=checksum_words(shape, itemsize, rounded) if verifies and not external else 0,
        rounding=ROUNDING_BYTES * max((linear.weights for _, linear in rounded), default=0) // tensor,
        max_sequence_len=min(max_model_len, rollout.prompt_length + rollout.response_length),
        num_responses=num_responses,
        device_loop=device_loop,
        notes=(f"{rollout.name} reserves a share of the whole GPU for weights and KV cache",) if external else (),
    )


def _caches_8_bits(rollout: Any) -> bool:
    """engine_kwargs is a field of the sections that configure an engine, not of their base."""
    return rollout.engine_kwargs.builtin.get("kv_cache_dtype") == "fp8"


def _itemsize(shape: Shape, itemsize: int, external: bool = False) -> Itemsize:
    """Of the residual stream, and of the linear layers."""
    float32_residual = not external and shape.family in FLOAT32_RESIDUAL_FAMILIES
    return Itemsize(FLOAT if float32_residual else itemsize, itemsize)


def rounded_matrices(rollout: Any, shape: Shape, *, external: bool) -> list[tuple[int, Linear]]:
    """(number of layers, matrix) of the weights that the engine holds in 8 bits. The built-in one leaves experts."""
    if getattr(rollout, "quantization", None) is None:
        return []
    attention = [(shape.layers, linear) for linear in shape.attention()]
    if not shape.experts:
        return attention + [(shape.layers, linear) for linear in shape.mlp()]
    inner = shape.mlp() if external else replace(shape, experts=0, intermediate=0).mlp()
    dense = replace(shape, experts=0, shared_intermediate=0, intermediate=shape.dense_intermediate).mlp()
    mixtures = [(shape.layers - shape.dense_layers, linear) for linear in inner]
    matrices = attention + mixtures + [(shape.dense_layers, linear) for linear in dense]
    return [(layers, linear) for layers, linear in matrices if layers and linear.weights]


def fp8_bytes(linear: Linear, rollout: Any) -> int:
    """One matrix in 8 bits: a byte per weight, a float32 scale per block or for all, and for each output the index of
    its scales."""
    blocks = 1
    if rollout.use_block_quant_rollout:
        blocks = -(-linear.inputs // FP8_BLOCK) * -(-linear.outputs // FP8_BLOCK)
    return linear.weights + FLOAT * (blocks + linear.outputs)


def checksum_words(shape: Shape, itemsize: int, rounded: Sequence[tuple[int, Linear]] = ()) -> int:
    """Words of all weight checksums: column and row sums of every matrix, all words of small tensors. A tied head
    counts under both names. `rounded` matrices have one byte per weight."""
    names = {linear.name for _, linear in rounded}
    matrices = [
        linear.weights * (1 if linear.name in names else itemsize) for linear in (*shape.attention(), *shape.mlp())
    ]
    words = [size // INT for size in (*matrices * shape.layers, *[shape.embedding * itemsize] * 2)]
    vectors = (shape.layers * (shape.layer - shape.layer_linear) + shape.hidden) * itemsize // INT
    return sum(min(size, DIGEST_WIDTH + size // DIGEST_WIDTH) for size in words) + vectors


class _DecodeBuffers(NamedTuple):
    """Bytes of an engine that decodes on the device."""

    rows: int  # per-sequence state with fixed addresses
    graphs: int  # the memory pool that all CUDA graphs share: as large as the largest batch needs
    logits: int  # the buffer for logits of a batch, or of a chunk of it
    first_tokens: int  # logits of prompts, and temporaries of sampling their first tokens

    @staticmethod
    def of(rollout: SamplingConfig, shape: Shape, itemsize: int, max_model_len: int) -> _DecodeBuffers:
        num_seqs = rollout.max_num_seqs
        row = INT * (len(INT_COLUMNS) + NUM_STOP_TOKENS) + FLOAT * len(FLOAT_COLUMNS)
        row += BLOCK_INDEX * (-(-max_model_len // DEVICE_LOOP_BLOCK) + 1) + SYNC_INTERVAL * (INT + FLOAT)
        captured = 0 if rollout.enforce_eager or shape.family not in CUDA_GRAPH_FAMILIES else largest_graph(rollout)
        graphs = forward_temporaries(shape, _itemsize(shape, itemsize), MicroBatch.of([1] * captured, 0))
        num_prompts = min(num_seqs, -(-rollout.max_num_batched_tokens // max(1, rollout.prompt_length)))
        # logits, log-probs, probabilities and their cumulative sums
        sampling = min(num_seqs, FIRST_TOKEN_BATCH) * shape.vocab * 4 * FLOAT
        return _DecodeBuffers(
            rows=num_seqs * row,
            graphs=graphs,
            logits=min(num_seqs, max_chunk_rows(shape.vocab, itemsize, "cuda")) * shape.vocab * itemsize,
            first_tokens=num_prompts * shape.vocab * (FLOAT + itemsize) + sampling,
        )


def largest_graph(rollout: SamplingConfig) -> int:
    """The largest batch size with a CUDA graph."""
    return max(capture_sizes(rollout.max_num_seqs, rollout.cudagraph_capture_sizes), default=0)


def memory_share(rollout: SamplingConfig) -> float:
    """The engine's share of memory. SGLang's own argument wins over ours."""
    sglang = getattr(getattr(rollout, "engine_kwargs", None), "sglang", None) or {}
    if rollout.name == "sglang" and sglang.get("mem_fraction_static") is not None:
        return float(sglang["mem_fraction_static"])
    return rollout.gpu_memory_utilization
