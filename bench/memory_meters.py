"""Meters of bench/memory_oracle.py: how many bytes were alive at once, on a CPU and on a GPU."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that live, for a machine whose allocator does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor)
        return made

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, storage._cdata)

    def _gone(self, number: int) -> None:
        self.now -= self.seen.pop(number, 0)

    def reset(self) -> None:
        self.peak = self.now

    def peak_bytes(self) -> int:
        return self.peak


class Allocator:
    """What PyTorch has given out on a GPU, and what lies beside that. `context` are the bytes of a CUDA context: what
    the device itself says is of all processes together."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.mapped = self.most_mapped = 0  # bytes that the engine's cache took from the driver

    def __enter__(self) -> None:
        from burnish.rollout.engines.builtin.vmm import DeviceRegion

        take, release = DeviceRegion._map, DeviceRegion.release

        def taking(region: DeviceRegion) -> None:
            take(region)
            self.mapped += region._size.value
            self.most_mapped = max(self.most_mapped, self.mapped)

        def releasing(region: DeviceRegion) -> None:
            release(region)
            self.mapped -= region._size.value

        DeviceRegion._map, DeviceRegion.release = taking, releasing

    def __exit__(self, *error: object) -> None:
        """The process ends next."""

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self.most_mapped = self.mapped

    def peak_bytes(self) -> int:
        # Graphs hold their pools; between two replays nothing of these counts as given out.
        segments = torch.cuda.memory_snapshot()
        pools = sum(part["total_size"] - part["allocated_size"] for part in segments if any(part["segment_pool_id"]))
        return torch.cuda.max_memory_allocated() + pools + self.most_mapped + self.context


MOST = 3 << 30  # bytes that a CUDA context may take


def context_bytes() -> int:
    """Of a process that uses the GPU, while nobody else does: the context, and the libraries of a product."""
    numbers = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    (numbers @ numbers).sum().item()
    free, total = torch.cuda.mem_get_info()
    taken = total - free - torch.cuda.memory_reserved()
    if taken > MOST:
        raise SystemExit(f"{taken / 2**30:.1f} GiB of the GPU are taken: another process would be counted as ours")
    return taken
