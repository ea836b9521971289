"""Roofline of the rollout: the minimum time for a set of requests, from measured bandwidth and matmul throughput."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter

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
    """Decoding cost of a dense decoder: matmul parameters, bytes of weights, KV-cache bytes per token and layer.

    Layers by the tokens that they see (None: all); those with a sliding window read no more of the cache.
    """

    parameters: int
    weight_bytes: int
    layer_bytes: int
    layers: tuple[tuple[int | None, int], ...]  # (window, how many)

    @property
    def cache_bytes(self) -> int:
        """Of one token in all layers."""
        return self.layer_bytes * sum(count for _, count in self.layers)

    @staticmethod
    def of(config: PretrainedConfig, dtype: torch.dtype) -> Cost:
        config = config.get_text_config()
        parameters = matmul_parameters(config)
        kv = config.num_key_value_heads * head_dim(config)
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        windows = Counter(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)
        return Cost(parameters, parameters * dtype.itemsize, 2 * kv * dtype.itemsize, tuple(windows.items()))

    def bytes_read(self, contexts: Counter[tuple[int, int, int]]) -> int:
        """By one decode step. `contexts`: how many prompts of so many tokens, shared by so many sequences of so many
        tokens each, there are; a prompt is read once for all of its sequences."""
        return self.layer_bytes * sum(
            layers * prompts * _tokens_seen(prompt, sequences, length, window)
            for window, layers in self.layers
            for (prompt, sequences, length), prompts in contexts.items()
        )

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


def _tokens_seen(prompt: int, sequences: int, length: int, window: int | None) -> int:
    if window is None:
        return prompt + sequences * length
    return max(0, min(prompt, window - length)) + sequences * min(length, window)


def min_seconds(requests: list[Request], cost: Cost, ceilings: Ceilings) -> float:
    """Minimum time for these requests when all are decoded together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for request in requests:
        groups.setdefault(request.ids, []).append(request.sampling.max_tokens)
    total = 2 * cost.parameters * sum(map(len, groups)) / ceilings.operations
    for step in range(1, max(request.sampling.max_tokens for request in requests)):
        active = [(len(ids), sum(limit > step for limit in limits)) for ids, limits in groups.items()]
        contexts = Counter((prompt, count, step) for prompt, count in active if count)
        memory = (cost.weight_bytes + cost.bytes_read(contexts)) / ceilings.bandwidth
        operations = 2 * sum(count for _, count in active) * cost.parameters / ceilings.operations
        total += max(memory, operations)
    return total
