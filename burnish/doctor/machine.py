"""What this machine has: libraries, devices, memory, isolation; and which engines and loggers would run here."""

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

PROBE_SECONDS = 60.0


class Library(NamedTuple):
    """A library by its names as a distribution and as a module, and what it is there for."""

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
# What needs a library beside torch: its module.
ENGINES = {"builtin": "torch", "hf": "transformers", "vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
LOGGERS = {
    "console": "rich",
    "file": "json",
    **{name: name for name in ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")},
}


@dataclass(frozen=True)
class Device:
    """One GPU, as the CUDA driver describes it."""

    name: str
    memory: int


@dataclass
class Machine:
    """Everything that `doctor` says about where it runs."""

    python: str
    system: str
    cpus: int
    memory: int
    libraries: dict[str, str | None]  # distribution -> version, None if it is not installed
    devices: list[Device]
    bf16: str
    isolation: str
    free_disk: int
    shared_memory: int | None  # free bytes of /dev/shm
    engines: dict[str, bool] = field(default_factory=dict)
    loggers: dict[str, bool] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def look(folder: str = ".") -> Machine:
    """Look at this machine. Starts probes in processes of their own; imports no heavy library."""
    shm = Path("/dev/shm")
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpus=os.cpu_count() or 1,
        memory=total_memory(),
        libraries={library.distribution: version(library) for library in LIBRARIES},
        devices=cuda_devices(),
        bf16=cpu_bf16(),
        isolation=_isolation(),
        free_disk=shutil.disk_usage(folder).free,
        shared_memory=shutil.disk_usage(shm).free if shm.is_dir() else None,
        engines={name: installed(module) for name, module in ENGINES.items()},
        loggers={name: installed(module) for name, module in LOGGERS.items()},
    )


def missing_for(cfg: TrainConfig) -> list[tuple[str, Library]]:
    """What a run asks for that is not installed here: the setting, and the library it needs."""
    model, whole = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref
    asked = {f"trainer.logger={name}": LOGGERS.get(name) for name in cfg.trainer.logger}
    asked[f"actor_rollout_ref.rollout.name={whole.rollout.name}"] = ENGINES.get(whole.rollout.name)
    if wants_adapter(model) or wants_adapter(cfg.critic.model):
        asked["LoRA"] = "peft"
    if model.load_in_4bit or cfg.critic.model.load_in_4bit:
        asked["load_in_4bit"] = "bitsandbytes"
    if model.use_liger:
        asked["actor_rollout_ref.model.use_liger=true"] = "liger_kernel"
    known = {library.module: library for library in LIBRARIES}
    return [(setting, known[name]) for setting, name in asked.items() if name in known and not installed(name)]


def installed(module: str) -> bool:
    """Can it be imported? Found, not imported."""
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
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cuda_devices() -> list[Device]:
    """Ask the driver itself: torch need not be loaded for that."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found = []
    for number in range(count.value):
        handle, name, size = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(handle), number)
        driver.cuDeviceGetName(name, len(name), handle)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
        found.append(Device(name.value.decode(errors="replace"), size.value))
    return found


def cpu_bf16(flags: str | None = None) -> str:
    """Whether bf16 products on this CPU are safe; a child process tries where the CPU claims to have AMX."""
    if flags is None:
        info = Path("/proc/cpuinfo")
        flags = info.read_text(errors="replace") if info.exists() else ""
    if "amx_bf16" not in flags:
        return "safe: this CPU claims no AMX"
    code = "from burnish.models.device import make_cpu_bf16_safe; print(make_cpu_bf16_safe())"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    if done.returncode != 0:
        return "unknown: torch could not be asked"
    if done.stdout.strip() == "True":
        return "guarded: a bf16 product ends the process here, so oneDNN is turned off where bf16 is used"
    return "safe: tried"


def _isolation() -> str:
    from burnish.reward.sandbox.namespaces import isolation

    return isolation().sentence
