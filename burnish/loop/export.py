"""Export of the trained policy as a Hugging Face folder, at the end of the run."""

from __future__ import annotations

import os
from pathlib import Path

from burnish.errors import UserError
from burnish.loop.run import Run

KEY = "trainer.export_dir"


def check_export_dir(path: str | None) -> None:
    """Create it before the run, so that a folder that cannot be written fails at once and not after hours."""
    if path is None:
        return
    folder = Path(path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("cannot write to the folder", key=KEY, value=path)


def export_policy(run: Run) -> None:
    """Weights, config, generation config and tokenizer, where trainer.export_dir asks for them."""
    folder = run.recorder.trainer.export_dir
    if folder is None:
        return
    try:
        run.learner.policy.export(Path(folder).expanduser(), run.recorder.tokenizer)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    run.recorder.loggers.note(f"exported the policy to {Path(folder).expanduser()}")


def _cannot_write(path: str, error: OSError) -> UserError:
    problem = f"cannot write the policy there: {error.strerror or error}"
    return UserError(problem, key=KEY, value=path, hint=f"{KEY}=/a/writable/folder")
