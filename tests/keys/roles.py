"""Rows that the policy and the critic have alike: how a step is walked through, the optimizer, checkpoints."""

from . import teaching
from .row import Row, Text


def role_rows(section: str, role: str, loss: str, given: tuple[str, ...] = ()) -> list[Row]:
    """Of the section (actor_rollout_ref.actor or critic) of this role; `loss` is the metric of its loss."""
    one_by_one = (*given, f"{section}.ppo_micro_batch_size_per_gpu=1")
    in_halves = (*given, f"{section}.ppo_mini_batch_size=2")
    prompt_by_prompt = (*given, f"{section}.ppo_mini_batch_size=1")
    shuffled = (*in_halves, f"{section}.shuffle=true")
    return [
        Row(f"{section}.ppo_mini_batch_size", "2", teaching.num_updates(role), given, expected=2),
        Row(f"{section}.ppo_micro_batch_size", "4", teaching.num_taught(role), given, expected=2),
        Row(f"{section}.ppo_micro_batch_size_per_gpu", "2", teaching.num_taught(role), given, expected=4),
        Row(f"{section}.use_dynamic_bsz", "true", teaching.num_taught(role), one_by_one, expected=1),
        Row(f"{section}.ppo_max_token_len_per_gpu", "1", teaching.num_taught(role), given, expected=8),
        Row(f"{section}.use_prefix_grouper", "true", teaching.update_tokens(role), given),
        Row(f"{section}.grad_clip", "0.001", teaching.gradient_norm(role), given),
        Row(f"{section}.ppo_epochs", "3", teaching.num_updates(role), given, expected=3),
        Row(f"{section}.shuffle", "true", teaching.taught_rows(role), in_halves),
        Row(f"{section}.shuffle_mini_batches", "true", teaching.taught_rows(role), prompt_by_prompt),
        Row(f"{section}.data_loader_seed", "5", teaching.taught_rows(role), shuffled),
        Row(f"{section}.loss_agg_mode", "token-sum", teaching.numbers(role, loss), given),
        *optim_rows(f"{section}.optim", role, (*given, f"{section}.ppo_epochs=2")),
        *checkpoint_rows(f"{section}.checkpoint", role, given),
    ]


def optim_rows(section: str, role: str, given: tuple[str, ...]) -> list[Row]:
    """Two updates a step, six steps: the learning rate of each, and what AdamW makes of the second."""
    rates = teaching.rates(role)
    flat = (*given, f"{section}.lr=0.01", "trainer.total_training_steps=6")
    falling = (*flat, f"{section}.warmup_style=linear")
    waving = (*flat, f"{section}.warmup_style=cosine")
    rising = (*flat, f"{section}.lr_warmup_steps=4")
    return [
        Row(f"{section}.lr", "0.5", teaching.taught_weights(role), given),
        Row(f"{section}.lr_warmup_steps", "2", rates, flat, expected=[0.005] * 2 + [0.01] * 10),
        Row(f"{section}.lr_warmup_steps_ratio", "0.34", rates, flat, expected=[0.005] * 2 + [0.01] * 10),
        Row(f"{section}.min_lr_ratio", "0.4", rates, falling, expected=twice(0.01, 0.009, 0.008, 0.007, 0.006, 0.005)),
        Row(f"{section}.num_cycles", "1.5", rates, waving),
        Row(f"{section}.warmup_style", "linear", rates, flat, expected=twice(*((6 - n) / 600 for n in range(6)))),
        Row(f"{section}.total_training_steps", "2", rates, falling, expected=twice(0.01, 0.005, 0.0, 0.0, 0.0, 0.0)),
        Row(f"{section}.lr_step_unit", "update", rates, rising, expected=[0.0025, 0.005, 0.0075] + [0.01] * 9),
        Row(f"{section}.weight_decay", "0.5", teaching.taught_weights(role), flat),
        Row(
            f"{section}.decay_matrices_only",
            "true",
            teaching.taught_weights(role),
            (*flat, f"{section}.weight_decay=0.5"),
        ),
        Row(f"{section}.betas", "[0.5,0.6]", teaching.taught_weights(role), flat),
        Row(f"{section}.optimizer", "sgd", teaching.taught_weights(role), flat),
        Row(f"{section}.override_optimizer_config", "{eps:0.1}", teaching.taught_weights(role), flat),
    ]


def twice(*numbers: float) -> list[float]:
    return [number for number in numbers for _ in range(2)]


def checkpoint_rows(section: str, role: str, given: tuple[str, ...]) -> list[Row]:
    folder = {"policy": "actor"}.get(role, role)
    resumed = (*given, "trainer.resume_mode=resume_path", "trainer.resume_changes=accept", _last_checkpoint)
    return [
        Row(f"{section}.save_contents", "[model,hf_model]", teaching.saved_files(folder), given),
        Row(f"{section}.load_contents", "[model]", teaching.loaded_steps(role), resumed, expected=0),
        schedule_row(section.replace("checkpoint", "optim"), role, resumed),
    ]


def schedule_row(section: str, role: str, resumed: tuple[Text, ...]) -> Row:
    """A run of two steps is resumed with 40: its schedule ends after two, or after 40."""
    falling = (*resumed, f"{section}.warmup_style=linear", f"{section}.lr=0.01", "trainer.total_training_steps=40")
    key = f"{section}.use_checkpoint_opt_param_scheduler"
    return Row(key, "true", teaching.resumed_rate(role), falling, expected=0.0)


def _last_checkpoint(kit):
    return f"trainer.resume_from_path={kit.saved / 'global_step_2'}"
