"""Device and dtype of a run, and a check for CPUs on which bf16 products crash."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys

import torch

from burnish.errors import UserError, install_package
from burnish.sizing import DTYPE_NAMES, available_cores, default_dtype

LIBRARIES = {"npu": "torch_npu"}  # accelerators that need a plug-in library
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in DTYPE_NAMES.items()}


def pick_device(name: str, key: str = "trainer.device") -> torch.device:
    """`auto` is CUDA if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("no CUDA device found", key=key, value=name, allowed="auto, cpu", hint=f"{key}=auto")
    if name in LIBRARIES and not _is_available(name):
        raise UserError(
            f"no such device found, or its library is missing: {install_package(LIBRARIES[name])}",
            key=key,
            value=name,
            allowed="auto, cpu, cuda",
            hint=f"{key}=auto",
        )
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserError("no such device", key=key, value=name, allowed="auto, cpu, cuda", hint=f"{key}=auto") from error


@functools.cache
def limit_cpu_threads() -> str | None:
    """Keep torch within the cores that the process may use, unless OMP_NUM_THREADS is set; returns a notice if so.

    The number does not depend on the load, so that the same command computes the same bits beside other jobs. Passive
    waiting (burnish/__init__.py) keeps busy cores from slowing it down.
    """
    default = torch.get_num_threads()
    threads = min(default, available_cores())
    if os.environ.get("OMP_NUM_THREADS") or threads == default:
        return None
    torch.set_num_threads(threads)
    return f"CPU threads: {threads} of {default}, as many as the process may use cores (OMP_NUM_THREADS=N sets them)"


def restore_cpu_threads(threads: int) -> bool:
    """Use the number of threads of an earlier part of this run: with another, the last bits may differ.

    Returns whether that changed the number.
    """
    is_possible = not os.environ.get("OMP_NUM_THREADS") and 0 < threads <= available_cores()
    if not is_possible or threads == torch.get_num_threads():
        return False
    torch.set_num_threads(threads)
    return True


def _is_available(name: str) -> bool:
    """Whether torch finds this accelerator after its plug-in library is imported."""
    try:
        importlib.import_module(LIBRARIES[name])
    except ImportError:
        return False
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type == name


def pick_dtype(name: str | None, device: torch.device, key: str) -> torch.dtype:
    """The named dtype; None means float32 on a CPU and bfloat16 on a GPU."""
    if name is None or name == "auto":
        return DTYPES[default_dtype(device.type == "cpu")]
    if name not in DTYPES:
        raise UserError("unknown dtype", key=key, value=name, allowed=DTYPES, hint=f"{key}=float32")
    dtype = DTYPES[name]
    if device.type == "cpu" and dtype is torch.bfloat16:
        make_cpu_bf16_safe()
    return dtype


@functools.cache
def make_cpu_bf16_safe() -> bool:
    """Disable oneDNN if a bf16 product crashes on this machine; returns whether it was disabled.

    Some virtual machines advertise AMX but trap its instructions, so that the first bf16 product ends the process with
    SIGILL. The product is tried in a child process.
    """
    program = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    works = subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
    if not works:
        torch.backends.mkldnn.enabled = False
    return not works
