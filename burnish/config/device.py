"""Whether a run computes on the CPU, without importing torch."""

from __future__ import annotations

import ctypes
import sys
from functools import cache


def computes_on_cpu(device: str) -> bool:
    """`auto` means cuda if the driver finds a GPU, otherwise cpu."""
    return device == "cpu" or (device == "auto" and not _has_cuda())


@cache
def _has_cuda() -> bool:
    """Whether the CUDA driver reports at least one device."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
