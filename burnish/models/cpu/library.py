"""Compile the C sources of this package on first use, and cache the libraries in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
# Vector instructions and fused multiply-adds, but no flag that changes rounding for the whole process (-ffast-math).
FLAGS = ("-O3", "-march=native", "-fPIC", "-fopenmp", "-fno-trapping-math", "-fno-math-errno", "-ffp-contract=fast")
COMPILE_TIMEOUT = 60.0  # seconds


class CannotCompileError(Exception):
    """No C compiler was found, or compilation failed."""


@cache
def compiled(name: str, *flags: str) -> ctypes.CDLL:
    """Load the library of `name`.c, compiling it if it is not cached; raises CannotCompileError."""
    source = FOLDER / f"{name}.c"
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CannotCompileError("no C compiler found")
    texts = [path.read_text() for path in (source, *sorted(FOLDER.glob("*.h")))]
    inputs = repr((texts, compiler, FLAGS, flags, _openmp(), _machine()))
    digest = hashlib.blake2b(inputs.encode(), digest_size=12).hexdigest()
    library = cache_folder() / f"{name}-{digest}.so"
    try:
        if not library.exists():
            _compile(compiler, source, flags, library)
        check_owner(library, library.parent)
        return ctypes.CDLL(str(library))
    except OSError as error:  # the cache folder is not writable, or its files cannot be loaded
        raise CannotCompileError(f"{library.parent}: {error}") from error


def check_owner(*paths: Path) -> None:
    """Loading compiled code runs it: it must be this user's (or root's), and not everybody's to change."""
    for path in paths:
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o002:
            raise CannotCompileError(f"{path} belongs to another user, or everybody can write to it")


def _compile(compiler: str, source: Path, flags: tuple[str, ...], library: Path) -> None:
    """Compile and link in a temporary folder, then rename, so that no process loads a partial file.

    Linking takes no optimization flags: with some, compilers link start-up code that changes the process's rounding.
    """
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects, linked = f"{folder}/{source.stem}.o", f"{folder}/{source.stem}.so"
        for command in (
            (compiler, *FLAGS, *flags, "-c", str(source), "-o", objects),
            (compiler, "-shared", objects, _openmp(), "-lm", "-o", linked),
        ):
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT)
            except (subprocess.SubprocessError, OSError) as error:
                lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
                raise CannotCompileError(f"{Path(compiler).name} failed: {lines[0] if lines else error}") from error
        os.replace(linked, library)


def _openmp() -> str:
    """The OpenMP library to link: torch's own if it is loaded, because two thread pools would compete for the cores."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return next((line.split()[-1] for line in lines if "libgomp" in line.rpartition("/")[2]), "-fopenmp")


def cache_folder() -> Path:
    """Of compiled code, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "burnish"


def _machine() -> str:
    """What -march=native depends on: machines with different CPUs may share a cache folder."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
