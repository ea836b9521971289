"""Limits of a worker process: an environment without secrets, and limits on memory, files and time."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Mapping

from burnish.redact import looks_secret

# A worker scores one sample at a time, and there are several workers. One thread each also keeps libraries from
# starting a thread per core, whose stacks and buffers count as memory of the worker.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
# What libraries say when memory or threads run out.
_MEMORY_SIGNS = ("cannot allocate memory", "failed to map segment", "bad_alloc", "out of memory", "memoryerror")
_THREAD_SIGNS = ("pthread_create failed", "can't start new thread", "thread creation failed")
_FILE_BYTES = 256 * 2**20
IMPORT_MB = 8192  # of private writable memory beyond the limit, while the user's file is imported


def worker_environment(environment: Mapping[str, str], pass_env: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """The environment of a worker, and the names of the variables removed from it."""
    withheld = [name for name in environment if looks_secret(name) and name not in pass_env]
    kept = {name: value for name, value in environment.items() if name not in withheld}
    # Without a fixed hash seed, a function that iterates over a set could score differently after a resume.
    kept.setdefault("PYTHONHASHSEED", "0")
    kept.update({name: "1" for name in _THREADS if name not in pass_env})
    kept.setdefault("TOKENIZERS_PARALLELISM", "false")
    return kept, withheld


def limit_memory(memory_mb: int, *, final: bool = True) -> bool:
    """Limit this process's private memory. Returns False if the system does not enforce such a limit.

    Until the `final` limit, which cannot be raised again, libraries have IMPORT_MB more: a CUDA build of torch maps
    gigabytes of writable memory that it hardly touches. The final limit is on top of what is mapped by then.
    """
    if not sys.platform.startswith("linux"):
        return False  # macOS accepts the call and ignores the limit; Windows has no such call
    import resource

    _, ceiling = resource.getrlimit(resource.RLIMIT_DATA)
    mapped = mapped_mb() if final else None
    limit = (memory_mb + (IMPORT_MB if mapped is None else mapped)) * 2**20
    limit = limit if ceiling == resource.RLIM_INFINITY else min(limit, ceiling)
    # RLIMIT_DATA counts private writable memory. RLIMIT_AS would also count the address space that libraries reserve
    # and never touch, and importing torch alone would break it.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit if final else ceiling))
    return True


def mapped_mb() -> int | None:
    """Private writable memory that this process has mapped, in MiB; None if the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/status") as file:
        return next((int(line.split()[1]) // 1024 for line in file if line.startswith("VmData:")), None)
    return None


def limit_cause(error: BaseException, output: str, memory_mb: int) -> str | None:
    """How a worker's limits explain an error or what a library printed; None if they do not."""
    text = f"{type(error).__name__}: {error}\n{output}".lower()
    memory = f"reward.memory_mb={memory_mb}" if memory_mb else "no limit of reward.memory_mb is set"
    out_of_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or out_of_memory or any(sign in text for sign in _MEMORY_SIGNS):
        return f"out of memory: {memory}"
    if isinstance(error, KeyboardInterrupt):  # nobody can press Ctrl-C in a worker
        return f"OpenBLAS interrupts the process if it cannot start its threads, which need memory: {memory}"
    if any(sign in text for sign in _THREAD_SIGNS):
        return f"a thread could not be started; threads need memory ({memory}) and count as processes"
    return None


def forbid_core_dumps() -> None:
    """Disable core dumps: a crashing reward function must not fill the disk."""
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_files() -> None:
    """Limit the size of files that a worker writes, including its captured output."""
    with contextlib.suppress(ImportError):
        import resource

        _, ceiling = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = _FILE_BYTES if ceiling == resource.RLIM_INFINITY else min(_FILE_BYTES, ceiling)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def arm_alarm(seconds: float) -> None:
    """Let the kernel kill this process after `seconds`, even while C code holds the GIL; 0 disarms.

    The parent enforces the time limit; this is a fallback in case the parent was killed.
    """
    import signal

    if hasattr(signal, "alarm"):
        signal.alarm(int(seconds + 0.999))
