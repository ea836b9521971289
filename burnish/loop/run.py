"""Run: a training run, built once: what produces, what learns, what records, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.log.clock import Clock
from burnish.log.timeline import Span
from burnish.loop.learner import Learner
from burnish.loop.recorder import Recorder
from burnish.loop.rollout import Rollout
from burnish.loop.step import sync_weights
from burnish.profiling.run import RunProfiler

if TYPE_CHECKING:
    from burnish.loop.schedules import Schedule
    from burnish.training.device_memory import OutOfMemory


@dataclass
class Run:
    """`step` is the last finished step."""

    rollout: Rollout
    learner: Learner
    recorder: Recorder
    schedule: Schedule
    clock: Clock
    total_steps: int
    explain_out_of_memory: Callable[[str, OutOfMemory], UserError]
    close_workers: Callable[[], None] = lambda: None  # stops the processes that hold the roles
    kill_hung_workers: Callable[[str, float], str] | None = None  # the same when they hang; None: there are none
    take_worker_spans: Callable[[], dict[str, list[Span]]] = dict  # when other processes were busy, by their names
    take_transport: Callable[[], dict[str, float]] = dict  # metrics of what was sent to other processes
    profiler: RunProfiler = field(default_factory=RunProfiler)
    step: int = 0
    epoch: int = 0  # of the prompts trained on last

    @property
    def seed(self) -> int:
        return self.rollout.seed

    @property
    def finished(self) -> bool:
        """All steps are done; or all epochs, where those end the run."""
        return self.step >= self.total_steps or self.schedule.exhausted()

    def sync_weights(self) -> None:
        """The engine gets the policy's weights."""
        sync_weights(self.rollout, self.learner)

    def roles(self) -> dict[str, Any]:
        """The roles that exist, by name."""
        learner = self.learner
        reward_model = None if learner.reward_model is None else getattr(learner.reward_model, "model", None)
        roles = {
            "policy": learner.policy,
            "critic": learner.critic,
            "reference": learner.reference,
            "reward model": reward_model,
            "engine": self.rollout.engine,
        }
        return {name: role for name, role in roles.items() if role is not None}

    def close(self) -> None:
        self.recorder.saving.close()
        self.profiler.close()
        self.rollout.engine.close()
        self.close_workers()
        self.rollout.scorer.scorer.close()
        self.rollout.close_tools()
        if self.rollout.tracer is not None:
            self.rollout.tracer.close()
        self.schedule.close()  # its thread ends now that nobody answers it
        self.recorder.close()
