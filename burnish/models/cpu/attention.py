"""Causal attention over a packed stream on a CPU in C (attention.c), with gradients.

torch's CPU kernel takes sequences of equal length only, and reaches a third of this kernel's speed on short ones.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from burnish.models.cpu.library import CannotCompileError, compiled

POINTER = ctypes.c_void_p
# Sums may be reordered into vectors. Each sum belongs to one query, so packing does not change it.
REORDER_FLAGS = ("-fassociative-math", "-fno-signed-zeros")


class Sizes(ctypes.Structure):
    """The struct of the same name in attention.c."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("segments", "heads", "kv_heads", "size")),
        *((f"{part}_{stride}", ctypes.c_long) for part in ("query", "key", "value") for stride in ("row", "head")),
        ("scaling", ctypes.c_float),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The functions of attention.c, or None without a C compiler."""
    try:
        functions = compiled("attention", *REORDER_FLAGS)
    except CannotCompileError:
        return None
    sizes, longest = ctypes.POINTER(Sizes), ctypes.c_long
    functions.burnish_attend.argtypes = [sizes, *[POINTER] * 5, longest, *[POINTER] * 2]
    functions.burnish_attend_backward.argtypes = [sizes, *[POINTER] * 5, longest, *[POINTER] * 6]
    return functions


def is_supported(query: Tensor) -> bool:
    """Whether attention.c takes this device, dtype and head size."""
    if query.device.type != "cpu" or query.dtype != torch.float32 or torch.compiler.is_compiling():
        return False
    functions = library()
    return functions is not None and query.shape[-1] % functions.burnish_lanes() == 0


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, key_starts: Tensor, longest: int, scaling: float
) -> Tensor:
    """[T, heads, d] queries, [keys, kv_heads, d] keys and values; `starts` and `key_starts` [segments + 1] int32:
    offsets of each segment's queries and keys, and the end. `longest` counts keys."""
    return _Attention.apply(query, key, value, starts, key_starts, longest, scaling)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        starts: Tensor,
        key_starts: Tensor,
        longest: int,
        scaling: float,
    ) -> Tensor:
        query, key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (query, key, value))
        output, lse = query.new_empty(query.shape), query.new_empty(query.shape[:2])
        inputs = (
            _sizes(query, key, value, starts, scaling),
            *_pointers(query, key, value, starts, key_starts),
            longest,
        )
        _check(_functions().burnish_attend(*inputs, *_pointers(output, lse)))
        ctx.save_for_backward(query, key, value, starts, key_starts, output, lse)
        ctx.longest, ctx.scaling = longest, scaling
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *starts, output, lse = ctx.saved_tensors
        # The kernel writes a query's gradient once, and adds to a key's for every query that attends to it.
        grad_query, grad_key, grad_value = (
            query.new_empty(query.shape),
            query.new_zeros(key.shape),
            query.new_zeros(value.shape),
        )
        sizes = _sizes(query, key, value, starts[0], ctx.scaling)
        inputs = (sizes, *_pointers(query, key, value, *starts), ctx.longest)
        grad = grad.contiguous()
        tensors = _pointers(output, lse, grad, grad_query, grad_key, grad_value)
        _check(_functions().burnish_attend_backward(*inputs, *tensors))
        return grad_query, grad_key, grad_value, None, None, None, None


def _functions() -> ctypes.CDLL:
    functions = library()
    assert functions is not None, "is_supported was not checked"
    return functions


def _sizes(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, scaling: float) -> Any:
    strides = (stride for x in (query, key, value) for stride in x.stride()[:2])
    return ctypes.byref(Sizes(len(starts) - 1, query.shape[1], key.shape[1], query.shape[2], *strides, scaling))


def _pointers(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _check(succeeded: int) -> None:
    if not succeeded:
        raise MemoryError("out of memory for attention scores")
