"""Decoding attention on a CPU in C (decode.c), compiled for the machine when an engine first needs it.

torch has no kernel for one new token against a paged cache on a CPU: batched products of a query or two per row reach
less than half of the speed at which the cache can be read. Where there is no compiler the engine takes the torch way of
cache.py, and says so.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from burnish.models.attention import AttentionShape
from burnish.rollout.builtin.cache import CacheShape, KVCache, room

SOURCE = Path(__file__).with_name("decode.c")
# Sums may be taken in vectors; nothing else of -ffast-math, which would change how the whole process rounds.
LICENCES = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno", "-ffp-contract=fast")
FLAGS = ("-O3", "-march=native", "-fPIC", "-fopenmp", *LICENCES)
Function = Callable[..., int]  # burnish_decode of decode.c
PATIENCE = 60.0  # seconds for the compiler


class CannotCompileError(Exception):
    """There is no compiler here, or it does not like the source."""


class Sizes(ctypes.Structure):
    """As decode.c has it."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("rows", "kv_heads", "places")),
        *((f"{part}_{stride}", ctypes.c_long) for part in ("query", "key", "value") for stride in ("head", "row")),
        ("window", ctypes.c_long),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


def suits(shape: CacheShape, device: torch.device) -> bool:
    """Is this the machine and the number format that decode.c is for?"""
    return device.type == "cpu" and shape.dtype == torch.float32


@cache
def decode_function(group: int, head_dim: int, block: int) -> Function:
    """burnish_decode for these sizes, compiled once per machine; CannotCompileError where that fails."""
    defined = (f"-DGROUP={group}", f"-DHEAD_DIM={head_dim}", f"-DBLOCK={block}")
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CannotCompileError("there is no C compiler")
    name = hashlib.blake2b(repr((SOURCE.read_text(), compiler, FLAGS, defined, _machine())).encode(), digest_size=12)
    library = _folder() / f"decode-{name.hexdigest()}.so"
    if not library.exists():
        _compile(compiler, defined, library)
    function = ctypes.CDLL(str(library)).burnish_decode
    function.argtypes = [ctypes.POINTER(Sizes), *[ctypes.c_void_p] * 8]
    function.restype = ctypes.c_int
    return function


def _compile(compiler: str, defined: tuple[str, ...], library: Path) -> None:
    """Linked without the licences, which some compilers take as a wish to change the process; renamed when whole."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        compiled, linked = f"{folder}/decode.o", f"{folder}/decode.so"
        for command in (
            (compiler, *FLAGS, *defined, "-c", str(SOURCE), "-o", compiled),
            (compiler, "-shared", "-fopenmp", compiled, "-o", linked),
        ):
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
            except (subprocess.SubprocessError, OSError) as error:
                said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
                raise CannotCompileError(f"{Path(compiler).name} failed: {said[0] if said else error}") from error
        os.replace(linked, library)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "burnish"


def _machine() -> str:
    """What -march=native depends on: a home may be shared by unlike machines."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"


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
