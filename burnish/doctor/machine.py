"""Describe this machine: libraries, devices, memory, sandbox isolation, and which engines and loggers can run."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from burnish.config import TrainConfig
from burnish.config.adapters import wants_adapter
from burnish.doctor.isolation import promises
from burnish.sizing import cgroup_memory

PROBE_TIMEOUT = 60.0  # seconds


class Library(NamedTuple):
    """An optional library, and what needs it."""

    distribution: str
    module: str
    use: str
    extra: str | None = None  # burnish[extra] installs it


LIBRARIES = (
    Library("torch", "torch", "everything"),
    Library("transformers", "transformers", "models and tokenizers"),
    Library("peft", "peft", "LoRA adapters", "peft"),
    Library("bitsandbytes", "bitsandbytes", "4-bit weights", "bitsandbytes"),
    Library("datasets", "datasets", "datasets of the hub", "datasets"),
    Library("math-verify", "math_verify", "mathematical rewards", "math"),
    Library("fsspec", "fsspec", "remote files", "remote"),
    Library("ray", "ray", "several processes", "ray"),
    Library("vllm", "vllm", "the engine vllm", "vllm"),
    Library("sglang", "sglang", "the engine sglang", "sglang"),
    Library("liger-kernel", "liger_kernel", "model.use_liger", "liger"),
    Library("flash-attn", "flash_attn", "attn_implementation=flash_attention_2"),
    Library("tensorboard", "tensorboard", "the logger tensorboard", "tensorboard"),
    Library("wandb", "wandb", "the logger wandb", "wandb"),
    Library("mlflow-skinny", "mlflow", "the logger mlflow", "mlflow"),
    Library("swanlab", "swanlab", "the logger swanlab", "swanlab"),
    Library("trackio", "trackio", "the logger trackio", "trackio"),
)
# Engine or logger -> the module that it needs.
ENGINES = {"builtin": "torch", "hf": "transformers", "vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
LOGGERS = {
    "console": "rich",
    "file": "json",
    **{name: name for name in ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")},
}


@dataclass(frozen=True)
class Device:
    """One GPU, as the CUDA driver reports it."""

    name: str
    memory: int


@dataclass
class Machine:
    """What `doctor` reports about this machine."""

    python: str
    system: str
    cpus: int
    memory: int
    libraries: dict[str, str | None]  # distribution -> version, None: not installed
    devices: list[Device]
    bf16: str
    isolation: dict[str, str]  # who is isolated -> what that promises here
    free_disk: int
    shared_memory: int | None  # free bytes of /dev/shm
    engines: dict[str, bool] = field(default_factory=dict)
    loggers: dict[str, bool] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe_machine(folder: str = ".") -> Machine:
    """Probe this machine. Child processes do what needs a heavy library."""
    shm = Path("/dev/shm")
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpus=os.cpu_count() or 1,
        memory=total_memory(),
        libraries={library.distribution: version(library) for library in LIBRARIES},
        devices=cuda_devices(),
        bf16=cpu_bf16(),
        isolation=promises(),
        free_disk=shutil.disk_usage(folder).free,
        shared_memory=shutil.disk_usage(shm).free if shm.is_dir() else None,
        engines={name: installed(module) for name, module in ENGINES.items()},
        loggers={name: installed(module) for name, module in LOGGERS.items()},
    )


def missing_for(cfg: TrainConfig) -> list[tuple[str, Library]]:
    """Settings whose library is not installed here, each with that library."""
    model, whole = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref
    modules = {f"trainer.logger={name}": LOGGERS.get(name) for name in cfg.trainer.logger}
    modules[f"actor_rollout_ref.rollout.name={whole.rollout.name}"] = ENGINES.get(whole.rollout.name)
    if wants_adapter(model) or wants_adapter(cfg.critic.model):
        modules["LoRA"] = "peft"
    if model.load_in_4bit or cfg.critic.model.load_in_4bit:
        modules["load_in_4bit"] = "bitsandbytes"
    if model.use_liger:
        modules["actor_rollout_ref.model.use_liger=true"] = "liger_kernel"
    libraries = {library.module: library for library in LIBRARIES}
    return [(key, libraries[name]) for key, name in modules.items() if name in libraries and not installed(name)]


def installed(module: str) -> bool:
    """Whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def version(library: Library) -> str | None:
    if not installed(library.module):
        return None
    try:
        return importlib.metadata.version(library.distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def total_memory() -> int:
    """Of this machine, or what its container grants."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(installed, cgroup_memory() or installed)


def cuda_devices() -> list[Device]:
    """All GPUs, through the CUDA driver, so that torch is not loaded."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    devices = []
    for number in range(count.value):
        handle, name, size = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(handle), number)
        driver.cuDeviceGetName(name, len(name), handle)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
        devices.append(Device(name.value.decode(errors="replace"), size.value))
    return devices


def cpu_bf16(flags: str | None = None) -> str:
    """Whether bf16 matrix products work on this CPU; a child process tries one where the CPU advertises AMX."""
    if flags is None:
        info = Path("/proc/cpuinfo")
        flags = info.read_text(errors="replace") if info.exists() else ""
    if "amx_bf16" not in flags:
        return "safe: no AMX on this CPU"
    code = "from burnish.models.device import make_cpu_bf16_safe; print(make_cpu_bf16_safe())"
    try:
        probe = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PROBE_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    if probe.returncode != 0:
        return "unknown: the probe failed"
    if probe.stdout.strip() == "True":
        return "guarded: a bf16 product crashes the process on this CPU, so bf16 runs without oneDNN"
    return "safe: tested"
