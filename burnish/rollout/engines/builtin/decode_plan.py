"""DecodePlan: how the device loop runs, decided from the options before a model is loaded."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from burnish.errors import UserError
from burnish.models.fused.fp8 import FP8, check_fp8
from burnish.models.invariant.modules import why_not_invariant
from burnish.models.kernels import invariant as invariant_kernels
from burnish.models.kernels.product_tiles import MAX_ROWS
from burnish.models.load import load_config
from burnish.rollout.engine import EngineOptions
from burnish.sizing import CUDA_GRAPH_FAMILIES, DEVICE_LOOP_BLOCK, SYNC_INTERVAL, capture_sizes

SWITCHES = ("compiled", "triton", "shared_prefix")  # arguments that are true or false
FASTER = {"compiled": False, "shared_prefix": False, "few_rows": 0}  # change the order of sums; what turns them off
CACHE_DTYPES = {"auto": None, "fp8": FP8}  # None: that of the weights
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
    few_rows: int = 0  # batches of up to so many sequences run explicit layers of few kernels each; 0: none do
    captured: bool = False  # CUDA graphs instead of eager steps
    invariant: bool = False  # the kernels that training uses too, so that bits are equal in any batch
    remarks: tuple[str, ...] = ()  # reported at the start of a run

    def capture_size(self, batch_size: int) -> int | None:
        """The smallest captured size that holds the batch; None if the batch is too large for all of them."""
        index = bisect.bisect_left(self.capture_sizes, batch_size)
        return self.capture_sizes[index] if index < len(self.capture_sizes) else None


def uses_device_loop(options: EngineOptions) -> bool:
    """Whether to decode several tokens between two host syncs, instead of token by token."""
    if options.tensor_group is not None:
        return False  # only the token-by-token decoder computes on several ranks
    wanted = options.device.type in LOOP_DEVICES if options.device_loop is None else options.device_loop
    return wanted and not (options.invariant and why_by_token(options))


def why_by_token(options: EngineOptions) -> str | None:
    """Why an invariant engine decodes token by token, by products of fixed shapes; None where it uses the kernels that
    are the trainer's too."""
    if options.tensor_group is not None:
        return "several ranks share an engine"
    if not options.extra.get("triton", options.device.type in LOOP_DEVICES):
        return "Triton kernels are off"
    return why_not_invariant(load_config(options.model))


def uses_triton(options: EngineOptions) -> bool:
    """Whether an engine that decodes token by token has Triton kernels for what it does on a GPU."""
    on_gpu = options.device.type == "cuda"
    return on_gpu and options.extra.get("triton", True)


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
    if options.invariant:
        check_invariant_arguments(arguments, options.section)
        remarks += [f"{name} has no effect with invariant kernels" for name in FASTER if options.extra.get(name)]
        arguments |= {"invariant": True, **FASTER}
    if on_gpu:
        check_cache_dtype(options)
    sizes = () if eager else capture_sizes(options.max_num_seqs, options.capture_sizes)
    return DecodePlan(sizes, captured=on_gpu and not eager, remarks=tuple(remarks), **arguments)


def check_cache_dtype(options: EngineOptions) -> None:
    name = options.extra.get("kv_cache_dtype", "auto")
    if CACHE_DTYPES[name] is not None:
        check_fp8(options.device, f"{options.section}.engine_kwargs.builtin.kv_cache_dtype", "auto")


def check_arguments(extra: Mapping[str, Any], section: str) -> None:
    """Refuse unknown entries of engine_kwargs.builtin and values that they cannot have, each by its key."""
    key = f"{section}.engine_kwargs.builtin"
    known = {field.name for field in fields(DecodePlan)} - {"capture_sizes", "captured", "remarks", "invariant"}
    for name, value in extra.items():
        if name not in known:
            raise UserError("unknown argument of the built-in engine", key=key, value=name, allowed=sorted(known))
        if name in SWITCHES:
            allowed, fits = [True, False], isinstance(value, bool)
        elif name == "kv_cache_dtype":
            allowed, fits = list(CACHE_DTYPES), isinstance(value, str) and value in CACHE_DTYPES
        elif name == "few_rows":
            allowed, fits = f"0 (off) to {MAX_ROWS}", _is_count(value) and 0 <= value <= MAX_ROWS
        elif name == "block_size":  # the kernels' tiles must divide it
            allowed, fits = "powers of two, at least 16", _is_count(value) and value >= 16 and value.bit_count() == 1
        else:
            allowed, fits = "at least 1 token", _is_count(value) and value >= 1
        if not fits:
            raise UserError(f"not a possible {name}", key=f"{key}.{name}", value=value, allowed=allowed)


def check_invariant_arguments(arguments: Mapping[str, Any], section: str) -> None:
    """Refuse a KV cache of 8 bits, which training does not have, and blocks that the kernels' tiles do not divide."""
    name = arguments.get("kv_cache_dtype", "auto")
    if CACHE_DTYPES[name] is not None:
        key = f"{section}.engine_kwargs.builtin.kv_cache_dtype"
        raise UserError(f"not possible with {section}.invariant=true", key=key, value=name, allowed="auto")
    size = arguments.get("block_size", DEVICE_LOOP_BLOCK)
    if size % invariant_kernels.KEYS:
        key = f"{section}.engine_kwargs.builtin.block_size"
        raise UserError(
            f"not possible with {section}.invariant=true",
            key=key,
            value=size,
            allowed=f"{invariant_kernels.KEYS} or more",
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
