"""DecodePlan: how the device loop runs, decided from the options before a model is loaded."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, fields
from typing import Any

from burnish.errors import UserError
from burnish.rollout.engine import EngineOptions
from burnish.sizing import CUDA_GRAPH_FAMILIES, DEVICE_LOOP_BLOCK, SYNC_INTERVAL, capture_sizes

# Devices that decode several tokens between two host syncs, with CUDA graphs or without.
LOOP_DEVICES = frozenset({"cuda"})


@dataclass(frozen=True)
class DecodePlan:
    capture_sizes: tuple[int, ...]  # batch sizes with a captured graph, ascending; none where everything runs eagerly
    sync_interval: int = SYNC_INTERVAL  # tokens between two host syncs
    block_size: int = DEVICE_LOOP_BLOCK  # tokens of a block of the KV cache
    compiled: bool = False  # torch.compile for the decoder layers inside the graph
    triton: bool = False  # Triton kernels instead of plain torch
    shared_prefix: bool = False  # read the KV of a common prefix once for several sequences
    captured: bool = False  # CUDA graphs instead of eager steps
    remarks: tuple[str, ...] = ()  # reported at the start of a run

    def capture_size(self, batch_size: int) -> int | None:
        """The smallest captured size that holds the batch; None if the batch is too large for all of them."""
        index = bisect.bisect_left(self.capture_sizes, batch_size)
        return self.capture_sizes[index] if index < len(self.capture_sizes) else None


def uses_device_loop(options: EngineOptions) -> bool:
    """Whether to decode several tokens between two host syncs, instead of token by token."""
    if options.invariant or options.tensor_group is not None:
        return False  # only the token-by-token decoder computes in fixed shapes, and on several ranks
    if options.device_loop is not None:
        return options.device_loop
    return options.device.type in LOOP_DEVICES


def decode_plan(options: EngineOptions, model_type: str) -> DecodePlan:
    """The plan for a model of this family (its config's model_type)."""
    on_gpu = options.device.type == "cuda"
    remarks = []
    eager = options.eager
    if not eager and model_type not in CUDA_GRAPH_FAMILIES:
        eager = True
        remarks.append(f"CUDA graphs are not supported yet for model type {model_type!r}; decoding runs without them")
    arguments = {"compiled": on_gpu and not eager, "triton": on_gpu, **options.extra}
    known = {field.name for field in fields(DecodePlan)} - {"capture_sizes", "captured", "remarks"}
    if unknown := sorted(set(arguments) - known):
        raise UserError("unknown argument of the built-in engine", value=unknown[0], allowed=sorted(known))
    _check_arguments(arguments)
    sizes = () if eager else capture_sizes(options.max_num_seqs, options.capture_sizes)
    return DecodePlan(sizes, captured=on_gpu and not eager, remarks=tuple(remarks), **arguments)


def _check_arguments(arguments: dict[str, Any]) -> None:
    block_size = arguments.get("block_size", DecodePlan.block_size)
    if block_size < 16 or block_size & (block_size - 1):  # the kernels' tiles must divide it
        raise UserError("block_size must be a power of two, at least 16", value=block_size)
    if arguments.get("sync_interval", DecodePlan.sync_interval) < 1:
        raise UserError("sync_interval must be at least 1 token", value=arguments["sync_interval"])
    for name in ("compiled", "triton", "shared_prefix"):
        if not isinstance(arguments.get(name, False), bool):
            raise UserError(f"{name} of the built-in engine is true or false", value=arguments[name])
