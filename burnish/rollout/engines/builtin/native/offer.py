"""What an engine on a CPU has in C: decoding attention and the parts of a layer, or neither."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from burnish.models.cpu.layers import Layers
from burnish.rollout.engines.builtin.cache import CacheShape
from burnish.rollout.engines.builtin.native.decode import Function, decode_function

# Rows of a pass are a multiple of this: torch takes what is left of a vector by other code, with other last bits.
EVEN = 8


@dataclass(frozen=True)
class Native:
    decode: Function
    layers: Layers


def compile_for(shape: CacheShape, group: int, device: torch.device) -> Native | None:
    """`group`: query heads of a key/value head. None where C is not for it; CannotCompileError where it could be."""
    if device.type != "cpu" or shape.dtype != torch.float32:
        return None
    return Native(decode_function(group, shape.head_dim, shape.block), Layers())
