"""Which device and number format a run uses, and a guard against CPUs whose bf16 kills the process."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys

import torch

from burnish.errors import UserError
from burnish.sizing import DTYPE_NAMES, default_dtype

LIBRARIES = {"npu": "torch_npu"}  # accelerators that torch learns of from a library of their own
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in DTYPE_NAMES.items()}


def pick_device(name: str, key: str = "trainer.device") -> torch.device:
    """`auto` takes a CUDA device if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("this machine has no CUDA device", key=key, value=name, allowed="auto, cpu", hint=f"{key}=auto")
    if name in LIBRARIES and not _is_there(name):
        raise UserError(
            f"this machine has no such device, or its library is not installed: pip install {LIBRARIES[name]}",
            key=key,
            value=name,
            allowed="auto, cpu, cuda",
            hint=f"{key}=auto",
        )
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserError("no such device", key=key, value=name, allowed="auto, cpu, cuda", hint=f"{key}=auto") from error


def _is_there(name: str) -> bool:
    """Does torch know this accelerator, once the library that teaches it is imported?"""
    try:
        importlib.import_module(LIBRARIES[name])
    except ImportError:
        return False
    found = torch.accelerator.current_accelerator(check_available=True)
    return found is not None and found.type == name


def pick_dtype(name: str | None, device: torch.device, key: str) -> torch.dtype:
    """The named format; None means float32 on a CPU and bfloat16 on a GPU."""
    if name is None or name == "auto":
        return DTYPES[default_dtype(device.type == "cpu")]
    if name not in DTYPES:
        raise UserError("no such number format", key=key, value=name, allowed=DTYPES, hint=f"{key}=float32")
    dtype = DTYPES[name]
    if device.type == "cpu" and dtype is torch.bfloat16:
        make_cpu_bf16_safe()
    return dtype


@functools.cache
def make_cpu_bf16_safe() -> bool:
    """Turn off oneDNN if a bf16 product dies here; True if it had to be.

    Some virtual machines advertise AMX but trap its instructions, so that the first bf16 product ends the process with
    SIGILL. A child process finds out; a dead child costs nothing.
    """
    program = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    alive = subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
    if not alive:
        torch.backends.mkldnn.enabled = False
    return not alive
