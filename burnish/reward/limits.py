"""Limits of a worker process: an environment without secrets, and limits on memory, files and time."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping

# Matches words at the end of a part of the name: HF_TOKEN matches, TOKENIZERS_PARALLELISM does not.
_SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(_|\d*$)|(^|_)(AUTH|PAT|PASS|PWD|COOKIE)(_|$)",
    re.IGNORECASE,
)
_NOT_SECRET = frozenset({"PWD", "OLDPWD"})
_FILE_BYTES = 256 * 2**20


def looks_secret(name: str) -> bool:
    """Whether the name of an environment variable suggests a key, token or password."""
    return name not in _NOT_SECRET and _SECRET_NAME.search(name) is not None


def worker_environment(environment: Mapping[str, str], pass_env: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """The environment of a worker, and the names of the variables removed from it."""
    withheld = [name for name in environment if looks_secret(name) and name not in pass_env]
    kept = {name: value for name, value in environment.items() if name not in withheld}
    # Without a fixed hash seed, a function that iterates over a set could score differently after a resume.
    kept.setdefault("PYTHONHASHSEED", "0")
    return kept, withheld


def limit_memory(memory_mb: int) -> bool:
    """Limit this process's private memory. Returns False if the system does not enforce such a limit."""
    if not sys.platform.startswith("linux"):
        return False  # macOS accepts the call and ignores the limit; Windows has no such call
    import resource

    limit = memory_mb * 2**20
    # RLIMIT_DATA counts private writable memory. RLIMIT_AS would also count the address space that libraries reserve
    # and never touch, and importing torch alone would break it.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return True


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
