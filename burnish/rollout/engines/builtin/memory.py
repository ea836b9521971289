"""Free memory of a device."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int:
    """Free memory of a GPU; on a CPU, of the machine or its container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_system_free(), _container_free())


def _system_free() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # macOS reports no "available" memory; assume half of what is installed.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _container_free() -> int:
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        return max(0, int(limit.read_text()) - int(used.read_text()))
    return 1 << 62
