"""Region: memory that can be given back to the device and taken again at the same addresses.

A captured CUDA graph holds raw addresses. On a GPU the driver can take the memory behind a range of addresses away and
put other memory there (its virtual memory functions); on a CPU the system can do the same with the pages of a mapping.
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

ALIGNMENT = 256  # bytes, at which every tensor begins


class Region(Protocol):
    """Zeros at first, and zeros again after each `restore`."""

    def carve(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next tensor of it."""
        ...

    def release(self) -> None: ...

    def restore(self) -> None: ...


def region_of(device: torch.device, num_bytes: int, parts: int = 1, beside: bool = False) -> Region:
    """Room for so many bytes, in at most so many tensors. `beside`: a trainer takes turns with it in this process."""
    room = num_bytes + parts * ALIGNMENT
    return DeviceRegion(device, room, beside) if device.type == "cuda" else HostRegion(room)


class Carving:
    """Tensors one after the other out of one run of bytes."""

    def __init__(self, room: Tensor) -> None:
        self.room = room  # uint8
        self._used = 0

    def carve(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        start, num_bytes = self._used, math.prod(size) * dtype.itemsize
        if start + num_bytes > len(self.room):
            raise ValueError(f"{num_bytes} bytes more do not fit behind {start} of {len(self.room)}")
        self._used = -(-(start + num_bytes) // ALIGNMENT) * ALIGNMENT
        return self.room[start : start + num_bytes].view(dtype).view(size)


class HostRegion(Carving):
    """An anonymous mapping: pages are there once they are written, and gone when the system is told so."""

    def __init__(self, num_bytes: int) -> None:
        # A private one: of a shared one the system would keep the contents.
        self._mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        super().__init__(torch.frombuffer(self._mapping, dtype=torch.uint8))

    def release(self) -> None:
        if sys.platform == "linux":
            self._mapping.madvise(mmap.MADV_DONTNEED)
        else:  # other systems may keep the pages: zeros are all that is promised there
            self.room.zero_()

    def restore(self) -> None:
        """Reading a page that was let go gives zeros."""


# Of cuda.h.
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


SPARE = 2 << 30  # bytes that stay free for what asks the driver itself: libraries, other processes


class DeviceRegion(Carving):
    """A reserved range of addresses, with one piece of the GPU's memory behind it or none.

    Around it torch keeps memory that nobody uses, to give it out again without asking the driver, which takes long. A
    trainer in this process finds it there after every turn; in a process without one, it goes back to the device.
    """

    def __init__(self, device: torch.device, num_bytes: int, beside: bool) -> None:
        self.beside = beside
        torch.zeros(1, device=device)  # the driver's context is there from here on
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
        self._take()
        super().__init__(torch.as_tensor(_Bytes(self._address.value, self._size.value), device=self.device))
        self.room.zero_()

    def _take(self) -> None:
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
        self._take()
        self.room.zero_()


class _Bytes:
    """How torch is told of memory that it does not own."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def _call(name: str, *arguments: object) -> None:
    """A function of the driver; anything but success is an error."""
    library = ctypes.CDLL("libcuda.so.1")
    function: Callable[..., int] = getattr(library, name)
    status = function(*arguments)
    if status:
        text = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'').decode()} (CUDA driver error {status})")
