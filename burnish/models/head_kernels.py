"""The kernels of the fused head by name, and which of them can run here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from burnish.errors import UserError
from burnish.models.kernels import door
from burnish.models.kernels.head import TritonKernel
from burnish.models.logits import LogitKernel, TorchKernel

# name -> (compiled by torch.compile?) -> kernel; what is written in Triton is compiled anyway
HEAD_KERNELS: dict[str, Callable[[bool], LogitKernel]] = {
    "torch": TorchKernel,
    "triton": lambda compiled: TritonKernel(),
}
NEEDS_TRITON = frozenset({"triton"})


def check_head_kernel(name: str, device: torch.device, key: str) -> None:
    """Refuse before a model is loaded what could not run. On a CPU the key has no effect, and the run says so."""
    if name in NEEDS_TRITON and device.type != "cpu" and not door.available():
        raise UserError("needs Triton: pip install triton", key=key, value=name, hint=f"{key}=torch")
