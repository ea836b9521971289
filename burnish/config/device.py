"""Will the run compute on the CPU? Answered without torch, so that a config can be checked before it is loaded."""

from __future__ import annotations

import ctypes
import sys
from functools import cache


def computes_on_cpu(device: str) -> bool:
    """`auto` means cuda where the driver finds a GPU, else cpu."""
    return device == "cpu" or (device == "auto" and not _has_cuda())


@cache
def _has_cuda() -> bool:
    """Ask the CUDA driver itself how many devices it has."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
