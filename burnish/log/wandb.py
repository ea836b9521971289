"""Weights & Biases. The environment variables of wandb (WANDB_MODE, WANDB_DIR, WANDB_ENTITY, ...) work as usual."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.log.console import say
from burnish.log.folder import new_id, persistent_id
from burnish.redact import redact_command

if TYPE_CHECKING:
    import wandb

    from burnish.log.logger import RunInfo


class WandbLogger:
    def __init__(self) -> None:
        self.run: wandb.Run | None = None

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        import wandb

        resume = resume_step is not None
        settings = wandb.Settings(
            # Do not capture the console: the progress bar would fill the log.
            console="off",
            silent=True,
            # wandb's metadata contain the command line; disable them if it contains a secret.
            x_disable_meta=redact_command(sys.argv) != sys.argv,
        )
        self.run = wandb.init(
            project=run.project,
            name=run.name,
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            config=run.config,
            id=os.environ.get("WANDB_RUN_ID") or persistent_id(run.folder, "wandb", new_id, resume=resume),
            resume="allow" if resume and not _offline() else None,
            # Do not affect a run that the caller has open in this process.
            reinit="create_new",
            settings=settings,
        )
        if self.run.url:
            say(f"wandb: {self.run.url}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run().log(dict(metrics), step=step)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        import wandb

        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True)
        self._run().log({name: table}, step=step)

    def note(self, text: str) -> None:
        run = self._run()
        run.notes = f"{run.notes}\n{text}" if run.notes else text

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None

    def _run(self) -> wandb.Run:
        if self.run is None:
            raise RuntimeError("the wandb logger is not started")
        return self.run


def _offline() -> bool:
    """Offline runs cannot resume from the server; their parts are merged under one id when synced."""
    return os.environ.get("WANDB_MODE") in {"offline", "dryrun"}
