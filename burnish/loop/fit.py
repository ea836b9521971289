"""The training loop: steps, and around them validation, checkpoints, logging and a clean stop."""

from __future__ import annotations

import time
from contextlib import nullcontext

from burnish.batch import Batch
from burnish.errors import UserError
from burnish.log.clock import speed_metrics
from burnish.log.curves import draw_curves
from burnish.log.metrics import batch_metrics, draft_metrics, engine_metrics, memory_metrics
from burnish.loop.finish import Result, conclude, leave_model, stopped
from burnish.loop.run import Run
from burnish.loop.state import save, save_if_due
from burnish.loop.stop import stop_request
from burnish.loop.validate import validate
from burnish.loop.watchdog import watching


def fit(run: Run) -> Result:
    """Train to the end, or until a signal; either way the state is saved."""
    timeout, folder = run.recorder.trainer.hang_timeout, run.recorder.folder.path
    with watching(run.clock, timeout, folder, kill_workers=run.kill_hung_workers):
        return _fit(run)


def _fit(run: Run) -> Result:
    recorder = run.recorder
    trainer, saving = recorder.trainer, recorder.saving
    result, started = Result(recorder.folder.path, run.step), time.monotonic()
    with recorder.loggers.activity("copying weights to the engine"):
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
        recorder.flush()
        saving.finish()
        saving.report(recorder.loggers.note)
    if result.interrupted and saving.failure is None:
        cause = "" if stop.is_set() else " because the machine's lease ends"
        recorder.loggers.note(f"{stopped(recorder, run.step, cause)}. Run the same command to resume")
    result.seconds = time.monotonic() - started
    try:
        if not result.interrupted:
            with recorder.loggers.activity("writing the model"):
                leave_model(recorder, result, lambda folder: run.learner.policy.export(folder, recorder.tokenizer))
    except UserError:
        if saving.failure is None:
            raise
    if recorder.folder.metrics.exists():
        with recorder.loggers.activity("drawing curves"):
            draw_curves(recorder.folder.metrics, recorder.folder.curves)
    if saving.failure is not None:
        raise saving.failure
    if not result.interrupted:
        conclude(recorder, result, run.total_steps)
    return result


def _one_step(run: Run, result: Result) -> None:
    recorder = run.recorder
    trainer = recorder.trainer
    is_first = run.step == result.step  # nothing was printed yet
    activity = recorder.loggers.activity("first step, may compile") if is_first else nullcontext()
    with run.profiler.step(run.step + 1), run.clock("step"), activity:
        scored, batch, metrics = run.schedule.step(run.step + 1)
    run.step, run.epoch = run.step + 1, scored.epoch
    for note in [*scored.notes, *run.rollout.update_curriculum(batch)]:
        recorder.loggers.note(note)
    last = run.finished
    metrics |= {"training/global_step": float(run.step), "training/epoch": float(run.epoch)}
    metrics |= _step_metrics(run, batch)
    recorder.dump_trajectories(run.step, batch)
    if run.rollout.val_data is not None and trainer.test_freq > 0 and (last or run.step % trainer.test_freq == 0):
        with run.schedule.paused():
            result.validation[run.step] = validate(run)
        metrics |= result.validation[run.step]
    timings = run.clock.take()
    recorder.record_step(run.step, batch, run.clock.take_spans(), run.total_steps, run.take_worker_spans())
    recorder.lease.measured(timings)
    tokens = {"prompt_tokens": len(batch["prompt_ids"].flat), "response_tokens": len(batch["responses"].flat)}
    result.metrics = metrics | timings | speed_metrics(timings, **tokens)
    # Before the checkpoint is sealed: a run killed in between must not lose this line when it resumes.
    if last or run.step % trainer.log_freq == 0:
        recorder.loggers.log(run.step, result.metrics)
        recorder.log_samples(run.step, batch)
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
    metrics |= recorder.fault_metrics() | memory_metrics() | run.take_transport()
    has_conversations = run.rollout.episode.uses_session
    if recorder.log_engine_stats or has_conversations or run.rollout.engine.capabilities.drafts:
        counts, min_prefill = run.rollout.take_engine_counts()
        metrics |= draft_metrics(counts)
        metrics |= engine_metrics(counts, min_prefill) if has_conversations else {}
        if recorder.log_engine_stats:
            metrics |= {f"engine/{name}": float(value) for name, value in counts.items()}
    return metrics


def _log_validation(run: Run, result: Result) -> None:
    result.validation[run.step] = validate(run)
    run.recorder.best.check(result.validation[run.step])
    result.metrics = dict(result.validation[run.step])
    run.recorder.loggers.log(run.step, result.validation[run.step] | run.clock.take())
