"""Trackio: a database under trackio/ in the run folder or in TRACKIO_DIR; a Space where TRACKIO_SPACE_ID says so."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.log.console import say

if TYPE_CHECKING:
    from trackio import Run

    from burnish.log.logger import RunInfo


class TrackioLogger:
    def __init__(self) -> None:
        self.run: Run | None = None

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        trackio = _import(run.folder / "trackio")
        self.run = trackio.init(
            project=run.project,
            name=run.name,
            config=run.config,
            space_id=os.environ.get("TRACKIO_SPACE_ID"),
            resume="never" if resume_step is None else "allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run().log(dict(metrics), step=step)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        import trackio

        cells = [[str(cell) for cell in row] for row in rows]
        self._run().log({name: trackio.Table(columns=list(columns), data=cells)}, step=step)

    def note(self, text: str) -> None:
        import trackio

        self._run().alert(title="note", text=text, level=trackio.AlertLevel.INFO)

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None

    def _run(self) -> Run:
        if self.run is None:
            raise RuntimeError("the trackio logger is not started")
        return self.run


def _import(folder: Path) -> Any:
    """The library, writing into the folder. It reads TRACKIO_DIR once, when it is first imported."""
    asked = os.environ.get("TRACKIO_DIR")
    os.environ["TRACKIO_DIR"] = asked or str(folder)
    try:
        import trackio
    finally:
        if asked is None:
            del os.environ["TRACKIO_DIR"]
    if Path(trackio.TRACKIO_DIR) != Path(asked or folder):
        say(f"trackio was imported earlier in this process: it goes on writing to {trackio.TRACKIO_DIR}")
    return trackio
