"""C kernels of an engine on a CPU: decode attention and the parts of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from burnish.models.cpu.layers import Layers
from burnish.rollout.engines.builtin.kv_cache import CacheShape
from burnish.rollout.engines.builtin.native.decode import Function, decode_function

# Tokens of a pass are padded to a multiple of this: torch computes the rest of a vector by other code, with other bits.
ROW_MULTIPLE = 8


@dataclass(frozen=True)
class CpuKernels:
    decode: Function
    layers: Layers


def compile_kernels(shape: CacheShape, group: int, device: torch.device) -> CpuKernels | None:
    """None for other devices and formats; CannotCompileError without a compiler.

    `group`: query heads per key/value head.
    """
    if device.type != "cpu" or shape.dtype != torch.float32:
        return None
    return CpuKernels(decode_function(group, shape.head_dim), Layers())
