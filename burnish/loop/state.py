"""The run's state: saved whole, and resumed exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from burnish.errors import UserError
from burnish.folders import remove_tree
from burnish.loop.experiment import Experiment, check_same_experiment
from burnish.loop.pending import pending_writer, read_pending
from burnish.loop.run import Run
from burnish.registry import Registry
from burnish.storage import cache_folder, local_path
from burnish.training.checkpoint import Checkpoints, damage, read_trainer
from burnish.training.external_checkpoints import ExternalCheckpoint, find_external_checkpoint
from burnish.training.mirror import Mirror

RESUME_MODES = Registry("resume mode", key="trainer.resume_mode")
PATH_KEY = "trainer.resume_from_path"


def save_if_due(run: Run, validation: Mapping[str, float] | None, last: bool) -> None:
    """Every save_freq steps and at the end; after the best validation so far; and when an earlier save failed."""
    recorder = run.recorder
    freq = recorder.trainer.save_freq
    due = (freq > 0 and (last or run.step % freq == 0)) or recorder.saving.failure is not None
    try:
        is_best = validation is not None and recorder.best.improves(run.step, validation)
    except UserError:
        save(run)  # the run ends here; its progress is kept
        raise
    if is_best:
        recorder.loggers.note(f"step {run.step} is the best so far: {recorder.best.by} is {recorder.best.value:.4g}")
    if due or is_best:
        with run.clock("save_checkpoint"), recorder.loggers.activity("saving a checkpoint"):
            save(run, required=is_best)
    recorder.saving.report(recorder.loggers.note)


def save(run: Run, *, required: bool = False) -> None:
    """Weights, optimizers, schedules, KL controller, sampler position, seed, step and the best step so far.

    A failed write is remembered in `recorder.saving`. A slow disk may skip a checkpoint, unless it is `required`.
    """
    recorder, learner, rollout = run.recorder, run.learner, run.rollout
    recorder.flush()
    in_background = recorder.actor_checkpoint.async_save or (
        learner.critic is not None and recorder.critic_checkpoint.async_save
    )
    writers: dict[str, Callable[[Path], None]] = {}
    position = run.schedule.position()
    state = {"step": run.step, "seed": run.seed, "sampler": position.sampler, "kl": learner.kl.state_dict()}
    state |= {"shaper": learner.shaper.state_dict(), "best": recorder.best.state_dict()}
    state |= {"version": rollout.version, "unsent": learner.num_unsynced}
    if recorder.experiment is not None:
        state["experiment"] = recorder.experiment.state_dict()
    if position.pending:
        writers["queue"] = pending_writer(position.pending, rollout.training_data()[0])
    if rollout.growth is not None:
        writers["data"], state["growth"] = rollout.growth.writer(), rollout.growth.state_dict()

    def write(copy: bool) -> Callable[[], None]:
        return partial(_write, run, run.step, {**_role_writers(run, copy), **writers}, state)

    saving = recorder.saving
    if in_background:
        for step in saving.start(run.step, write(copy=True), required=required):
            recorder.loggers.note(f"skipped the checkpoint of step {step}: the disk is slower than the run")
    else:
        saving.now(run.step, write(copy=False), required=required)
        if required and saving.failure is not None:
            saving.hold(run.step, write(copy=True))  # the next step will change the weights
    recorder.saved_step = run.step


def _role_writers(run: Run, copy: bool) -> dict[str, Callable[[Path], None]]:
    recorder, learner = run.recorder, run.learner
    contents = recorder.actor_checkpoint.save_contents
    writers = {"actor": learner.policy.writer(contents, recorder.tokenizer, copy=copy)}
    if learner.critic is not None:
        writers["critic"] = learner.critic.writer(recorder.critic_checkpoint.save_contents, copy=copy)
    return writers


def _write(run: Run, step: int, writers: dict[str, Callable[[Path], None]], state: dict[str, Any]) -> None:
    recorder = run.recorder
    trainer, checkpoints = recorder.trainer, recorder.checkpoints
    newest = max(step, recorder.saving.newest_step or 0)  # a retried one may be written after newer ones
    checkpoints.save(step, writers, state, best=state["best"].get("step"), newest=newest)
    run.rollout.journals.drop_until(step)
    problem = recorder.mirror.upload(checkpoints, step) if recorder.mirror is not None else None
    if problem is not None:
        recorder.loggers.note(problem)
    try:
        checkpoints.keep(trainer.max_actor_ckpt_to_keep, trainer.max_critic_ckpt_to_keep)
    except OSError as error:
        recorder.loggers.note(f"cannot remove old checkpoints: {error}")


def find_checkpoint(run: HasCheckpoints) -> Path | ExternalCheckpoint | None:
    """The checkpoint to resume from, by trainer.resume_mode. Refuses one of another experiment."""
    checkpoint: Path | ExternalCheckpoint | None = RESUME_MODES[run.trainer.resume_mode].load()(run)
    if isinstance(checkpoint, Path) and run.experiment is not None:
        saved = read_trainer(checkpoint).get("experiment")
        with reading(checkpoint):
            run.notices.extend(check_same_experiment(run.experiment, saved, f"the checkpoint {checkpoint}"))
    return checkpoint


def resume(run: Run) -> None:
    """Continue from the checkpoint that was found."""
    checkpoint = run.recorder.resume_from
    if isinstance(checkpoint, ExternalCheckpoint):
        _load_weights(run, checkpoint)
    elif checkpoint is not None:
        _load(run, checkpoint)


def _load(run: Run, folder: Path) -> None:
    recorder, learner, rollout = run.recorder, run.learner, run.rollout
    state = read_trainer(folder)
    contents, key = recorder.actor_checkpoint.load_contents, "actor_rollout_ref.actor.checkpoint.load_contents"
    learner.policy.load(folder / "actor", contents, key=key)
    if learner.critic is not None:
        contents, key = recorder.critic_checkpoint.load_contents, "critic.checkpoint.load_contents"
        learner.critic.load(folder / "critic", contents, key=key)
    with reading(folder):
        if rollout.growth is not None:
            rollout.growth.load(folder / "data", state.get("growth"))
        if rollout.sampler is not None:
            rollout.sampler.load_state_dict(state["sampler"])
        learner.kl.load_state_dict(state["kl"])
        learner.shaper.load_state_dict(state["shaper"])
        recorder.best.load_state_dict(state.get("best", {}))
    if folder.parent == recorder.checkpoints.folder:  # a kill may have come between the seal and the pointer
        recorder.checkpoints.mark_best(recorder.best.step)
    run.step = recorder.saved_step = state["step"]
    rollout.version, learner.num_unsynced = state.get("version", 0), state.get("unsent", 0)
    if rollout.train_data is not None:
        with reading(folder):
            run.schedule.load(read_pending(folder / "queue", rollout.train_data))
    recorder.notices.append(f"resumed from {folder}")
    if recorder.trainer.del_local_ckpt_after_load:
        recorder.notices.append(delete_local_copy(run, folder))


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """A checkpoint may come from elsewhere: values of other types than a run saves are the user's error, not ours."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        problem = f"the checkpoint {folder} has no state of such a run: {type(error).__name__}: {error}"
        raise UserError(problem, key=PATH_KEY, hint="another checkpoint, or trainer.resume_mode=disable") from error


def _load_weights(run: Run, checkpoint: ExternalCheckpoint) -> None:
    """Another system's checkpoint gives its weights only."""
    learner = run.learner
    learner.policy.load(checkpoint.actor, ["hf_model"], key=PATH_KEY)
    notice = (
        f"loaded weights from {checkpoint.actor} ({checkpoint.system}); optimizer, schedule, data and step start anew"
    )
    if learner.critic is not None and checkpoint.critic is not None:
        learner.critic.load(checkpoint.critic, ["hf_model"], key=PATH_KEY)
        notice += f"; critic weights are from {checkpoint.critic}"
    elif learner.critic is not None:
        notice += "; it has no critic weights: the critic starts from critic.model.path"
    run.recorder.notices.append(notice)


def delete_local_copy(run: Run, folder: Path) -> str:
    """Delete the local copy of a checkpoint that also exists elsewhere; returns a notice."""
    recorder = run.recorder
    if cache_folder().resolve() in folder.resolve().parents:
        remove_tree(folder)
        return f"deleted {folder}, a copy of {recorder.trainer.resume_from_path}"
    if recorder.mirror is None or not recorder.mirror.holds(folder):
        return f"trainer.del_local_ckpt_after_load: kept {folder}, because there is no copy of it elsewhere"
    remove_tree(folder)
    return f"deleted {folder}; its copy is in {recorder.mirror.remote.url}"


class HasCheckpoints(Protocol):
    """What a resume mode searches: a Recorder, or a supervised run."""

    checkpoints: Checkpoints
    experiment: Experiment | None
    mirror: Mirror | None
    notices: list[str]

    @property
    def trainer(self) -> Any: ...


@RESUME_MODES.register("disable")
def from_scratch(run: HasCheckpoints) -> None:
    """Start anew, whatever the run folder holds."""


@RESUME_MODES.register("auto")
def from_latest(run: HasCheckpoints) -> Path | ExternalCheckpoint | None:
    """The newest complete checkpoint of the run folder, else of trainer.default_hdfs_dir, else a new start."""
    folder, damaged = run.checkpoints.latest_good()
    if folder is None and run.mirror is not None:
        folder, damaged_there = run.mirror.fetch_latest(run.checkpoints)
        damaged = [*damaged, *damaged_there]
    steps = run.checkpoints.own_steps() if folder is None else []
    external = (
        find_external_checkpoint(run.checkpoints.path(steps[-1]), key="trainer.default_local_dir") if steps else None
    )
    if external is not None:
        return external
    run.notices.extend(damaged)
    return folder


@RESUME_MODES.register("resume_path")
def from_path(run: HasCheckpoints) -> Path | ExternalCheckpoint:
    """The checkpoint that the user names; a damaged one stops the run."""
    path = run.trainer.resume_from_path
    folder = Path(local_path(path, key=PATH_KEY)).expanduser()
    external = find_external_checkpoint(folder, key=PATH_KEY)
    if external is not None:
        return external
    problem = damage(folder) if folder.is_dir() else "no such folder"
    if problem is not None:
        good, _ = Checkpoints(folder.parent).latest_good()
        hint = "trainer.resume_mode=auto" if good is None else f"{PATH_KEY}={good}"
        raise UserError(problem, key=PATH_KEY, value=path, hint=hint)
    return folder
