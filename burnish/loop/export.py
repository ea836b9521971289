"""trainer.export_dir: another folder for the trained model, checked before the run."""

from __future__ import annotations

import os
from pathlib import Path

from burnish.errors import UserError
from burnish.storage import disk_full

KEY = "trainer.export_dir"


def check_export_dir(path: str | None) -> None:
    """Create it before the run, so that a folder that cannot be written fails at once and not after hours."""
    if path is None:
        return
    folder = Path(path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{disk_full(error)}cannot write the policy there: {error.strerror or error}"
        raise UserError(problem, key=KEY, value=path, hint=f"{KEY}=/a/writable/folder") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("cannot write to the folder", key=KEY, value=path)
