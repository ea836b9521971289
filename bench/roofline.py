"""What a device could do at best: the least time for a rollout's requests."""

from __future__ import annotations

import dataclasses
import time

import torch
from transformers import PretrainedConfig

from burnish.rollout.engine import Request

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What the device can do at best: bytes and operations per second."""

    bandwidth: float
    operations: float

    @staticmethod
    def of(device: torch.device, dtype: torch.dtype) -> Ceilings:
        """Measured: a large copy, read and written, and a large product."""
        on_gpu = device.type == "cuda"
        size, side = (GIB, 8192) if on_gpu else (1 << 26, 512)
        source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        copy = _seconds(lambda: target.copy_(source), on_gpu)
        product = _seconds(lambda: left @ right, on_gpu)
        return Ceilings(2 * size / copy, 2 * side**3 / product)


def _seconds(work, on_gpu: bool, times: int = 10) -> float:
    """The median of some calls after two to warm up."""
    found = []
    for _ in range(times + 2):
        started = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return sorted(found[2:])[times // 2]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a token costs: parameters it is multiplied with, bytes of the weights, bytes of a token in the cache."""

    parameters: int
    weight_bytes: int
    cache_bytes: int

    @staticmethod
    def of(config: PretrainedConfig, dtype: torch.dtype) -> Cost:
        hidden, layers = config.hidden_size, config.num_hidden_layers
        head = hidden // config.num_attention_heads
        kv = config.num_key_value_heads * head
        layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * config.intermediate_size
        parameters = layers * layer + config.vocab_size * hidden
        return Cost(parameters, parameters * dtype.itemsize, 2 * layers * kv * dtype.itemsize)

    def step(self, rows: int, tokens: int, ceilings: Ceilings) -> tuple[float, float, float]:
        """Least seconds of one step: weights read, operations, cache read (of so many tokens in all, a prompt that
        several rows share once)."""
        return (
            self.weight_bytes / ceilings.bandwidth,
            2 * rows * self.parameters / ceilings.operations,
            tokens * self.cache_bytes / ceilings.bandwidth,
        )


def floor_seconds(requests: list[Request], cost: Cost, ceilings: Ceilings) -> float:
    """The least time for these requests, all decoded together: each step at the larger of its two limits."""
    prompts = {request.ids for request in requests}
    total = 2 * cost.parameters * sum(map(len, prompts)) / ceilings.operations
    for step in range(1, max(request.sampling.max_tokens for request in requests)):
        alive = [request for request in requests if request.sampling.max_tokens > step]
        shared = sum(map(len, {request.ids for request in alive}))
        weights, operations, cache = cost.step(len(alive), shared + step * len(alive), ceilings)
        total += max(weights + cache, operations)
    return total
