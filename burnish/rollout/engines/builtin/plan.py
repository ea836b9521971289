"""LoopPlan: how the decode loop of a device runs, decided from the options before a model is loaded."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, fields
from typing import Any

from burnish.errors import UserError
from burnish.rollout.engine import EngineOptions
from burnish.sizing import CUDA_GRAPH_FAMILIES, DEVICE_LOOP_BLOCK, SYNC_INTERVAL, capture_sizes

# Devices whose engine decodes in windows, with CUDA graphs or without.
LOOP_DEVICES = frozenset({"cuda"})


@dataclass(frozen=True)
class LoopPlan:
    """`buckets`: batch sizes that get a captured graph, ascending; none where everything runs eagerly."""

    buckets: tuple[int, ...]
    look_in: int = SYNC_INTERVAL  # tokens between two looks of the host
    block: int = DEVICE_LOOP_BLOCK  # tokens of a block of the cache
    compiled: bool = False  # torch.compile of the decoder layers inside the graph
    triton: bool = False  # kernels in Triton, or in plain torch
    captured: bool = False  # CUDA graphs, or the same bodies called one after the other
    remarks: tuple[str, ...] = ()  # what the run should know

    def bucket(self, rows: int) -> int | None:
        """The smallest batch size with a graph that holds so many rows; None if the batch is too large for any."""
        place = bisect.bisect_left(self.buckets, rows)
        return self.buckets[place] if place < len(self.buckets) else None


def uses_loop(options: EngineOptions) -> bool:
    """Does this engine decode in windows, with the host looking in now and then, or token by token?"""
    if options.invariant:
        return False  # fixed shapes of products are the other way's affair
    if options.device_loop is not None:
        return options.device_loop
    return options.device.type in LOOP_DEVICES


def loop_plan(options: EngineOptions, family: str) -> LoopPlan:
    """What the options mean for a model of this family (its config's model_type)."""
    on_gpu = options.device.type == "cuda"
    remarks = []
    eager = options.eager
    if not eager and family not in CUDA_GRAPH_FAMILIES:
        eager = True
        remarks.append(f"models of type {family!r} run without CUDA graphs")
    chosen = {"compiled": on_gpu and not eager, "triton": on_gpu, **options.extra}
    known = {field.name for field in fields(LoopPlan)} - {"buckets", "captured", "remarks"}
    if unknown := sorted(set(chosen) - known):
        raise UserError("the built-in engine has no such argument", value=unknown[0], allowed=sorted(known))
    buckets = () if eager else capture_sizes(options.max_num_seqs, options.capture_sizes)
    return LoopPlan(buckets, captured=on_gpu and not eager, remarks=tuple(remarks), **_checked(chosen))


def _checked(chosen: dict[str, Any]) -> dict[str, Any]:
    """Blocks must be what the kernels' tiles divide."""
    block = chosen.get("block", LoopPlan.block)
    if block < 16 or block & (block - 1):
        raise UserError("a block must be a power of two, at least 16 tokens", value=block)
    if chosen.get("look_in", LoopPlan.look_in) < 1:
        raise UserError("the host must look in after at least one token", value=chosen["look_in"])
    return chosen
