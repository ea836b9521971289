"""Region: memory that can be released and restored at the same addresses.

A captured CUDA graph holds raw addresses. On a GPU, the CUDA virtual memory functions unmap and map memory behind a
reserved address range; on a CPU the system does the same with the pages of a mapping.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

ALIGNMENT = 256  # bytes, of every tensor


class Region(Protocol):
    """Contains zeros at first and after each `restore`."""

    def carve(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate the next tensor."""
        ...

    def release(self) -> None: ...

    def restore(self) -> None: ...


def allocate_region(device: torch.device, num_bytes: int, num_tensors: int = 1, beside: bool = False) -> Region:
    """A region for tensors of `num_bytes` in total. `beside`: a trainer in this process alternates with the engine."""
    size = num_bytes + num_tensors * ALIGNMENT
    return DeviceRegion(device, size, beside) if device.type == "cuda" else HostRegion(size)


class BumpAllocator:
    """Tensors one after the other out of one buffer."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer  # uint8
        self._used = 0

    def carve(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        start, num_bytes = self._used, math.prod(size) * dtype.itemsize
        if start + num_bytes > len(self.buffer):
            raise ValueError(f"{num_bytes} more bytes do not fit: {start} of {len(self.buffer)} are used")
        self._used = -(-(start + num_bytes) // ALIGNMENT) * ALIGNMENT
        return self.buffer[start : start + num_bytes].view(dtype).view(size)


class HostRegion(BumpAllocator):
    """An anonymous mapping: pages are backed on first write and dropped by madvise."""

    def __init__(self, num_bytes: int) -> None:
        # Private: the system would keep the contents of a shared mapping.
        self._mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        super().__init__(torch.frombuffer(self._mapping, dtype=torch.uint8))

    def release(self) -> None:
        if sys.platform == "linux":
            self._mapping.madvise(mmap.MADV_DONTNEED)
        else:  # other systems may keep the pages; only the zeros are guaranteed there
            self.buffer.zero_()

    def restore(self) -> None:
        """A dropped page reads as zeros."""


# Constants of cuda.h.
DEVICE, PINNED, READ_WRITE, MINIMUM = 1, 1, 3, 0


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocationFlags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _Allocation(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


SPARE = 2 << 30  # bytes that stay free for allocations outside torch: libraries, other processes


class DeviceRegion(BumpAllocator):
    """A reserved address range with GPU memory mapped behind it, or none.

    torch's caching allocator keeps unused memory, because allocating from the driver is slow. With a trainer in this
    process, the cache stays for it; without one, it is emptied when the region is released.
    """

    def __init__(self, device: torch.device, num_bytes: int, beside: bool) -> None:
        self.beside = beside
        torch.zeros(1, device=device)  # creates the CUDA context
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._where = _Location(DEVICE, self.device.index)
        self._what = _Allocation(type=PINNED, location=self._where)
        grain = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(self._what), ctypes.c_int(MINIMUM))
        self._size = ctypes.c_size_t(-(-num_bytes // grain.value) * grain.value)
        self._address = ctypes.c_uint64()
        zero = ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_ulonglong(0)
        _call("cuMemAddressReserve", ctypes.byref(self._address), self._size, *zero)
        self._memory = ctypes.c_ulonglong()
        self._map()
        super().__init__(torch.as_tensor(_Bytes(self._address.value, self._size.value), device=self.device))
        self.buffer.zero_()

    def _map(self) -> None:
        nothing = ctypes.c_ulonglong(0)
        _call("cuMemCreate", ctypes.byref(self._memory), self._size, ctypes.byref(self._what), nothing)
        _call("cuMemMap", self._address, self._size, ctypes.c_size_t(0), self._memory, nothing)
        access = _Access(self._where, READ_WRITE)
        _call("cuMemSetAccess", self._address, self._size, ctypes.byref(access), ctypes.c_size_t(1))

    def release(self) -> None:
        torch.cuda.synchronize(self.device)
        if not self.beside:
            torch.cuda.empty_cache()
        _call("cuMemUnmap", self._address, self._size)
        _call("cuMemRelease", self._memory)

    def restore(self) -> None:
        if torch.cuda.mem_get_info(self.device)[0] < self._size.value + SPARE:
            torch.cuda.empty_cache()
        self._map()
        self.buffer.zero_()


class _Bytes:
    """Memory that torch does not own, in the form that `torch.as_tensor` accepts."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def _call(name: str, *arguments: object) -> None:
    """Call a function of the CUDA driver; raises if it fails."""
    library = ctypes.CDLL("libcuda.so.1")
    function: Callable[..., int] = getattr(library, name)
    status = function(*arguments)
    if status:
        text = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'').decode()} (CUDA driver error {status})")
