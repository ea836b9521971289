"""The whole run: steps, and around them validating, saving, logging, and stopping well."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

from burnish.batch import Batch
from burnish.log.clock import speed_metrics
from burnish.log.curves import draw_curves
from burnish.log.folder import dump_rollouts
from burnish.log.metrics import batch_metrics
from burnish.loop.export import export_policy
from burnish.loop.run import Run
from burnish.loop.state import save, save_where_due
from burnish.loop.stop import stop_request
from burnish.loop.validate import rollout_rows, validate
from burnish.loop.watchdog import watching
from burnish.reward.model_scorer import reward_model_metrics

UNDUMPED = 20  # steps whose responses wait for a disk to have room again


@dataclass
class Result:
    """What a run leaves: where it wrote, how far it came, and its numbers."""

    folder: Path
    step: int
    metrics: dict[str, float] = field(default_factory=dict)  # of the last step
    validation: dict[int, dict[str, float]] = field(default_factory=dict)  # by step; 0 is before training
    interrupted: bool = False
    signum: int | None = None  # the signal that interrupted it

    @property
    def status(self) -> int:
        """The exit status of a command that ends so."""
        return 128 + (self.signum or signal.SIGINT) if self.interrupted else 0


def fit(run: Run) -> Result:
    """Train to the end, or until a signal asks for a stop; either way the state that can be saved is saved."""
    with watching(run.clock, run.cfg.trainer.hang_timeout, run.folder.path, break_off=run.break_off):
        return _fit(run)


def _fit(run: Run) -> Result:
    result = Result(run.folder.path, run.step)
    run.send_weights()
    trainer = run.cfg.trainer
    if run.val_data is not None and (trainer.val_only or (trainer.val_before_train and run.step == 0)):
        _log_validation(run, result)
    if trainer.val_only:
        return result
    with stop_request() as stop:
        while not (run.finished or stop.is_set() or run.lease.runs_out()):
            _one_step(run, result)
        result.step, result.interrupted, result.signum = run.step, not run.finished, stop.signum
        if result.interrupted and (run.saved_step != run.step or run.saving.failure is not None):
            save(run)
        run.saving.finish()
        run.saving.tell(run.loggers.note)
    unsaved = run.saving.failure
    if result.interrupted and unsaved is None:
        why = "" if stop.is_set() else ", because the machine's lease ends,"
        run.loggers.note(f"stopped after step {run.step}{why} and saved; the same command goes on from there")
    if not result.interrupted:
        export_policy(run)
    _draw(run)
    if unsaved is not None:
        raise unsaved
    return result


def _one_step(run: Run, result: Result) -> None:
    trainer = run.cfg.trainer
    with run.clock("step"):
        batch, metrics = run.schedule.step(run)
    run.step += 1
    run.learn_order(batch)
    last = run.finished
    metrics |= {"training/global_step": float(run.step), "training/epoch": float(run.epoch)}
    metrics |= _step_metrics(run, batch)
    if run.val_data is not None and trainer.test_freq > 0 and (last or run.step % trainer.test_freq == 0):
        with run.schedule.paused(run):
            result.validation[run.step] = validate(run)
        metrics |= result.validation[run.step]
    timings = run.clock.take()
    run.lease.measured(timings)
    tokens = {"prompt_tokens": len(batch["prompt_ids"].flat), "response_tokens": len(batch["responses"].flat)}
    result.metrics = metrics | timings | speed_metrics(timings, **tokens)
    # Before the checkpoint is sealed: a run killed in between must not lose this line when it goes on.
    if last or run.step % trainer.log_freq == 0:
        run.loggers.log(run.step, result.metrics)
    elif run.step in result.validation:
        run.loggers.log(run.step, result.validation[run.step])
    save_where_due(run, result.validation.get(run.step), last)


def _step_metrics(run: Run, batch: Batch) -> dict[str, float]:
    data = run.cfg.data
    metrics = batch_metrics(
        batch,
        max_prompt_length=data.max_prompt_length,
        max_response_length=run.cfg.actor_rollout_ref.rollout.response_length,
    )
    metrics |= reward_model_metrics(run) | run.mishaps()
    if not run.cfg.actor_rollout_ref.rollout.disable_log_stats:
        metrics |= {f"engine/{name}": float(value) for name, value in run.engine.stats().items()}
    _dump(run, batch)
    return metrics


def _dump(run: Run, batch: Batch) -> None:
    """Responses to read later. Those that the disk does not take wait for the next step, a few steps long."""
    folder = run.cfg.trainer.rollout_data_dir or run.folder.rollouts
    run.undumped[run.step] = rollout_rows(run, batch)
    try:
        for step in list(run.undumped):
            dump_rollouts(folder, step, run.undumped[step])
            del run.undumped[step]
    except OSError as error:
        run.loggers.note(f"the responses of step {run.step} could not be written to {folder} yet: {error}")
    while len(run.undumped) > UNDUMPED:
        step = min(run.undumped)
        del run.undumped[step]
        run.loggers.note(f"the responses of step {step} are given up")


def _log_validation(run: Run, result: Result) -> None:
    result.validation[run.step] = validate(run)
    run.best.check(result.validation[run.step])
    result.metrics = dict(result.validation[run.step])
    run.loggers.log(run.step, result.validation[run.step] | run.clock.take())


def _draw(run: Run) -> None:
    if run.folder.metrics.exists():
        draw_curves(run.folder.metrics, run.folder.curves)
