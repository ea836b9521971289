"""Kernels of the language-model head by name, and whether they can run here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from burnish.errors import UserError, install_package
from burnish.models.kernels import lazy_triton
from burnish.models.kernels.head import TritonKernel
from burnish.models.logits import LogitKernel, TorchKernel

# name -> function of (use torch.compile) -> kernel; Triton kernels ignore the flag
HEAD_KERNELS: dict[str, Callable[[bool], LogitKernel]] = {
    "torch": TorchKernel,
    "triton": lambda compiled: TritonKernel(),
}
NEEDS_TRITON = frozenset({"triton"})


def check_head_kernel(name: str, device: torch.device, key: str) -> None:
    """Refuse a kernel that cannot run, before a model is loaded. On a CPU the key is reported to have no effect."""
    if name in NEEDS_TRITON and device.type != "cpu" and not lazy_triton.available():
        problem = f"Triton is not installed: {install_package('triton')}"
        raise UserError(problem, key=key, value=name, hint=f"{key}=torch")
