"""SftRun: a supervised fine-tuning run, built once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.data.examples import ExampleDataset
from burnish.data.sampler import PromptSampler
from burnish.log.clock import Clock
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers
from burnish.loop.experiment import Experiment
from burnish.loop.launch import LaunchedRoles
from burnish.loop.saving import Saving
from burnish.profiling.run import RunProfiler
from burnish.training.checkpoint import Checkpoints
from burnish.training.external_checkpoints import ExternalCheckpoint
from burnish.training.mirror import Mirror
from burnish.training.protocols import SftRole

if TYPE_CHECKING:
    from burnish.config.sft import SftConfig


@dataclass
class SftRun:
    """Data, model, and how far the run is. `step` is the last finished update."""

    cfg: SftConfig
    tokenizer: Any
    train_data: ExampleDataset
    sampler: PromptSampler
    val_data: ExampleDataset | None
    model: SftRole = field(init=False)  # loaded when it is known that the run can start
    loggers: Loggers
    folder: RunFolder
    checkpoints: Checkpoints
    total_steps: int
    mirror: Mirror | None = None  # copies of the checkpoints elsewhere
    experiment: Experiment | None = None  # what the settings and files of the run are
    resume_from: Path | ExternalCheckpoint | None = None
    saving: Saving = field(default_factory=Saving)
    workers: LaunchedRoles = field(default_factory=LaunchedRoles)  # empty where this process holds the model
    num_restarts: int = 0  # after workers died
    clock: Clock = field(default_factory=Clock)
    profiler: RunProfiler = field(default_factory=RunProfiler)
    notices: list[str] = field(default_factory=list)
    step: int = 0
    saved_step: int = 0

    @property
    def trainer(self) -> Any:
        return self.cfg.trainer

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def close(self) -> None:
        self.saving.close()
        self.profiler.close()
        self.workers.close()
        self.loggers.close()

    def is_due(self, every: int | str) -> bool:
        """Whether an action with this interval is due after the current step; everything is due after the last."""
        if self.step == self.total_steps:
            return True
        interval = self.steps_per_epoch if every == "after_each_epoch" else int(every)
        return interval > 0 and self.step % interval == 0
