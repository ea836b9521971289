"""Causal attention over a packed stream on a CPU in C (attention.c), with gradients.

torch's own kernel for CPUs takes rows of one length in a call, and reaches a third of this one's speed on short rows.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from burnish.models.cpu.library import CannotCompileError, compiled

POINTER = ctypes.c_void_p
# A sum may be taken in vectors: it is of one query each, so it stays the same however rows are packed.
LICENCES = ("-fassociative-math", "-fno-signed-zeros")


class Sizes(ctypes.Structure):
    """As attention.c has it."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("segments", "heads", "kv_heads", "size")),
        *((f"{part}_{stride}", ctypes.c_long) for part in ("query", "key", "value") for stride in ("row", "head")),
        ("scaling", ctypes.c_float),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The functions of attention.c, or None where there is no compiler."""
    try:
        found = compiled("attention", *LICENCES)
    except CannotCompileError:
        return None
    sizes, longest = ctypes.POINTER(Sizes), ctypes.c_long
    found.burnish_attend.argtypes = [sizes, *[POINTER] * 4, longest, *[POINTER] * 2]
    found.burnish_attend_backward.argtypes = [sizes, *[POINTER] * 4, longest, *[POINTER] * 6]
    return found


def fits(query: Tensor) -> bool:
    """Is this the machine, the number format and a size of heads that attention.c is for?"""
    if query.device.type != "cpu" or query.dtype != torch.float32 or torch.compiler.is_compiling():
        return False
    found = library()
    return found is not None and query.shape[-1] % found.burnish_lanes() == 0


def packed_attention(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, scaling: float) -> Tensor:
    """[T, heads, d] and [T, kv_heads, d]; `starts`: where each segment starts and the last one ends, int32."""
    return _Attention.apply(query, key, value, starts, longest, scaling)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, scaling: float
    ) -> Tensor:
        query, key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (query, key, value))
        output, weight = query.new_empty(query.shape), query.new_empty(query.shape[:2])
        given = (_sizes(query, key, value, starts, scaling), *_pointers(query, key, value, starts), longest)
        _check(library().burnish_attend(*given, *_pointers(output, weight)))
        ctx.save_for_backward(query, key, value, starts, output, weight)
        ctx.longest, ctx.scaling = longest, scaling
        return output

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, starts, output, weight = ctx.saved_tensors
        to_query, to_key, to_value = (
            make(x.shape) for make, x in zip(_blanks(query), (query, key, value), strict=True)
        )
        given = (_sizes(query, key, value, starts, ctx.scaling), *_pointers(query, key, value, starts), ctx.longest)
        slope = slope.contiguous()
        made = _pointers(output, weight, slope, to_query, to_key, to_value)
        _check(library().burnish_attend_backward(*given, *made))
        return to_query, to_key, to_value, None, None, None


def _blanks(like: Tensor) -> tuple[Any, ...]:
    """A query is written once, a key is added to by all queries that see it."""
    return like.new_empty, like.new_zeros, like.new_zeros


def _sizes(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, scaling: float) -> Any:
    strides = (stride for x in (query, key, value) for stride in x.stride()[:2])
    return ctypes.byref(Sizes(len(starts) - 1, query.shape[1], key.shape[1], query.shape[2], *strides, scaling))


def _pointers(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _check(succeeded: int) -> None:
    if not succeeded:
        raise MemoryError("attention could not take the memory for a row's scores")
