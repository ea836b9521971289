"""DecodePlan: how the device loop runs, decided from the options before a model is loaded."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from burnish.errors import UserError
from burnish.rollout.engine import EngineOptions

# Devices that decode several tokens between two host syncs, with CUDA graphs or without.
LOOP_DEVICES = frozenset({"cuda"})
# Model families whose forward never synchronizes with the host, so that a CUDA graph can capture it.
GRAPH_SAFE = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text"})


@dataclass(frozen=True)
class DecodePlan:
    capture_sizes: tuple[int, ...]  # batch sizes with a captured graph, ascending; none where everything runs eagerly
    sync_interval: int = 16  # tokens between two host syncs
    block_size: int = 64  # tokens of a block of the KV cache
    compiled: bool = False  # torch.compile for the decoder layers inside the graph
    triton: bool = False  # Triton kernels instead of plain torch
    captured: bool = False  # CUDA graphs instead of eager steps
    remarks: tuple[str, ...] = ()  # reported at the start of a run

    def capture_size(self, batch_size: int) -> int | None:
        """The smallest captured size that holds the batch; None if the batch is too large for all of them."""
        index = bisect.bisect_left(self.capture_sizes, batch_size)
        return self.capture_sizes[index] if index < len(self.capture_sizes) else None


def uses_device_loop(options: EngineOptions) -> bool:
    """Whether to decode several tokens between two host syncs, instead of token by token."""
    if options.invariant:
        return False  # only the token-by-token decoder computes in fixed shapes
    if options.device_loop is not None:
        return options.device_loop
    return options.device.type in LOOP_DEVICES


def decode_plan(options: EngineOptions, model_type: str) -> DecodePlan:
    """The plan for a model of this family (its config's model_type)."""
    on_gpu = options.device.type == "cuda"
    remarks = []
    eager = options.eager
    if not eager and model_type not in GRAPH_SAFE:
        eager = True
        remarks.append(f"CUDA graphs are not supported yet for model type {model_type!r}; decoding runs without them")
    arguments = {"compiled": on_gpu and not eager, "triton": on_gpu, **options.extra}
    known = {field.name for field in fields(DecodePlan)} - {"capture_sizes", "captured", "remarks"}
    if unknown := sorted(set(arguments) - known):
        raise UserError("unknown argument of the built-in engine", value=unknown[0], allowed=sorted(known))
    _check_arguments(arguments)
    sizes = () if eager else choose_capture_sizes(options.max_num_seqs, options.capture_sizes)
    return DecodePlan(sizes, captured=on_gpu and not eager, remarks=tuple(remarks), **arguments)


def _check_arguments(arguments: dict[str, Any]) -> None:
    block_size = arguments.get("block_size", DecodePlan.block_size)
    if block_size < 16 or block_size & (block_size - 1):  # the kernels' tiles must divide it
        raise UserError("block_size must be a power of two, at least 16", value=block_size)
    if arguments.get("sync_interval", DecodePlan.sync_interval) < 1:
        raise UserError("sync_interval must be at least 1 token", value=arguments["sync_interval"])


def choose_capture_sizes(max_num_seqs: int, requested: Sequence[int] | None = None) -> tuple[int, ...]:
    """The requested sizes up to the largest batch; by default fine steps for small ones, where padding costs most."""
    if requested is not None:
        return tuple(sorted({size for size in requested if size <= max_num_seqs}))
    steps = [*(1, 2, 4, 8, 16, 24, 32, 48), *range(64, 512, 32), *range(512, 1024, 64), *range(1024, 4096, 256)]
    steps += [*range(4096, 8192, 512), *range(8192, max(max_num_seqs, 8193), 1024)]
    smaller = [size for size in steps if size < max_num_seqs]
    return (*smaller, max_num_seqs)
