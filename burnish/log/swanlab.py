"""SwanLab. SWANLAB_MODE (online, offline, local, disabled) and SWANLAB_LOG_DIR choose where the numbers go."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.log.folder import new_id, persistent_id
from burnish.redact import redact_command

if TYPE_CHECKING:
    import swanlab

    from burnish.log.logger import RunInfo


class SwanlabLogger:
    def __init__(self) -> None:
        self.run: swanlab.Run | None = None
        self._notes = 0

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        import swanlab

        settings = swanlab.Settings(
            # Do not capture the console: the progress bar would fill the log.
            terminal={"proxy_type": "none"},
            # The runtime probe records the command line; disable it if that contains a secret.
            probe={"runtime": redact_command(sys.argv) == sys.argv},
        )
        folder = os.environ.get("SWANLAB_LOG_DIR") or str(run.folder / "swanlab")
        os.makedirs(folder, exist_ok=True)
        self.run = swanlab.init(
            project=run.project,
            name=run.name,
            log_dir=folder,
            config=run.config,
            mode=os.environ.get("SWANLAB_MODE"),
            id=persistent_id(run.folder, "swanlab", new_id, resume=resume_step is not None),
            resume="allow",
            settings=settings,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run().log(dict(metrics), step=step)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """One text per row."""
        texts = ["\n\n".join(f"{column}: {value}" for column, value in zip(columns, row, strict=True)) for row in rows]
        if texts:
            self._run().log_text(key=name, data=texts, step=step)

    def note(self, text: str) -> None:
        self._run().log_text(key="notes", data=text, step=self._notes)
        self._notes += 1

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None

    def _run(self) -> swanlab.Run:
        if self.run is None:
            raise RuntimeError("the swanlab logger is not started")
        return self.run
