"""Decode attention on a CPU in C (decode.c).

torch has no kernel for one new token against a paged cache on a CPU: batched products of a few queries per sequence
reach less than half of the speed at which the cache can be read. Without a compiler the engine uses BlockDecode instead
and reports it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from burnish.models.attention import AttentionShape
from burnish.models.cpu.library import compiled
from burnish.rollout.engines.builtin.kv_cache import KVCache
from burnish.rollout.engines.builtin.paged_attention import sequence_rows, tokens_left

Function = Callable[..., int]  # burnish_decode of decode.c
# Lets sums be vectorized. Each sum belongs to one sequence, so its bits are the same in every batch.
COMPILER_FLAGS = ("-fassociative-math", "-fno-signed-zeros")


class Sizes(ctypes.Structure):
    """`Sizes` of decode.c."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("batch_size", "kv_heads", "block_size", "table_width")),
        *((f"{part}_{stride}", ctypes.c_long) for part in ("query", "key", "value") for stride in ("head", "row")),
        ("window", ctypes.c_long),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


def decode_function(group: int, head_dim: int) -> Function:
    """burnish_decode compiled for these sizes; CannotCompileError without a compiler."""
    sizes = (f"-DGROUP={group}", f"-DHEAD_DIM={head_dim}")
    function = compiled("decode", *COMPILER_FLAGS, *sizes).burnish_decode
    function.argtypes = [ctypes.POINTER(Sizes), *[ctypes.c_void_p] * 8]
    function.restype = ctypes.c_int
    return function


class CpuDecode:
    """One new token per sequence, as paged_attention.BlockDecode; blocks are read in place, shared or not."""

    def __init__(
        self,
        cache: KVCache,
        function: Function,
        tables: list[list[int]],
        lengths: list[int],
        pad: int,
        counts: Sequence[int] | None = None,
    ) -> None:
        """`counts`: rows of each sequence, by default one; each is one token further than the row before it."""
        self.function = function
        self.pad = pad  # dummy sequences that fill up a fixed shape; they read and write nothing
        width = max(map(len, tables))
        self.tables = torch.tensor([table + [0] * (width - len(table)) for table in tables])
        self.lengths = torch.tensor(lengths)  # tokens in the cache before this step
        self.tokens_left = tokens_left(tables, lengths, cache.block_size)
        if counts is not None:
            row_of, depth = (torch.from_numpy(part) for part in sequence_rows(counts))
            self.tables, self.lengths = self.tables[row_of], self.lengths[row_of] + depth
        self.batch_size = len(self.tables)

    def advance(self) -> None:
        self.lengths += 1
        self.tokens_left -= 1

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        output = query.new_empty(self.batch_size + self.pad, *query.shape[::2])
        if self.pad:
            output[self.batch_size :] = 0
        _, kv_heads, block_size, _ = keys.shape
        sizes = Sizes(
            *(self.batch_size, kv_heads, block_size, self.tables.shape[1]),
            *(stride for x in (query, key, value) for stride in x.stride()[:2]),
            *(shape.window or 0, shape.scaling, shape.softcap or 0.0),
        )
        tensors = (query, key, value, keys, values, self.tables, self.lengths)
        if not self.function(ctypes.byref(sizes), *(tensor.data_ptr() for tensor in tensors), output.data_ptr()):
            raise MemoryError("decode attention: out of memory for the scores of a sequence")
        return output
