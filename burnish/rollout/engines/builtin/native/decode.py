"""Decoding attention on a CPU in C (decode.c).

torch has no kernel for one new token against a paged cache on a CPU: batched products of a query or two per row reach
less than half of the speed at which the cache can be read. Where there is no compiler the engine takes the torch way of
cache.py, and says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from burnish.models.attention import AttentionShape
from burnish.models.cpu.library import compiled
from burnish.rollout.engines.builtin.cache import KVCache, room

Function = Callable[..., int]  # burnish_decode of decode.c
# A sum may be taken in vectors: the kernel's sums are of one row each, so they stay the same in every batch.
LICENCES = ("-fassociative-math", "-fno-signed-zeros")


class Sizes(ctypes.Structure):
    """As decode.c has it."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("rows", "kv_heads", "places")),
        *((f"{part}_{stride}", ctypes.c_long) for part in ("query", "key", "value") for stride in ("head", "row")),
        ("window", ctypes.c_long),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


def decode_function(group: int, head_dim: int, block: int) -> Function:
    """burnish_decode for these sizes; CannotCompileError where there is no compiler."""
    sizes = (f"-DGROUP={group}", f"-DHEAD_DIM={head_dim}", f"-DBLOCK={block}")
    function = compiled("decode", *LICENCES, *sizes).burnish_decode
    function.argtypes = [ctypes.POINTER(Sizes), *[ctypes.c_void_p] * 8]
    function.restype = ctypes.c_int
    return function


class NativeDecodeContext:
    """One new token per row, as cache.DecodeContext; blocks are read where they lie, shared or not."""

    def __init__(
        self, cache: KVCache, function: Function, tables: list[list[int]], lengths: list[int], pad: int
    ) -> None:
        self.cache = cache
        self.function = function
        self.rows = len(tables)
        self.pad = pad  # rows appended to reach a fixed shape; they read and write nothing
        self.lengths = torch.tensor(lengths)  # tokens in the cache before this step
        places = max(map(len, tables))
        self.tables = torch.tensor([table + [0] * (places - len(table)) for table in tables])
        _, self.kv_heads, block, _ = cache.keys[0].shape
        self.room = room(tables, lengths, block)

    def advance(self) -> None:
        self.lengths += 1
        self.room -= 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        output = query.new_empty(self.rows + self.pad, *query.shape[::2])
        if self.pad:
            output[self.rows :] = 0
        sizes = Sizes(
            *(self.rows, self.kv_heads, self.tables.shape[1]),
            *(stride for x in (query, key, value) for stride in x.stride()[:2]),
            *(shape.window or 0, shape.scaling, shape.softcap or 0.0),
        )
        tensors = (query, key, value, self.cache.keys[layer], self.cache.values[layer], self.tables, self.lengths)
        if not self.function(ctypes.byref(sizes), *(tensor.data_ptr() for tensor in tensors), output.data_ptr()):
            raise MemoryError("attention could not take the memory for a row's scores")
        return output
