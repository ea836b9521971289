"""What the engine holds: its weights, the largest pass, and the KV cache that is left for it."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.rollout import SamplingConfig
from burnish.doctor.activations import FLOAT, Pass, Width, forward_space
from burnish.doctor.roles import width_of
from burnish.doctor.shapes import Shape

CACHE_BLOCK = 256  # tokens of a block of the built-in engine's cache; a test compares it with the engine's
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
    notes: tuple[str, ...] = ()

    @property
    def sequence(self) -> int:
        """Cache of one sequence of full length, in whole blocks."""
        return -(-self.longest // CACHE_BLOCK) * CACHE_BLOCK * self.token

    def cache(self, capacity: int, free: int) -> tuple[int, str]:
        """Bytes of the cache, and what that means for how many responses run at once."""
        if self.foreign:
            cache = max(self.sequence, int(self.share * capacity) - self.weights - self.activations - self.logits)
        else:
            wanted = self.sequence * (self.most + 1)
            cache = max(self.sequence + CACHE_BLOCK * self.token, min(wanted, int(self.share * max(0, free))))
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
    return EnginePlan(
        weights=shape.parameters * number // parallel,
        activations=forward_space(shape, Width(number, number), rows) // tensor,
        logits=rollout.max_num_seqs * shape.vocab * (number + 2 * FLOAT),
        token=max(1, shape.cache_per_token(number) // parallel),
        longest=longest,
        most=rollout.max_num_seqs,
        share=mem_share(rollout),
        foreign=foreign,
        stays=not (foreign and rollout.free_cache_engine),
        notes=(f"{rollout.name} is planned by its rule: a share of the whole GPU for weights and cache",)
        if foreign
        else (),
    )


def mem_share(rollout: SamplingConfig) -> float:
    """Share of the memory for the engine; SGLang's own name for it wins."""
    own = getattr(getattr(rollout, "engine_kwargs", None), "sglang", None) or {}
    if rollout.name == "sglang" and own.get("mem_fraction_static") is not None:
        return float(own["mem_fraction_static"])
    return rollout.gpu_memory_utilization
