"""Peak memory meters for bench/memory_oracle.py, on a CPU and on a GPU."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Bytes of all live tensors, for a CPU, whose allocator keeps no statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in tree_iter(output):
            if isinstance(tensor, torch.Tensor):
                self.track(tensor)
        return output

    def track(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, storage._cdata)

    def _freed(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)

    def reset(self) -> None:
        self.peak = self.now

    def peak_bytes(self) -> int:
        return self.peak


class Allocator:
    """GPU memory of this process: PyTorch's allocator, CUDA-graph pools, the engine's mapped cache, the CUDA context.

    `context` is the size of one CUDA context; the driver only reports the total of all processes.
    """

    def __init__(self, context: int) -> None:
        self.context = context
        self.mapped = self.max_mapped = 0  # bytes that the engine's cache mapped

    def __enter__(self) -> None:
        from burnish.rollout.engines.builtin.vmm import DeviceRegion

        take, release = DeviceRegion._map, DeviceRegion.release

        def tracked_take(region: DeviceRegion) -> None:
            take(region)
            self.mapped += region._size.value
            self.max_mapped = max(self.max_mapped, self.mapped)

        def tracked_release(region: DeviceRegion) -> None:
            release(region)
            self.mapped -= region._size.value

        DeviceRegion._map, DeviceRegion.release = tracked_take, tracked_release

    def __exit__(self, *error: object) -> None:
        """Nothing to restore: the process ends next."""

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self.max_mapped = self.mapped

    def peak_bytes(self) -> int:
        # Between replays, the memory pools of CUDA graphs do not count as allocated.
        segments = torch.cuda.memory_snapshot()
        pools = sum(part["total_size"] - part["allocated_size"] for part in segments if any(part["segment_pool_id"]))
        return torch.cuda.max_memory_allocated() + pools + self.max_mapped + self.context


MAX_CONTEXT = 3 << 30  # bytes


def context_bytes() -> int:
    """Size of a CUDA context with cuBLAS loaded; requires that no other process uses the GPU."""
    matrix = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    (matrix @ matrix).sum().item()
    free, total = torch.cuda.mem_get_info()
    taken = total - free - torch.cuda.memory_reserved()
    if taken > MAX_CONTEXT:
        raise SystemExit(f"{taken / 2**30:.1f} GiB of the GPU are in use: stop other processes first")
    return taken
