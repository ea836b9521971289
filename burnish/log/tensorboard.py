"""TensorBoard: event files under tensorboard/ in the run folder, or in TENSORBOARD_DIR."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.log.jsonl import plain

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from burnish.log.logger import RunInfo


class TensorboardLogger:
    def __init__(self) -> None:
        self.writer: SummaryWriter | None = None
        self._notes = 0

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = os.environ.get("TENSORBOARD_DIR") or str(run.folder / "tensorboard")
        # purge_step hides the points of steps that will be repeated.
        purge = None if resume_step is None else resume_step + 1
        writer = SummaryWriter(log_dir=folder, purge_step=purge)
        self.writer = writer
        config = json.dumps(plain(run.config), indent=2, ensure_ascii=False)
        writer.add_text("config", f"```json\n{config}\n```", resume_step or 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        writer = self._writer()
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        self._writer().add_text(name, "\n".join(_markdown_row(line) for line in lines), step)

    def note(self, text: str) -> None:
        self._writer().add_text("notes", text, self._notes)
        self._notes += 1

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def _writer(self) -> SummaryWriter:
        if self.writer is None:
            raise RuntimeError("the tensorboard logger is not started")
        return self.writer


def _markdown_row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"
