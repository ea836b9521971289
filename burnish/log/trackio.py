"""Trackio: a database under trackio/ in the run folder or in TRACKIO_DIR; or the Space in TRACKIO_SPACE_ID."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.log.console import say
from burnish.log.traces import Span

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


class TrackioTraces:
    """Conversations as traces of a run of its own beside the logger's."""

    def __init__(self) -> None:
        self.run: Run | None = None

    def start(self, run: RunInfo) -> None:
        trackio = _import(run.folder / "trackio")
        space = os.environ.get("TRACKIO_SPACE_ID")
        self.run = trackio.init(
            project=run.project, name=f"{run.name}-traces", space_id=space, resume="allow", embed=False
        )

    def write(self, episodes: Sequence[Span]) -> None:
        import trackio

        assert self.run is not None
        for episode in episodes:
            spans = [_span(f"{number}", child) for number, child in enumerate(episode.children)]
            response = episode.outputs.get("response")
            answer = {"role": "assistant", "content": str(episode.outputs if response is None else response)}
            messages = [*episode.inputs.get("messages", []), answer]
            metadata = {**episode.attributes, **episode.outputs}
            self.run.log({"episode": trackio.Trace(messages=messages, metadata=metadata, spans=spans)})

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None


def _span(id: str, span: Span) -> dict[str, Any]:
    kinds = {"generation": "generation", "tool": "tool"}
    return {
        "id": id,
        "name": span.name,
        "kind": kinds.get(span.kind, "span"),
        "start_time": span.start,
        "end_time": span.end,
        "input": span.inputs,
        "output": span.outputs,
        "metadata": dict(span.attributes),
    }


def _import(folder: Path) -> Any:
    """Import the library so that it writes to the folder: it reads TRACKIO_DIR once, at the first import."""
    configured = os.environ.get("TRACKIO_DIR")
    os.environ["TRACKIO_DIR"] = configured or str(folder)
    try:
        import trackio
    finally:
        if configured is None:
            del os.environ["TRACKIO_DIR"]
    if Path(trackio.TRACKIO_DIR) != Path(configured or folder):
        say(f"trackio was already imported in this process and keeps writing to {trackio.TRACKIO_DIR}")
    return trackio
