"""Facts of GPUs, as their vendors publish them, and machines that hold several.

Memory is what the driver reports. FLOP/s are dense bfloat16, without sparsity. `link` is what one GPU sends to others
of its machine, `network` what it sends to other machines; both in one direction, of the vendor's own servers where
there are any. Sources: the data sheets of NVIDIA H100, H200, H20, HGX B200, A100 (40 and 80 GB, SXM), L40S and A10, the
Ada architecture whitepaper (RTX 4090), AMD's data sheet of the Instinct MI300X, and the user guides of DGX H100, H200
and B200 (eight adapters of 400 Gb/s) and DGX A100 (eight of 200 Gb/s).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from burnish.errors import UserError
from burnish.sizing import GIB

MIB = 1 << 20
PCIE4, PCIE5 = 32e9, 64e9  # 16 lanes, bytes per second in one direction
NIC400, NIC200 = 50e9, 25e9  # an adapter of 400 or 200 Gb/s for each GPU
SHARED_NIC = 1.6e9  # an assumption where no vendor's server is meant: one adapter of 100 Gb/s for eight GPUs
MAX_GPUS = 65_536
FLAG = "--plan"


@dataclass(frozen=True)
class Gpu:
    """Peak numbers of one GPU."""

    name: str
    memory: int  # bytes
    bandwidth: float  # of that memory, bytes per second
    flops: float  # dense bf16, per second
    link: float  # bytes per second to other GPUs of the machine
    network: float  # bytes per second to other machines
    host: float  # bytes per second to CPU memory
    aliases: tuple[str, ...] = ()


GPUS = (
    Gpu("B200", 183_359 * MIB, 8.0e12, 2250e12, 900e9, NIC400, PCIE5),
    Gpu("H200", 143_771 * MIB, 4.8e12, 989e12, 450e9, NIC400, PCIE5),
    Gpu("H100", 81_559 * MIB, 3.35e12, 989e12, 450e9, NIC400, PCIE5),
    Gpu("H20", 97_871 * MIB, 4.0e12, 148e12, 450e9, NIC400, PCIE5),
    Gpu(
        "A100-40",
        40_960 * MIB,
        1.555e12,
        312e12,
        300e9,
        NIC200,
        PCIE4,
        ("A100-SXM4-40GB", "A100-PCIE-40GB", "A100-40GB"),
    ),
    Gpu("A100", 81_920 * MIB, 2.039e12, 312e12, 300e9, NIC200, PCIE4, ("A100-80", "A100-80GB")),
    Gpu("MI300X", 196_592 * MIB, 5.3e12, 1307e12, 448e9, NIC400, PCIE5),
    Gpu("L40S", 46_068 * MIB, 0.864e12, 362e12, PCIE4, SHARED_NIC, PCIE4),
    Gpu("A10", 23_028 * MIB, 0.6e12, 125e12, PCIE4, SHARED_NIC, PCIE4),
    Gpu("RTX 4090", 24_564 * MIB, 1.008e12, 165e12, PCIE4, SHARED_NIC, PCIE4, ("RTX4090", "4090")),
)
DEFAULT_GPU = "A100"
PER_MACHINE = 8


@dataclass(frozen=True)
class Cluster:
    """Equal machines."""

    gpu: Gpu
    machines: int
    per_machine: int

    @property
    def size(self) -> int:
        return self.machines * self.per_machine

    def text(self) -> str:
        machines = f"{self.machines} machines of {self.per_machine} each" if self.machines > 1 else "one machine"
        return f"{self.size} x {self.gpu.name} ({self.gpu.memory / GIB:.0f} GiB), {machines}"


def gpu_of_device(name: str | None) -> Gpu:
    """The known GPU that a device's name contains; the default for others."""
    found = None if name is None else next((gpu for gpu in GPUS if _is_in(gpu, name)), None)
    return found or next(gpu for gpu in GPUS if gpu.name == DEFAULT_GPU)


def _is_in(gpu: Gpu, device: str) -> bool:
    return any(re.search(rf"(?<![a-z0-9]){re.escape(name.lower())}(?![0-9])", device.lower()) for name in _names(gpu))


def _names(gpu: Gpu) -> tuple[str, ...]:
    return gpu.name, *gpu.aliases


def parse_cluster(text: str) -> Cluster:
    """`64xH100` (machines of eight), or `2x8xA100` (two machines of eight)."""
    match = re.fullmatch(r"\s*(?:(\d{1,9})\s*x\s*)?(\d{1,9})\s*x\s*([A-Za-z][\w .-]{0,40}|\d{4})\s*", text)
    if match is None:
        raise UserError("not a number of GPUs and their type", key=FLAG, value=text[:80], hint=f"{FLAG} 64xH100")
    gpu, count = _gpu_named(match[3]), int(match[2])
    if match[1] is not None:
        machines, per_machine = int(match[1]), count
    elif count <= PER_MACHINE:
        machines, per_machine = 1, count
    else:
        machines, per_machine = count // PER_MACHINE, PER_MACHINE
        if count % PER_MACHINE:
            problem = f"{count} GPUs are no whole number of machines of {PER_MACHINE}"
            hint = f"{FLAG} {machines}x{PER_MACHINE}x{gpu.name}"
            raise UserError(problem, key=FLAG, value=text, allowed="MACHINESxGPUSxTYPE for other machines", hint=hint)
    if not 1 <= machines * per_machine <= MAX_GPUS:
        allowed = f"1 to {MAX_GPUS:,} GPUs"
        problem, hint = "not a number of GPUs that can be planned", f"{FLAG} 64xH100"
        raise UserError(problem, key=FLAG, value=text, allowed=allowed, hint=hint)
    return Cluster(gpu, machines, per_machine)


def _gpu_named(name: str) -> Gpu:
    wanted = re.sub(r"[^a-z0-9]", "", name.lower())
    for gpu in GPUS:
        if wanted in (re.sub(r"[^a-z0-9]", "", known.lower()) for known in _names(gpu)):
            return gpu
    hint = f"{FLAG} 8xH100"
    raise UserError("unknown GPU", key=FLAG, value=name, allowed=[gpu.name for gpu in GPUS], hint=hint)
