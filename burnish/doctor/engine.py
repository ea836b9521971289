"""What the engine holds: its weights, the largest pass, and the KV cache that is left for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from burnish.config.rollout import SamplingConfig
from burnish.doctor.activations import FLOAT, INT, Pass, Width, forward_space
from burnish.doctor.head import ON_GPU
from burnish.doctor.roles import width_of
from burnish.doctor.shapes import Shape

# Of the built-in engine, written down here so that planning loads no torch; a test compares them.
CACHE_BLOCK = 256  # tokens of a block of its cache
LOOP_BLOCK = 64  # and where it decodes in windows
LOOK_IN = 16  # tokens of a window
GRAPH_SAFE = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text"})  # families with CUDA graphs
WIDE_FAMILIES = GRAPH_SAFE | {"smollm3", "olmo2"}  # whose layers add up in 32 bits
FIRST_AT_ONCE = 128  # rows whose first tokens are drawn together
PLACE = 10 * 8 + 6 * 4 + 8 * 8  # bytes of a row's settings and state on the device, without its blocks and its window
DIGEST_WIDTH = 4096  # words of a row of the table that a weight's digest is made of
FOREIGN = ("vllm", "sglang", "trtllm")  # engines that reserve a share of the whole GPU


@dataclass(frozen=True)
class EnginePlan:
    """Bytes on one GPU; `stays` is whether the weights lie there while others work."""

    weights: int
    activations: int
    logits: int
    token: int  # bytes of one token's keys and values
    longest: int  # tokens of the longest prompt and response
    most: int  # sequences at once
    share: float
    foreign: bool
    stays: bool
    keeps_cache: bool = False  # the cache lies there too while others work
    lasting: int = 0  # the CUDA graphs' memory, and the rows' tensors that they read
    room: int = 0  # for logits, taken and given back together with the cache
    digests: int = 0  # entries of the sums that the weights' digests are made of
    windows: bool = False  # decodes in windows, with the cache cut for that
    notes: tuple[str, ...] = ()

    @property
    def block(self) -> int:
        """Bytes of a block of the cache."""
        return (LOOP_BLOCK if self.windows else CACHE_BLOCK) * self.token

    @property
    def digest_layout(self) -> int:
        """Bytes kept of the first comparison of all weights for the next: three numbers for each entry."""
        return 3 * INT * self.digests

    @property
    def digest_space(self) -> int:
        """Bytes alive at once when they are compared: both sides' sums, and the numbers that they are scattered by."""
        return 8 * INT * self.digests

    @property
    def sequence(self) -> int:
        """Cache of one sequence of full length, in whole blocks."""
        return -(-self.longest * self.token // self.block) * self.block

    @property
    def wanted(self) -> int:
        """Cache that all sequences fill: in windows each has a block more, and one is nobody's."""
        if self.windows:
            return (self.sequence + self.block) * (self.most + 1)
        return self.sequence * (self.most + 1)

    def cache(self, capacity: int, free: int) -> tuple[int, str]:
        """Bytes of the cache, and what that means for how many responses run at once."""
        if self.foreign:
            cache = max(self.sequence, int(self.share * capacity) - self.weights - self.activations - self.logits)
        else:
            least = self.sequence + (2 if self.windows else 1) * self.block
            # Free is what the engine finds, which holds nothing for its room yet.
            cache = max(least, min(self.wanted, int(self.share * max(0, free)) - self.room))
        at_once = cache // self.sequence
        if at_once >= self.most:
            return cache, f"the cache holds all {self.most} sequences at full length"
        return cache, f"the cache holds {at_once} of {self.most} sequences at full length"


def engine_plan(rollout: SamplingConfig, shape: Shape, ranks: int, on_cpu: bool) -> EnginePlan:
    """The engine of a rollout section."""
    number = width_of(rollout.dtype, FLOAT if on_cpu else 2)
    foreign = rollout.name in FOREIGN
    spread = foreign and ranks == 1  # among several ranks every device has a whole engine
    tensor = rollout.tensor_model_parallel_size if spread else 1
    parallel = tensor * rollout.pipeline_model_parallel_size if spread else 1
    longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    tokens = min(rollout.max_num_batched_tokens, longest * rollout.max_num_seqs)
    rows = Pass.of([longest] * max(1, tokens // longest) if tokens >= longest else [tokens], 0)
    windows = not (foreign or on_cpu or rollout.invariant)
    step = _Step.of(rollout, shape, number, longest)
    compares = getattr(rollout, "verify_weights", False)  # a generation alone has nothing to compare with
    return EnginePlan(
        weights=shape.parameters * number // parallel,
        activations=forward_space(shape, _width(shape, number, foreign), rows) // tensor,
        logits=step.first if windows else rollout.max_num_seqs * shape.vocab * (number + 2 * FLOAT),
        token=max(1, shape.cache_per_token(number) // parallel),
        longest=longest,
        most=rollout.max_num_seqs,
        share=mem_share(rollout),
        foreign=foreign,
        stays=not (foreign and rollout.free_cache_engine),
        keeps_cache=not rollout.free_cache_engine,
        lasting=step.rows + step.graphs if windows else 0,
        room=step.room if windows else 0,
        digests=digest_entries(shape, number) if compares and not foreign else 0,
        windows=windows,
        notes=(f"{rollout.name} is planned by its rule: a share of the whole GPU for weights and cache",)
        if foreign
        else (),
    )


def _width(shape: Shape, number: int, foreign: bool = False) -> Width:
    """Of the stream through the layers, and of their products."""
    return Width(number if foreign or shape.family not in WIDE_FAMILIES else FLOAT, number)


def digest_entries(shape: Shape, number: int) -> int:
    """Sums of all matrices by columns and by rows, small ones whole; a tied head is counted under both its names."""
    layer = [one.weights for one in (*shape.attention(), *shape.mlp())]
    words = [size * number // INT for size in (*layer * shape.layers, shape.embedding, shape.embedding)]
    vectors = (shape.layers * (shape.layer - shape.layer_linear) + shape.hidden) * number // INT
    return sum(min(one, DIGEST_WIDTH + one // DIGEST_WIDTH) for one in words) + vectors


class _Step(NamedTuple):
    """Bytes of an engine that decodes in windows: what its rows are, and what one token of all of them takes."""

    rows: int  # tensors of fixed addresses
    graphs: int  # the pool that all graphs share, as large as the largest batch needs
    room: int  # where the logits of a batch, or of a part of it, come to lie
    first: int  # logits of prompts, and of the first tokens drawn from them

    @staticmethod
    def of(rollout: SamplingConfig, shape: Shape, number: int, longest: int) -> _Step:
        most = rollout.max_num_seqs
        row = PLACE + 4 * (-(-longest // LOOP_BLOCK) + 1) + LOOK_IN * (INT + FLOAT)
        largest = 0 if rollout.enforce_eager or shape.family not in GRAPH_SAFE else captured(rollout)
        token = forward_space(shape, _width(shape, number), Pass.of([1] * largest, 0)) if largest else 0
        prompts = min(most, -(-rollout.max_num_batched_tokens // max(1, rollout.prompt_length)))
        drawn = min(most, FIRST_AT_ONCE) * shape.vocab * 4 * FLOAT  # logits, log-probs, probabilities, their sums
        return _Step(
            rows=most * row,
            graphs=token,
            room=min(most, ON_GPU.most(shape.vocab, number)) * shape.vocab * number,
            first=prompts * shape.vocab * (FLOAT + number) + drawn,
        )


def captured(rollout: SamplingConfig) -> int:
    """The largest batch with a graph."""
    asked = rollout.cudagraph_capture_sizes
    if asked is None:
        return rollout.max_num_seqs
    return max((size for size in asked if size <= rollout.max_num_seqs), default=0)


def mem_share(rollout: SamplingConfig) -> float:
    """Share of the memory for the engine; SGLang's own name for it wins."""
    own = getattr(getattr(rollout, "engine_kwargs", None), "sglang", None) or {}
    if rollout.name == "sglang" and own.get("mem_fraction_static") is not None:
        return float(own["mem_fraction_static"])
    return rollout.gpu_memory_utilization
