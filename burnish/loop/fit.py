"""The whole run: steps, and around them validating, saving, logging, and stopping well."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from burnish.batch import Batch
from burnish.log.clock import speed_metrics
from burnish.log.curves import draw_curves
from burnish.log.folder import dump_rollouts
from burnish.log.metrics import batch_metrics
from burnish.loop.export import export_policy
from burnish.loop.judge import judge_numbers
from burnish.loop.run import Run
from burnish.loop.state import save
from burnish.loop.step import train_step
from burnish.loop.validate import rollout_rows, validate


@dataclass
class Result:
    """What a run leaves: where it wrote, how far it came, and its numbers."""

    folder: Path
    step: int
    metrics: dict[str, float] = field(default_factory=dict)  # of the last step
    validation: dict[int, dict[str, float]] = field(default_factory=dict)  # by step; 0 is before training
    interrupted: bool = False


def fit(run: Run) -> Result:
    """Train to the end, or until Ctrl-C; either way the state that can be saved is saved."""
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
        result.step, result.interrupted = run.step, not run.finished
        if result.interrupted and run.saved_step != run.step:
            save(run)
        run.saving.wait()
    if result.interrupted:
        why = "" if stop.is_set() else ", because the machine's lease ends,"
        run.loggers.note(f"stopped after step {run.step}{why} and saved; the same command goes on from there")
    else:
        export_policy(run)
    _draw(run)
    return result


def _one_step(run: Run, result: Result) -> None:
    trainer = run.cfg.trainer
    with run.clock("step"):
        batch, metrics = train_step(run, run.next_prompts())
    run.step += 1
    run.learn_order(batch)
    last = run.finished
    metrics |= {"training/global_step": float(run.step), "training/epoch": float(run.sampler.epoch)}
    metrics |= _step_metrics(run, batch)
    if run.val_data is not None and trainer.test_freq > 0 and (last or run.step % trainer.test_freq == 0):
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
    if trainer.save_freq > 0 and (last or run.step % trainer.save_freq == 0):
        with run.clock("save_checkpoint"):
            save(run)


def _step_metrics(run: Run, batch: Batch) -> dict[str, float]:
    data = run.cfg.data
    metrics = batch_metrics(
        batch,
        max_prompt_length=data.max_prompt_length,
        max_response_length=run.cfg.actor_rollout_ref.rollout.response_length,
    )
    if run.filter is not None:
        metrics |= run.filter.take()
    metrics |= judge_numbers(run)
    problems = run.scorer.drain_problems()
    metrics["reward/failed"] = float(sum(problem.count for problem in problems))
    for problem in problems:
        first = f"first: sample {problem.first.sample} of {problem.first.uid}"
        run.loggers.note(f"reward problem, {problem.count} times: {problem.text} ({first})")
    if not run.cfg.actor_rollout_ref.rollout.disable_log_stats:
        metrics |= {f"engine/{name}": float(value) for name, value in run.engine.stats().items()}
    dump_rollouts(run.cfg.trainer.rollout_data_dir or run.folder.rollouts, run.step, rollout_rows(run, batch))
    return metrics


def _log_validation(run: Run, result: Result) -> None:
    result.validation[run.step] = validate(run)
    result.metrics = dict(result.validation[run.step])
    run.loggers.log(run.step, result.validation[run.step] | run.clock.take())


def _draw(run: Run) -> None:
    if run.folder.metrics.exists():
        draw_curves(run.folder.metrics, run.folder.curves)


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """Ctrl-C asks for a stop after the running step; a second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(signum: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # A signal may come while the console holds its lock; a plain write needs none.
        os.write(2, b"\nCtrl-C: finishing this step, then saving. Once more stops at once.\n")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
