"""The run's state: saved whole, and taken up again as if nothing had happened."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from burnish.errors import UserError
from burnish.loop.run import Run
from burnish.table import Table
from burnish.train.checkpoint import damage, read_trainer
from burnish.train.state import load_role, save_role

RESUME_MODES = Table("resume mode", key="trainer.resume_mode")


def save(run: Run) -> None:
    """Weights, optimizers, schedules, KL controller, sampler position, seed and step."""
    cfg, policy, critic = run.cfg, run.policy, run.critic
    contents = cfg.actor_rollout_ref.actor.checkpoint.save_contents
    write = partial(save_role, backend=policy.backend, optimizer=policy.optimizer, contents=contents)
    roles = {"actor": partial(write, tokenizer=run.tokenizer)}
    if critic is not None:
        contents = cfg.critic.checkpoint.save_contents
        roles["critic"] = partial(save_role, backend=critic.backend, optimizer=critic.optimizer, contents=contents)
    state = {"step": run.step, "seed": run.seed, "sampler": run.sampler.state_dict(), "kl": run.kl.state_dict()}
    run.checkpoints.save(run.step, roles, state)
    run.saved_step = run.step
    run.checkpoints.keep(cfg.trainer.max_actor_ckpt_to_keep, cfg.trainer.max_critic_ckpt_to_keep)


def resume(run: Run) -> None:
    """Go on where a checkpoint left off, if trainer.resume_mode finds one."""
    folder: Path | None = RESUME_MODES[run.cfg.trainer.resume_mode].load()(run)
    if folder is None:
        return
    cfg, policy, critic = run.cfg, run.policy, run.critic
    state = read_trainer(folder)
    contents, key = cfg.actor_rollout_ref.actor.checkpoint.load_contents, "actor_rollout_ref.actor.checkpoint"
    load_role(folder / "actor", policy.backend, policy.optimizer, contents, key=f"{key}.load_contents")
    if critic is not None:
        contents, key = cfg.critic.checkpoint.load_contents, "critic.checkpoint.load_contents"
        load_role(folder / "critic", critic.backend, critic.optimizer, contents, key=key)
    if run.sampler is not None:
        run.sampler.load_state_dict(state["sampler"])
    run.kl.load_state_dict(state["kl"])
    run.step = run.saved_step = state["step"]
    run.notices.append(f"resumed from {folder}")


@RESUME_MODES.add("disable")
def from_scratch(run: Run) -> None:
    """Start anew, whatever the run folder holds."""


@RESUME_MODES.add("auto")
def from_latest(run: Run) -> Path | None:
    """The newest whole checkpoint of the run folder, or a new start."""
    folder, damaged = run.checkpoints.latest_good()
    run.notices.extend(damaged)
    return folder


@RESUME_MODES.add("resume_path")
def from_path(run: Run) -> Path:
    """The checkpoint that the user names; anything wrong with it stops the run."""
    asked = run.cfg.trainer.resume_from_path
    folder = Path(asked).expanduser()
    problem = damage(folder) if folder.is_dir() else "no such folder"
    if problem is not None:
        raise UserError(problem, key="trainer.resume_from_path", value=asked, hint="trainer.resume_mode=auto")
    return folder
