"""The training loop: steps, and around them validation, checkpoints, logging and a clean stop."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

from burnish.batch import Batch
from burnish.log.clock import speed_metrics
from burnish.log.curves import draw_curves
from burnish.log.metrics import batch_metrics
from burnish.loop.export import export_policy
from burnish.loop.run import Run
from burnish.loop.state import save, save_if_due
from burnish.loop.stop import stop_request
from burnish.loop.validate import validate
from burnish.loop.watchdog import watching


@dataclass
class Result:
    """What a run leaves: its folder, how far it came, and its metrics."""

    folder: Path
    step: int
    metrics: dict[str, float] = field(default_factory=dict)  # of the last step
    validation: dict[int, dict[str, float]] = field(default_factory=dict)  # by step; 0 is before training
    interrupted: bool = False
    signum: int | None = None  # the signal that interrupted it

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 128 + (self.signum or signal.SIGINT) if self.interrupted else 0


def fit(run: Run) -> Result:
    """Train to the end, or until a signal; either way the state is saved."""
    timeout, folder = run.recorder.trainer.hang_timeout, run.recorder.folder.path
    with watching(run.clock, timeout, folder, kill_workers=run.kill_hung_workers):
        return _fit(run)


def _fit(run: Run) -> Result:
    recorder = run.recorder
    trainer, saving = recorder.trainer, recorder.saving
    result = Result(recorder.folder.path, run.step)
    run.sync_weights()
    if run.rollout.val_data is not None and (trainer.val_only or (trainer.val_before_train and run.step == 0)):
        _log_validation(run, result)
    if trainer.val_only:
        return result
    with stop_request() as stop:
        while not (run.finished or stop.is_set() or recorder.lease.runs_out()):
            _one_step(run, result)
        result.step, result.interrupted, result.signum = run.step, not run.finished, stop.signum
        if result.interrupted and (recorder.saved_step != run.step or saving.failure is not None):
            save(run)
        saving.finish()
        saving.report(recorder.loggers.note)
    if result.interrupted and saving.failure is None:
        cause = "" if stop.is_set() else " because the machine's lease ends"
        recorder.loggers.note(f"stopped after step {run.step}{cause}; checkpoint saved. Run the same command to resume")
    if not result.interrupted:
        export_policy(run)
    if recorder.folder.metrics.exists():
        draw_curves(recorder.folder.metrics, recorder.folder.curves)
    if saving.failure is not None:
        raise saving.failure
    return result


def _one_step(run: Run, result: Result) -> None:
    recorder = run.recorder
    trainer = recorder.trainer
    with run.clock("step"):
        scored, batch, metrics = run.schedule.step(run.step + 1)
    run.step, run.epoch = run.step + 1, scored.epoch
    for note in scored.notes:
        recorder.loggers.note(note)
    run.rollout.update_curriculum(batch)
    last = run.finished
    metrics |= {"training/global_step": float(run.step), "training/epoch": float(run.epoch)}
    metrics |= _step_metrics(run, batch)
    recorder.dump_trajectories(run.step, batch)
    if run.rollout.val_data is not None and trainer.test_freq > 0 and (last or run.step % trainer.test_freq == 0):
        with run.schedule.paused():
            result.validation[run.step] = validate(run)
        metrics |= result.validation[run.step]
    timings = run.clock.take()
    recorder.lease.measured(timings)
    tokens = {"prompt_tokens": len(batch["prompt_ids"].flat), "response_tokens": len(batch["responses"].flat)}
    result.metrics = metrics | timings | speed_metrics(timings, **tokens)
    # Before the checkpoint is sealed: a run killed in between must not lose this line when it resumes.
    if last or run.step % trainer.log_freq == 0:
        recorder.loggers.log(run.step, result.metrics)
    elif run.step in result.validation:
        recorder.loggers.log(run.step, result.validation[run.step])
    save_if_due(run, result.validation.get(run.step), last)


def _step_metrics(run: Run, batch: Batch) -> dict[str, float]:
    recorder, reward_model = run.recorder, run.learner.reward_model
    metrics = batch_metrics(
        batch, max_prompt_length=recorder.max_prompt_length, max_response_length=recorder.max_response_length
    )
    if reward_model is not None:
        model_metrics = reward_model.take_metrics()
        for warning in reward_model.new_warnings(model_metrics):
            recorder.loggers.note(warning)
        metrics |= model_metrics
    metrics |= recorder.fault_metrics()
    if recorder.log_engine_stats:
        metrics |= {f"engine/{name}": float(value) for name, value in run.rollout.engine.stats().items()}
    return metrics


def _log_validation(run: Run, result: Result) -> None:
    result.validation[run.step] = validate(run)
    run.recorder.best.check(result.validation[run.step])
    result.metrics = dict(result.validation[run.step])
    run.recorder.loggers.log(run.step, result.validation[run.step] | run.clock.take())
