"""The run's state: saved whole, and taken up again as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.loop.run import Run
from burnish.loop.waiting import read_waiting, waiting_writer
from burnish.registry import Registry
from burnish.storage import cache_folder, local_path
from burnish.training.checkpoint import Checkpoints, damage, read_trainer
from burnish.training.external_checkpoints import ExternalCheckpoint, find_external_checkpoint

RESUME_MODES = Registry("resume mode", key="trainer.resume_mode")
PATH_KEY = "trainer.resume_from_path"


def save_where_due(run: Run, validated: Mapping[str, float] | None, last: bool) -> None:
    """Every save_freq steps and at the end; where a validation is the best so far; and where the disk refused."""
    freq = run.cfg.trainer.save_freq
    due = (freq > 0 and (last or run.step % freq == 0)) or run.saving.failure is not None
    try:
        best = validated is not None and run.best.improves(run.step, validated)
    except UserError:
        save(run)  # the run ends here; what it has done is kept
        raise
    if best:
        run.loggers.note(f"step {run.step} is the best so far: {run.best.by} is {run.best.value:.4g}")
    if due or best:
        with run.clock("save_checkpoint"):
            save(run, needed=best)
    run.saving.tell(run.loggers.note)


def save(run: Run, *, needed: bool = False) -> None:
    """Weights, optimizers, schedules, KL controller, sampler position, seed, step and the best step so far.

    A disk that refuses is remembered in `run.saving`. One that is slow may cost a checkpoint, unless it is `needed`.
    """
    cfg = run.cfg
    beside = cfg.actor_rollout_ref.actor.checkpoint.async_save or (
        run.critic is not None and cfg.critic.checkpoint.async_save
    )
    roles: dict[str, Callable[[Path], None]] = {}
    ahead = run.schedule.ahead(run)
    state = {"step": run.step, "seed": run.seed, "sampler": ahead.position, "kl": run.kl.state_dict()}
    state |= {"shaper": run.shaper.state_dict(), "best": run.best.state_dict()}
    state |= {"version": run.version, "unsent": run.unsent}
    if ahead.waiting:
        roles["queue"] = waiting_writer(ahead.waiting, run.train_data)
    if run.growth is not None:
        roles["data"], state["growth"] = run.growth.writer(), run.growth.state_dict()

    def writing(copy: bool) -> Callable[[], None]:
        return partial(_write, run, run.step, {**_role_writers(run, copy), **roles}, state)

    if beside:
        for step in run.saving.start(run.step, writing(copy=True), needed=needed):
            run.loggers.note(f"the checkpoint of step {step} is left out: the disk is slower than the run")
    else:
        run.saving.now(run.step, writing(copy=False), needed=needed)
        if needed and run.saving.failure is not None:
            run.saving.hold(run.step, writing(copy=True))  # the next step will change the weights
    run.saved_step = run.step


def _role_writers(run: Run, copy: bool) -> dict[str, Callable[[Path], None]]:
    actor, critic = run.cfg.actor_rollout_ref.actor.checkpoint, run.cfg.critic.checkpoint
    writers = {"actor": run.policy.writer(actor.save_contents, run.tokenizer, copy=copy)}
    if run.critic is not None:
        writers["critic"] = run.critic.writer(critic.save_contents, copy=copy)
    return writers


def _write(run: Run, step: int, roles: dict[str, Callable[[Path], None]], state: dict[str, Any]) -> None:
    trainer = run.cfg.trainer
    newest = max(step, run.saving.sealed or 0)  # one that the disk refused at first may come after newer ones
    run.checkpoints.save(step, roles, state, best=state["best"].get("step"), newest=newest)
    problem = run.mirror.upload(run.checkpoints, step) if run.mirror is not None else None
    if problem is not None:
        run.loggers.note(problem)
    try:
        run.checkpoints.keep(trainer.max_actor_ckpt_to_keep, trainer.max_critic_ckpt_to_keep)
    except OSError as error:
        run.loggers.note(f"old checkpoints could not be removed: {error}")


def resume(run: Run) -> None:
    """Go on where a checkpoint left off, if trainer.resume_mode finds one."""
    found: Path | ExternalCheckpoint | None = RESUME_MODES[run.cfg.trainer.resume_mode].load()(run)
    if isinstance(found, ExternalCheckpoint):
        _take_weights(run, found)
    elif found is not None:
        _take_up(run, found)


def _take_up(run: Run, folder: Path) -> None:
    cfg, policy, critic = run.cfg, run.policy, run.critic
    state = read_trainer(folder)
    contents, key = cfg.actor_rollout_ref.actor.checkpoint.load_contents, "actor_rollout_ref.actor.checkpoint"
    policy.load(folder / "actor", contents, key=f"{key}.load_contents")
    if critic is not None:
        contents, key = cfg.critic.checkpoint.load_contents, "critic.checkpoint.load_contents"
        critic.load(folder / "critic", contents, key=key)
    if run.growth is not None:
        run.growth.load(folder / "data", state.get("growth"))
    if run.sampler is not None:
        run.sampler.load_state_dict(state["sampler"])
    run.kl.load_state_dict(state["kl"])
    run.shaper.load_state_dict(state["shaper"])
    run.best.load_state_dict(state.get("best", {}))
    if folder.parent == run.checkpoints.folder:  # a kill may have come between the seal and the pointer
        run.checkpoints.mark_best(run.best.step)
    run.step = run.saved_step = state["step"]
    run.version, run.unsent = state.get("version", 0), state.get("unsent", 0)
    if run.train_data is not None:
        run.schedule.load(read_waiting(folder / "queue", run.train_data))
    run.notices.append(f"resumed from {folder}")
    if cfg.trainer.del_local_ckpt_after_load:
        run.notices.append(forget_local(run, folder))


def _take_weights(run: Run, found: ExternalCheckpoint) -> None:
    """Another system's weights are all that can be read of its state."""
    run.policy.load(found.actor, ["hf_model"], key=PATH_KEY)
    said = f"took the weights from {found.actor} ({found.system}); optimizer, schedule, data and step start anew"
    if run.critic is not None and found.critic is not None:
        run.critic.load(found.critic, ["hf_model"], key=PATH_KEY)
        said += f"; the critic's are from {found.critic}"
    elif run.critic is not None:
        said += "; there are no weights for the critic, which starts as critic.model.path has it"
    run.notices.append(said)


def forget_local(run: Run, folder: Path) -> str:
    """Delete the local copy of a checkpoint that also lies elsewhere; what was done, in words."""
    if cache_folder() in folder.parents:
        shutil.rmtree(folder)
        return f"deleted {folder}, a copy of {run.cfg.trainer.resume_from_path}"
    if run.mirror is None or not run.mirror.holds(folder):
        return f"trainer.del_local_ckpt_after_load: kept {folder}, because there is no copy of it elsewhere"
    shutil.rmtree(folder)
    return f"deleted {folder}; its copy is in {run.mirror.parallel.url}"


@RESUME_MODES.register("disable")
def from_scratch(run: Run) -> None:
    """Start anew, whatever the run folder holds."""


@RESUME_MODES.register("auto")
def from_latest(run: Run) -> Path | ExternalCheckpoint | None:
    """The newest whole checkpoint of the run folder, else of trainer.default_hdfs_dir, or a new start."""
    folder, damaged = run.checkpoints.latest_good()
    if folder is None and run.mirror is not None:
        folder, damaged_there = run.mirror.fetch_latest(run.checkpoints)
        damaged = [*damaged, *damaged_there]
    steps = run.checkpoints.own_steps() if folder is None else []
    foreign = (
        find_external_checkpoint(run.checkpoints.path(steps[-1]), key="trainer.default_local_dir") if steps else None
    )
    if foreign is not None:
        return foreign
    run.notices.extend(damaged)
    return folder


@RESUME_MODES.register("resume_path")
def from_path(run: Run) -> Path | ExternalCheckpoint:
    """The checkpoint that the user names; anything wrong with it stops the run."""
    asked = run.cfg.trainer.resume_from_path
    folder = Path(local_path(asked, key=PATH_KEY)).expanduser()
    foreign = find_external_checkpoint(folder, key=PATH_KEY)
    if foreign is not None:
        return foreign
    problem = damage(folder) if folder.is_dir() else "no such folder"
    if problem is not None:
        whole, _ = Checkpoints(folder.parent).latest_good()
        hint = "trainer.resume_mode=auto" if whole is None else f"{PATH_KEY}={whole}"
        raise UserError(problem, key=PATH_KEY, value=asked, hint=hint)
    return folder
