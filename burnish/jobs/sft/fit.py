"""The loop of supervised fine-tuning: updates, and around them validation, checkpoints, logging and a clean stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from burnish.config import Loaded, Overrides, load
from burnish.config.tree import to_plain
from burnish.distributed import torchrun
from burnish.errors import UserError
from burnish.jobs.sft.build import build
from burnish.jobs.sft.memory import explaining_out_of_memory
from burnish.jobs.sft.run import SftRun
from burnish.log.console import say
from burnish.log.curves import draw_curves
from burnish.log.folder import RunFolder
from burnish.log.logger import RunInfo
from burnish.loop.finish import AlreadyFinished, Result, conclude, leave_model, stopped
from burnish.loop.restart import fault_metrics, restarting
from burnish.loop.state import PATH_KEY, reading
from burnish.loop.stop import naming_last_checkpoint, stop_request
from burnish.loop.watchdog import watching
from burnish.training.checkpoint import read_trainer
from burnish.training.external_checkpoints import ExternalCheckpoint
from burnish.training.packing import row_lengths
from burnish.training.update import loss_mask


def sft(
    overrides: Overrides = (),
    *,
    dataset: Sequence[Mapping[str, Any]] | None = None,
    val_dataset: Sequence[Mapping[str, Any]] | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
) -> Result:
    """Fine-tune a model on examples: `burnish sft` from Python.

    `dataset` and `val_dataset`, lists of rows, replace data.train_files and data.val_files.
    """
    rows = {"data.train_files": dataset, "data.val_files": val_dataset}
    given = [key for key, value in rows.items() if value is not None]
    loaded = load(overrides, config_path=config_path, config_name=config_name, job="sft", given=given)
    return sft_loaded(loaded, dataset, val_dataset)


def sft_loaded(
    loaded: Loaded,
    dataset: Sequence[Mapping[str, Any]] | None = None,
    val_dataset: Sequence[Mapping[str, Any]] | None = None,
) -> Result:
    """The same from a loaded config. Under torchrun, the first process runs the loop and the others serve it."""
    torchrun.serve_if_not_main()
    folder = RunFolder(loaded.cfg.trainer.default_local_dir)

    def build_run(current: Loaded) -> SftRun:
        return build(current.cfg, dataset, val_dataset, stop_if_finished=True)

    with folder.locked(), naming_last_checkpoint(folder.path):
        try:
            return restarting(loaded, build_run, go, lambda run: run)
        except AlreadyFinished as finished:
            say(finished.text)
            return finished.result


def go(run: SftRun, loaded: Loaded) -> Result:
    """Resume if there is a checkpoint, then train to the end."""
    resume(run)
    start(run, loaded)
    kill_workers = run.workers.kill_hung if run.workers.groups else None
    with (
        watching(run.clock, run.trainer.hang_timeout, run.folder.path, kill_workers=kill_workers),
        explaining_out_of_memory(run),
    ):
        return fit(run)


def start(run: SftRun, loaded: Loaded) -> None:
    trainer = run.cfg.trainer
    run.folder.finished.unlink(missing_ok=True)
    run.folder.describe(loaded.yaml(), device=run.model.device)
    config = to_plain(loaded.cfg)
    info = RunInfo(trainer.project_name, trainer.experiment_name, run.folder.path, config, run.total_steps)
    run.loggers.start(info, resume_step=run.step or None)
    for notice in [*loaded.notices, *run.notices]:
        run.loggers.note(notice)


def fit(run: SftRun) -> Result:
    """Train to the end, or until a signal; either way the state is saved."""
    result, started = Result(run.folder.path, run.step), time.monotonic()
    with stop_request() as stop:
        while run.step < run.total_steps and not stop.is_set():
            one_step(run, result)
        result.step, result.interrupted, result.signum = run.step, run.step < run.total_steps, stop.signum
        if result.interrupted and (run.saved_step != run.step or run.saving.failure is not None):
            save(run)
        run.saving.wait()
        run.saving.report(run.loggers.note)
    unsaved, result.seconds = run.saving.failure, time.monotonic() - started
    try:
        if not result.interrupted:
            leave_model(run, result, lambda folder: run.model.export(folder, run.tokenizer))
    except UserError:
        if unsaved is None:
            raise
    if result.interrupted and unsaved is None:
        run.loggers.note(f"{stopped(run, run.step)}. Run the same command to resume")
    if run.folder.metrics.exists():
        draw_curves(run.folder.metrics, run.folder.curves)
    if unsaved is not None:
        raise unsaved
    if not result.interrupted:
        conclude(run, result, run.total_steps)
    return result


def one_step(run: SftRun, result: Result) -> None:
    indices, epoch = run.sampler.next()
    with run.profiler.step(run.step + 1), run.clock("step"):
        batch = run.train_data.batch(indices)
        metrics = run.model.update(batch, run.step + 1)
    run.step += 1
    metrics |= {"training/global_step": float(run.step), "training/epoch": float(epoch)}
    metrics |= {"train/taught_tokens": float(loss_mask(batch).sum()), "train/tokens": float(row_lengths(batch).sum())}
    metrics |= fault_metrics(run) | run.workers.take_transport()
    if run.val_data is not None and run.is_due(run.cfg.trainer.test_freq):
        result.validation[run.step] = validate(run)
        metrics |= result.validation[run.step]
    timings = run.clock.take()
    metrics["perf/throughput"] = metrics["train/tokens"] / timings["timing_s/step"]
    result.metrics = metrics | timings
    # Before the checkpoint is sealed: a run killed in between must not lose this line when it resumes.
    if run.step == run.total_steps or run.step % run.cfg.trainer.log_freq == 0:
        run.loggers.log(run.step, result.metrics)
    elif run.step in result.validation:
        run.loggers.log(run.step, result.validation[run.step])
    if run.is_due(run.cfg.trainer.save_freq) or run.saving.failure is not None:
        with run.clock("save_checkpoint"):
            save(run)
    run.saving.report(run.loggers.note)


def validate(run: SftRun) -> dict[str, float]:
    """Mean cross entropy per trained token over all validation examples."""
    data, size = run.val_data, run.cfg.data.train_batch_size
    if data is None:
        return {}
    total = tokens = 0.0
    for start_row in range(0, len(data), size):
        with run.clock("testing"):  # each batch is progress, for the watchdog
            batch = data.batch(range(start_row, min(start_row + size, len(data))))
            mask = loss_mask(batch)
            total -= float((run.model.compute_log_probs(batch).flat.double() * mask).sum())
            tokens += float(mask.sum())
    return {"val/loss": total / max(tokens, 1.0)}


def save(run: SftRun) -> None:
    """Weights, optimizer, schedule, sampler position and step, in the same folders as a policy's."""
    config, model = run.cfg.trainer.checkpoint, run.model
    role = model.writer(config.save_contents, run.tokenizer, copy=config.async_save)
    state = {"step": run.step, "seed": run.cfg.trainer.seed, "sampler": run.sampler.state_dict()}
    if run.experiment is not None:
        state["experiment"] = run.experiment.state_dict()
    write = partial(_write, run, run.step, role, state)
    if config.async_save:
        for step in run.saving.start(run.step, write):
            run.loggers.note(f"skipped the checkpoint of step {step}: the disk is slower than the run")
    else:
        run.saving.now(run.step, write)
    run.saved_step = run.step


def _write(run: SftRun, step: int, role: Callable[[Path], None], state: dict[str, Any]) -> None:
    run.checkpoints.save(step, {"actor": role}, state)
    problem = run.mirror.upload(run.checkpoints, step) if run.mirror is not None else None
    if problem is not None:
        run.loggers.note(problem)
    run.checkpoints.keep(run.cfg.trainer.max_ckpt_to_keep, None)


def resume(run: SftRun) -> None:
    """Continue from the checkpoint that was found."""
    folder = run.resume_from
    if folder is None:
        return
    if isinstance(folder, ExternalCheckpoint):
        run.model.load(folder.actor, ["hf_model"], key=PATH_KEY)
        run.notices.append(f"loaded weights from {folder.actor} ({folder.system}); everything else starts anew")
        return
    state = read_trainer(folder)
    model, contents = run.model, run.cfg.trainer.checkpoint.load_contents
    key = "trainer.checkpoint.load_contents"
    model.load(folder / "actor", contents, key=key)
    with reading(folder):
        run.sampler.load_state_dict(state["sampler"])
    run.step = run.saved_step = state["step"]
    run.notices.append(f"resumed from {folder}")
