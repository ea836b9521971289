"""C of this package, compiled for the machine when an engine first needs it, and kept for the next time."""

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
# Vectors and fused multiply-adds; nothing that would change how the whole process rounds.
FLAGS = ("-O3", "-march=native", "-fPIC", "-fopenmp", "-fno-trapping-math", "-fno-math-errno", "-ffp-contract=fast")
PATIENCE = 60.0  # seconds for the compiler


class CannotCompileError(Exception):
    """There is no compiler here, or it does not like the source."""


@cache
def compiled(name: str, *flags: str) -> ctypes.CDLL:
    """The library of this source, compiled once per machine; CannotCompileError where that fails."""
    source = FOLDER / f"{name}.c"
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CannotCompileError("there is no C compiler")
    texts = [path.read_text() for path in (source, *sorted(FOLDER.glob("*.h")))]
    facts = repr((texts, compiler, FLAGS, flags, _threads(), _machine()))
    known = hashlib.blake2b(facts.encode(), digest_size=12).hexdigest()
    library = _cache_folder() / f"{name}-{known}.so"
    try:
        if not library.exists():
            _compile(compiler, source, flags, library)
        return ctypes.CDLL(str(library))
    except OSError as error:  # a home that cannot be written, or whose files cannot be loaded
        raise CannotCompileError(f"{library.parent}: {error}") from error


def _compile(compiler: str, source: Path, flags: tuple[str, ...], library: Path) -> None:
    """Linked without the flags, which some compilers take as a wish to change the process; renamed when whole."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects, linked = f"{folder}/{source.stem}.o", f"{folder}/{source.stem}.so"
        for command in (
            (compiler, *FLAGS, *flags, "-c", str(source), "-o", objects),
            (compiler, "-shared", objects, _threads(), "-lm", "-o", linked),
        ):
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
            except (subprocess.SubprocessError, OSError) as error:
                said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
                raise CannotCompileError(f"{Path(compiler).name} failed: {said[0] if said else error}") from error
        os.replace(linked, library)


def _threads() -> str:
    """What to link for threads: torch's own OpenMP, if it can be found. Two pools would fight for the same cores."""
    loaded = Path("/proc/self/maps")
    lines = loaded.read_text().splitlines() if loaded.exists() else []
    return next((line.split()[-1] for line in lines if "libgomp" in line.rpartition("/")[2]), "-fopenmp")


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "burnish"


def _machine() -> str:
    """What -march=native depends on: a home may be shared by unlike machines."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
