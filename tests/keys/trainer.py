"""Rows of trainer.*"""

import torch

from . import observe as see
from .row import Row

GAE = "algorithm.adv_estimator=gae"
ONE_EPOCH = ("trainer.total_training_steps=null", "data.train_batch_size=12", "trainer.total_epochs=1")
SAVING = ("trainer.save_freq=1",)
RUN_FOLDER = "${trainer.default_local_dir}"


def val_files(kit):
    return f"data.val_files={kit.val_file}"


def saved_run(kit):
    return f"trainer.default_local_dir={kit.saved}"


def first_checkpoint(kit):
    return f"trainer.resume_from_path={kit.saved / 'global_step_1'}"


ROWS = [
    Row("trainer.seed", "2", see.responses),
    Row("trainer.total_epochs", "3", see.last_step, ONE_EPOCH, expected=3),
    Row("trainer.total_training_steps", "3", see.last_step, expected=3),
    Row("trainer.project_name", "mine", see.title, expected="mine/default"),
    Row("trainer.experiment_name", "first", see.title, expected="burnish/first"),
    Row("trainer.logger", "[file]", see.num_lines, expected=0),
    Row("trainer.log_val_generations", "2", see.files, (val_files,)),
    Row("trainer.log_train_generations", "2", see.files),
    Row("trainer.rollout_data_dir", f"{RUN_FOLDER}/mine", see.files),
    Row("trainer.rollout_keep", "1", see.files),
    Row("trainer.validation_data_dir", f"{RUN_FOLDER}/mine", see.files, (val_files,)),
    Row("trainer.default_local_dir", lambda kit: str(kit.root / "elsewhere"), see.saves_elsewhere, expected=True),
    Row("trainer.save_freq", "2", see.checkpoints, expected=["global_step_2/actor"]),
    Row("trainer.save_final", "false", see.files),
    Row("trainer.resume_mode", "disable", see.resumed_step, (saved_run, GAE), expected=0),
    Row(
        "trainer.resume_changes",
        "accept",
        see.resumed_step,
        (saved_run, GAE, "actor_rollout_ref.rollout.n=4"),
        expected=2,
        refused_without=True,
    ),
    Row(
        "trainer.resume_from_path",
        lambda kit: str(kit.saved / "global_step_2"),
        see.resumed_step,
        (first_checkpoint, "trainer.resume_mode=resume_path", GAE),
        expected=2,
    ),
    Row("trainer.remove_previous_ckpt_in_save", "true", see.checkpoints, SAVING, expected=["global_step_2/actor"]),
    Row("trainer.max_actor_ckpt_to_keep", "1", see.checkpoints, SAVING, expected=["global_step_2/actor"]),
    Row(
        "trainer.max_critic_ckpt_to_keep",
        "1",
        see.checkpoints,
        (*SAVING, GAE),
        expected=["global_step_1/actor", "global_step_2/actor", "global_step_2/critic"],
    ),
    Row("trainer.best_metric_key", "auto", see.files, (val_files, "trainer.test_freq=1")),
    Row("trainer.max_restarts", "1", see.attempts, expected=2),
    Row("trainer.hang_timeout", "0", see.is_watched, expected=False),
    Row("trainer.val_before_train", "false", see.validated_steps, (val_files,), expected=[]),
    Row("trainer.val_only", "true", see.last_step, (val_files,), expected=0),
    Row("trainer.test_freq", "1", see.validated_steps, (val_files,), expected=[0, 1, 2]),
    Row("trainer.critic_warmup", "1", see.taught_steps, (GAE,), expected=[2]),
    Row("trainer.device", "cpu", see.device, ("trainer.device=auto",), expected="cpu")
    if torch.cuda.is_available()
    else Row("trainer.device", "cuda", see.device, expected="no CUDA device found", refused=True),
]
