"""The trained policy as a Hugging Face folder, once the run is over."""

from __future__ import annotations

import os
from pathlib import Path

from burnish.errors import UserError
from burnish.loop.run import Run

KEY = "trainer.export_dir"


def check_export_dir(asked: str | None) -> None:
    """It is made before the run: that it cannot be written should not be found out after hours."""
    if asked is None:
        return
    folder = Path(asked).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(asked, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("the folder cannot be written to", key=KEY, value=asked)


def export_policy(run: Run) -> None:
    """Weights, config, generation config and tokenizer, where trainer.export_dir asks for them."""
    asked = run.cfg.trainer.export_dir
    if asked is None:
        return
    try:
        run.policy.export(Path(asked).expanduser(), run.tokenizer)
    except OSError as error:
        raise _cannot_write(asked, error) from error
    run.loggers.note(f"the policy is in {Path(asked).expanduser()}")


def _cannot_write(asked: str, error: OSError) -> UserError:
    problem = f"the policy cannot be written there: {error.strerror or error}"
    return UserError(problem, key=KEY, value=asked, hint=f"{KEY}=/a/folder/with/room")
