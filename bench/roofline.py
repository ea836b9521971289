"""Roofline of the rollout: the minimum time for a set of requests, from measured bandwidth and matmul throughput."""

from __future__ import annotations

import dataclasses
import statistics
import time

import torch
from shapes import head_dim, matmul_parameters
from transformers import PretrainedConfig

from burnish.rollout.engine import Request

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """Peak bytes and FLOPs per second of the device."""

    bandwidth: float
    operations: float

    @staticmethod
    def of(device: torch.device, dtype: torch.dtype) -> Ceilings:
        """Measure a large copy (read and written) and a large matrix product."""
        on_gpu = device.type == "cuda"
        size, side = (GIB, 8192) if on_gpu else (1 << 26, 512)
        source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        copy = _seconds(lambda: target.copy_(source), on_gpu)
        product = _seconds(lambda: left @ right, on_gpu)
        return Ceilings(2 * size / copy, 2 * side**3 / product)


def _seconds(work, on_gpu: bool, times: int = 10) -> float:
    """Median seconds of a call, after two warm-up calls."""
    durations = []
    for _ in range(times + 2):
        started = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations[2:])


@dataclasses.dataclass(frozen=True)
class Cost:
    """Decoding cost of a dense decoder: matmul parameters, bytes of weights, KV-cache bytes per token."""

    parameters: int
    weight_bytes: int
    cache_bytes: int

    @staticmethod
    def of(config: PretrainedConfig, dtype: torch.dtype) -> Cost:
        config = config.get_text_config()
        parameters = matmul_parameters(config)
        kv = config.num_key_value_heads * head_dim(config)
        return Cost(parameters, parameters * dtype.itemsize, 2 * config.num_hidden_layers * kv * dtype.itemsize)

    def step_terms(self, num_sequences: int, cached_tokens: int, ceilings: Ceilings) -> tuple[float, float, float]:
        """Minimum seconds of one decode step: reading weights, arithmetic, reading the cache.

        Count the tokens of a prompt shared by several sequences once.
        """
        return (
            self.weight_bytes / ceilings.bandwidth,
            2 * num_sequences * self.parameters / ceilings.operations,
            cached_tokens * self.cache_bytes / ceilings.bandwidth,
        )

    def step_seconds(self, num_sequences: int, cached_tokens: int, ceilings: Ceilings) -> float:
        """Minimum seconds of one decode step: memory traffic and arithmetic overlap, so the larger one counts."""
        weights, operations, cache = self.step_terms(num_sequences, cached_tokens, ceilings)
        return max(weights + cache, operations)


def min_seconds(requests: list[Request], cost: Cost, ceilings: Ceilings) -> float:
    """Minimum time for these requests when all are decoded together."""
    prompts = {request.ids for request in requests}
    total = 2 * cost.parameters * sum(map(len, prompts)) / ceilings.operations
    for step in range(1, max(request.sampling.max_tokens for request in requests)):
        active = [request for request in requests if request.sampling.max_tokens > step]
        shared = sum(map(len, {request.ids for request in active}))
        total += cost.step_seconds(len(active), shared + step * len(active), ceilings)
    return total
