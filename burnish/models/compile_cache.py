"""Where torch.compile keeps its programs, so that the next process need not compile them again."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path

import torch

from burnish.models.cpu.library import CannotCompileError, cache_folder, check_owner

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def keep_compiled_programs() -> None:
    """Keep them in the user's cache folder, per version of torch and Python, unless the environment names a folder.

    Inductor's default is in the system's temporary folder, which does not outlast a reboot or a container.
    """
    named = os.environ.get(VARIABLE)
    if named and not _is_default(Path(named)):
        return
    folder = cache_folder() / "compiled" / f"torch-{torch.__version__}-python-{platform.python_version()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(folder)
    except (OSError, CannotCompileError):
        return  # not ours to write: inductor's default holds
    os.environ[VARIABLE] = str(folder)


def _is_default(folder: Path) -> bool:
    """Inductor writes its default into the environment when it first asks for it."""
    return folder.name.startswith("torchinductor_") and folder.parent == Path(tempfile.gettempdir())
