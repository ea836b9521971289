"""DecodePlan: how the device loop runs, decided from the options before a model is loaded."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from burnish.errors import UserError
from burnish.rollout.engine import EngineOptions
from burnish.sizing import CUDA_GRAPH_FAMILIES, DEVICE_LOOP_BLOCK, SYNC_INTERVAL, capture_sizes

SWITCHES = ("compiled", "triton", "shared_prefix")  # arguments that are true or false
CACHE_DTYPES = {"auto": None, "fp8": torch.float8_e4m3fn}  # None: that of the weights
FP8_CAPABILITY = (8, 9)  # the first compute capability with float8_e4m3fn
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
    kv_cache_dtype: str = "auto"  # of CACHE_DTYPES: keys and values are rounded to it
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
    check_arguments(options.extra, options.section)
    if on_gpu:
        check_cache_dtype(options)
    sizes = () if eager else capture_sizes(options.max_num_seqs, options.capture_sizes)
    return DecodePlan(sizes, captured=on_gpu and not eager, remarks=tuple(remarks), **arguments)


def check_cache_dtype(options: EngineOptions) -> None:
    """Triton converts to and from 8 bits where the GPU has an instruction for it: Ada, Hopper and newer ones."""
    name = options.extra.get("kv_cache_dtype", "auto")
    if CACHE_DTYPES[name] is not None and torch.cuda.get_device_capability(options.device) < FP8_CAPABILITY:
        key = f"{options.section}.engine_kwargs.builtin.kv_cache_dtype"
        raise UserError("this GPU has no 8-bit floating point", key=key, value=name, allowed="auto", hint=f"{key}=auto")


def check_arguments(extra: Mapping[str, Any], section: str) -> None:
    """Refuse unknown entries of engine_kwargs.builtin and values that they cannot have, each by its key."""
    key = f"{section}.engine_kwargs.builtin"
    known = {field.name for field in fields(DecodePlan)} - {"capture_sizes", "captured", "remarks"}
    for name, value in extra.items():
        if name not in known:
            raise UserError("unknown argument of the built-in engine", key=key, value=name, allowed=sorted(known))
        if name in SWITCHES:
            allowed, fits = [True, False], isinstance(value, bool)
        elif name == "kv_cache_dtype":
            allowed, fits = list(CACHE_DTYPES), isinstance(value, str) and value in CACHE_DTYPES
        elif name == "block_size":  # the kernels' tiles must divide it
            allowed, fits = "powers of two, at least 16", _is_count(value) and value >= 16 and value.bit_count() == 1
        else:
            allowed, fits = "at least 1 token", _is_count(value) and value >= 1
        if not fits:
            raise UserError(f"not a possible {name}", key=f"{key}.{name}", value=value, allowed=allowed)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
