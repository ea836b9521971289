"""The run's state: saved whole, and taken up again as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.loop.run import Run
from burnish.remote import cache_folder, local_path
from burnish.table import Table
from burnish.train.checkpoint import damage, read_trainer

RESUME_MODES = Table("resume mode", key="trainer.resume_mode")
PATH_KEY = "trainer.resume_from_path"


def save(run: Run) -> None:
    """Weights, optimizers, schedules, KL controller, sampler position, seed and step."""
    cfg, policy, critic = run.cfg, run.policy, run.critic
    contents = cfg.actor_rollout_ref.actor.checkpoint.save_contents
    beside = cfg.actor_rollout_ref.actor.checkpoint.async_save or (
        critic is not None and cfg.critic.checkpoint.async_save
    )
    run.saving.wait()  # two checkpoints are never written at once
    roles = {"actor": policy.writer(contents, run.tokenizer, copy=beside)}
    if critic is not None:
        contents = cfg.critic.checkpoint.save_contents
        roles["critic"] = critic.writer(contents, copy=beside)
    state = {"step": run.step, "seed": run.seed, "sampler": run.sampler.state_dict(), "kl": run.kl.state_dict()}
    state["shaper"] = run.shaper.state_dict()
    if run.growth is not None:
        roles["data"], state["growth"] = run.growth.writer(), run.growth.state_dict()
    write = partial(_write, run, run.step, roles, state)
    run.saving.start(write) if beside else write()
    run.saved_step = run.step


def _write(run: Run, step: int, roles: dict[str, Callable[[Path], None]], state: dict[str, Any]) -> None:
    trainer = run.cfg.trainer
    run.checkpoints.save(step, roles, state)
    problem = run.mirror.send(run.checkpoints, step) if run.mirror is not None else None
    if problem is not None:
        run.loggers.note(problem)
    run.checkpoints.keep(trainer.max_actor_ckpt_to_keep, trainer.max_critic_ckpt_to_keep)


def resume(run: Run) -> None:
    """Go on where a checkpoint left off, if trainer.resume_mode finds one."""
    folder: Path | None = RESUME_MODES[run.cfg.trainer.resume_mode].load()(run)
    if folder is None:
        return
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
    run.step = run.saved_step = state["step"]
    run.notices.append(f"resumed from {folder}")
    if cfg.trainer.del_local_ckpt_after_load:
        run.notices.append(forget_local(run, folder))


def forget_local(run: Run, folder: Path) -> str:
    """Delete the local copy of a checkpoint that also lies elsewhere; what was done, in words."""
    if cache_folder() in folder.parents:
        shutil.rmtree(folder)
        return f"deleted {folder}, a copy of {run.cfg.trainer.resume_from_path}"
    if run.mirror is None or not run.mirror.holds(folder):
        return f"trainer.del_local_ckpt_after_load: kept {folder}, because there is no copy of it elsewhere"
    shutil.rmtree(folder)
    return f"deleted {folder}; its copy is in {run.mirror.place.url}"


@RESUME_MODES.add("disable")
def from_scratch(run: Run) -> None:
    """Start anew, whatever the run folder holds."""


@RESUME_MODES.add("auto")
def from_latest(run: Run) -> Path | None:
    """The newest whole checkpoint of the run folder, else of trainer.default_hdfs_dir, or a new start."""
    folder, damaged = run.checkpoints.latest_good()
    if folder is None and run.mirror is not None:
        folder, damaged_there = run.mirror.fetch_latest(run.checkpoints)
        damaged = [*damaged, *damaged_there]
    run.notices.extend(damaged)
    return folder


@RESUME_MODES.add("resume_path")
def from_path(run: Run) -> Path:
    """The checkpoint that the user names; anything wrong with it stops the run."""
    asked = run.cfg.trainer.resume_from_path
    folder = Path(local_path(asked, key=PATH_KEY)).expanduser()
    problem = damage(folder) if folder.is_dir() else "no such folder"
    if problem is not None:
        raise UserError(problem, key=PATH_KEY, value=asked, hint="trainer.resume_mode=auto")
    return folder
