"""Memory that is released and restored at the same addresses."""

from __future__ import annotations

import pytest
import torch

from burnish.rollout.engines.builtin import vmm
from burnish.rollout.engines.builtin.vmm import ALIGNMENT, SPARE, DeviceRegion, allocate_region

CPU = torch.device("cpu")
MIB = 1 << 20


def resident():
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_tensors_do_not_overlap():
    region = allocate_region(CPU, 3 * 1000, num_tensors=3)
    tensors = [region.carve((5, 50), torch.float32) for _ in range(3)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
        assert tensor.data_ptr() % ALIGNMENT == tensors[0].data_ptr() % ALIGNMENT == 0
    assert [int(tensor.sum()) for tensor in tensors] == [0, 250, 500]
    with pytest.raises(ValueError, match="do not fit"):
        region.carve((5, 50), torch.float32)


def test_restored_memory_is_zero_at_the_same_address():
    region = allocate_region(CPU, 4000)
    tensor = region.carve((1000,), torch.float32)
    address = tensor.data_ptr()
    tensor.fill_(3)
    region.release()
    region.restore()
    assert tensor.data_ptr() == address and torch.equal(tensor, torch.zeros(1000))
    tensor.fill_(4)
    assert int(tensor.sum()) == 4000


def test_released_memory_is_freed():
    region = allocate_region(CPU, 256 * MIB)
    tensor = region.carve((64 * MIB,), torch.float32)
    empty = resident()
    tensor.fill_(1)
    full = resident()
    region.release()
    assert full - empty > 200 * MIB and resident() - empty < 50 * MIB


class Device:
    """Stands in for the CUDA driver and records the calls."""

    def __init__(self, monkeypatch, free):
        self.calls = []
        monkeypatch.setattr(vmm, "_call", lambda name, *rest: self.calls.append(name))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100 * SPARE))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.calls.append("empty"))

    def region(self, size, beside):
        region = object.__new__(DeviceRegion)
        region.device, region.beside, region.buffer = torch.device("cuda", 0), beside, torch.ones(4)
        region._where, region._what = vmm._Location(), vmm._Allocation()
        region._address, region._memory = vmm.ctypes.c_uint64(), vmm.ctypes.c_ulonglong()
        region._size = vmm.ctypes.c_size_t(size)
        return region


@pytest.mark.parametrize("beside", [True, False])
def test_the_allocator_s_cache_stays_for_a_trainer(beside, monkeypatch):
    device = Device(monkeypatch, free=2 * SPARE)
    region = device.region(SPARE, beside)
    region.release()
    assert device.calls == [*([] if beside else ["empty"]), "cuMemUnmap", "cuMemRelease"]
    device.calls.clear()
    region.restore()
    assert device.calls == ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] and region.buffer.sum() == 0


def test_the_allocator_s_cache_is_emptied_if_memory_is_short(monkeypatch):
    device = Device(monkeypatch, free=2 * SPARE - 1)
    device.region(SPARE, beside=True).restore()
    assert device.calls[0] == "empty"
